"""The token after N others, by KV heads, on a compiled step: its time against the bytes that it has to read,
beside `transformers`' compiled step over its own static cache.

Models are made, not trained. A cache is filled by a prefill in pieces, so that a long one of many rows fits.
`transformers` has no latent that is read as it is cached, and is asked for one row only.
"""

import functools
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any

import torch

from attnlab.attention.cache import StaticCache
from attnlab.cli.bench import Bench
from attnlab.cli.bench.rows import rows
from attnlab.cli.bench.setup import conditions, here, is_debug
from attnlab.cli.bench.subjects.decode import VOCABULARY, theirs
from attnlab.cli.bench.trials import survey
from attnlab.measure.counts import bytes_per_step, formula
from attnlab.measure.roofline import roofline
from attnlab.measure.timing import in_bf16, wait
from attnlab.model.build import build_model, device_of
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer

OVERRIDES = [
    "model=llama", "model.dim=256", "model.n_layers=4", "model.n_heads=8", "model.ffn_width=688",
    "position=rope", "decode=static", "data.length=272", "data.batch_size=1", "logger=none",
]  # fmt: skip
ROUNDS = 5
STEPS = 16
PIECE = 1024
CONTEXTS = {"cpu": (64, 256), "cuda": (2048, 8192, 32768), "debug": (16,)}
Configs = dict[str, dict[str, Any]]


def prepare(overrides: Sequence[str], threads: int | None) -> Configs:
    """A config for each kind of cache: all KV heads, a quarter, an eighth, one, and a latent."""
    config = here(OVERRIDES, [*overrides, "heads=gqa"], threads)
    n_heads = config["model"]["n_heads"]
    kinds = {
        f"{n} KV heads": [f"model.attention.heads.n_kv_heads={n}"]
        for n in sorted({n_heads, max(1, n_heads // 4), max(1, n_heads // 8), 1}, reverse=True)
    }
    made = {name: here(OVERRIDES, [*overrides, "heads=gqa", *own], threads) for name, own in kinds.items()}
    return made | {"a latent": here(OVERRIDES, [*overrides, "heads=mla"], threads)}


def measure(configs: Configs, bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Milliseconds of a step of `data.batch_size` rows, and at which share of the copy bandwidth it reads."""
    config = next(iter(configs.values()))
    device = device_of(config)
    batch = config["data"]["batch_size"]
    dtype = torch.bfloat16 if in_bf16(config) else torch.float32
    say("measuring copy bandwidth and matrix products")
    limits = roofline(device, dtype)
    bench.conditions |= conditions(config) | {
        "copy_bytes_per_s": limits.bytes_per_s,
        "matmul_flops_per_s": limits.flops_per_s,
    }
    for context in CONTEXTS["debug" if is_debug(config) else device]:
        for name, each in configs.items():
            group = f"one token after {context} others, {batch} rows, {name}"
            say(group)
            model = build_model(each, VOCABULARY).eval().to(device=device, dtype=dtype)
            works = {"compiled": _ours(model, context, batch, device)}
            notes = {}
            if batch == 1 and "latent" not in name and importlib.util.find_spec("transformers"):
                works["transformers, compiled"] = _others(each, context, device, dtype)
            elif not importlib.util.find_spec("transformers"):
                notes["transformers, compiled"] = "not installed"
            samples, failed = survey(works, rounds, say)
            read = bytes_per_step(model, context)
            moved = read["weights"] + batch * (sum(read.values()) - read["weights"])
            flops = (
                formula(model, batch, context, 2, True).flops - formula(model, batch, context, 1, True).flops
            )
            floor = limits.milliseconds(moved, flops)
            facts = {
                key: {
                    "bytes": moved,
                    "of_copy_bandwidth": round(moved / (median_high(values) * 1e-3) / limits.bytes_per_s, 3),
                }
                for key, values in samples.items()
            }
            bench.rows += rows(group, samples, "ms", dict.fromkeys(samples, floor), facts, notes | failed)
            del model, works
            if device == "cuda":
                torch.cuda.empty_cache()


def _ours(model: Transformer, context: int, batch: int, device: str) -> Callable[[], float]:
    room = functools.partial(StaticCache, context + STEPS)
    decoder = Decoder(model, room, compile=True)
    decoder.piece = PIECE
    prompt = torch.arange(context, device=device)[None].expand(batch, -1) % VOCABULARY
    return lambda: _timed(decoder.stream(prompt, STEPS), device)


def _others(config: Mapping[str, Any], context: int, device: str, dtype: torch.dtype) -> Callable[[], float]:
    from transformers import StaticCache as TheirCache

    heads = config["model"]["attention"]["heads"]["n_kv_heads"]
    model = theirs(config, heads, context + STEPS).to(device=device, dtype=dtype)
    step = torch.compile(model.forward, mode="reduce-overhead" if device == "cuda" else None, fullgraph=True)
    prompt = torch.arange(context, device=device)[None] % VOCABULARY
    cache = TheirCache(config=model.config, max_cache_len=context + STEPS)  # whose place the graph knows

    @torch.inference_mode()
    def stream() -> Iterator[torch.Tensor]:
        cache.reset()
        logits = None
        at = 0
        for part in prompt.split(PIECE, 1):
            logits = model(part, past_key_values=cache, use_cache=True).logits[:, -1:]
            at += part.shape[1]
        for _ in range(STEPS):
            assert logits is not None
            newest = logits.argmax(-1)
            yield newest
            where = torch.tensor([[at]], device=device)
            logits = step(newest, past_key_values=cache, use_cache=True, position_ids=where).logits
            at += 1

    return lambda: _timed(stream(), device)


def _timed(stream: Iterator[torch.Tensor], device: str) -> float:
    """Milliseconds a step, once the cache is filled."""
    next(stream)
    wait(device)
    began = time.perf_counter()
    done = sum(1 for _ in stream)
    wait(device)
    return (time.perf_counter() - began) * 1e3 / done
