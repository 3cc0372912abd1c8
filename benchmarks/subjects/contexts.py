"""Time of a compiled decode step after N tokens by KV heads, against the bytes it reads.

Compares with a compiled `transformers` step over its own static cache. Models are untrained. Caches are
filled by a chunked prefill, so that long contexts with many rows fit into memory. `transformers` has no
absorbed latent cache and is measured with one row only.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any

import torch

from attnlab.attention.cache import StaticCache
from attnlab.measure.generation_costs import count_step_bytes, predict_generation_cost
from attnlab.measure.step_timing import is_bf16
from attnlab.model.build import build_model, select_device
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer
from benchmarks import BenchResult
from benchmarks.bench_config import compose_local_config, is_debug, measure_limits
from benchmarks.bench_rows import build_rows
from benchmarks.subjects.decode import VOCAB_SIZE, build_transformers_llama
from benchmarks.workloads import sample_supported, time_steps_ms

OVERRIDES = [
    "model=llama", "model.dim=256", "model.n_layers=4", "model.n_heads=8", "model.ffn_width=688",
    "position=rope", "decode=static", "data.length=272", "data.batch_size=1", "logger=none",
]  # fmt: skip
ROUNDS = 5
TIMED_STEPS = 16
PREFILL_CHUNK = 1024
CONTEXTS = {"cpu": (64, 256), "cuda": (8192, 32768), "debug": (16,)}
ConfigByCache = dict[str, dict[str, Any]]


def prepare(overrides: Sequence[str], threads: int | None) -> ConfigByCache:
    """Compose a config per cache: all KV heads, a quarter, an eighth, one, and a latent."""
    config = compose_local_config(OVERRIDES, [*overrides, "heads=gqa"], threads)
    n_heads = config["model"]["n_heads"]
    overrides_by_cache = {
        f"{n} KV heads": [f"model.attention.heads.n_kv_heads={n}"]
        for n in sorted({n_heads, max(1, n_heads // 4), max(1, n_heads // 8), 1}, reverse=True)
    }
    configs = {
        name: compose_local_config(OVERRIDES, [*overrides, "heads=gqa", *cache_overrides], threads)
        for name, cache_overrides in overrides_by_cache.items()
    }
    return configs | {"a latent": compose_local_config(OVERRIDES, [*overrides, "heads=mla"], threads)}


def measure(configs: ConfigByCache, bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure milliseconds per step of `data.batch_size` rows, and its proportion of the copy bandwidth."""
    config = next(iter(configs.values()))
    device = select_device(config)
    batch = config["data"]["batch_size"]
    dtype = torch.bfloat16 if is_bf16(config) else torch.float32
    limits = measure_limits(config, dtype, bench, log)
    for context in CONTEXTS["debug" if is_debug(config) else device]:
        for name, cache_config in configs.items():
            group = f"one token after {context} others, {batch} rows, {name}"
            log(group)
            torch.compiler.reset()  # otherwise the second shape of a function is compiled for all shapes
            model = build_model(cache_config, VOCAB_SIZE).eval().to(device=device, dtype=dtype)
            workloads = {"compiled": _make_attnlab_workload(model, context, batch, device)}
            notes = {}
            if batch == 1 and "latent" not in name and importlib.util.find_spec("transformers"):
                workloads["transformers, compiled"] = _make_transformers_workload(
                    cache_config, context, device, dtype
                )
            elif not importlib.util.find_spec("transformers"):
                notes["transformers, compiled"] = "not installed"
            samples, failure_notes = sample_supported(workloads, rounds, log)
            step_bytes = count_step_bytes(model, context)
            bytes_moved = step_bytes["weights"] + batch * (sum(step_bytes.values()) - step_bytes["weights"])
            flops = (
                predict_generation_cost(model, batch, context, 2, True).flops
                - predict_generation_cost(model, batch, context, 1, True).flops
            )
            roofline_ms = limits.minimum_ms(bytes_moved, flops)
            facts = {
                key: {
                    "bytes": bytes_moved,
                    "of_copy_bandwidth": round(
                        bytes_moved / (median_high(values) * 1e-3) / limits.bytes_per_s, 3
                    ),
                }
                for key, values in samples.items()
            }
            bench.rows += build_rows(
                group, samples, "ms", dict.fromkeys(samples, roofline_ms), facts, notes | failure_notes
            )
            del model, workloads
            if device == "cuda":
                torch.cuda.empty_cache()


def _make_attnlab_workload(model: Transformer, context: int, batch: int, device: str) -> Callable[[], float]:
    make_cache = functools.partial(StaticCache, context + TIMED_STEPS)
    decoder = Decoder(model, make_cache, compile=True)
    decoder.prefill_chunk = PREFILL_CHUNK
    prompt = torch.arange(context, device=device)[None].expand(batch, -1) % VOCAB_SIZE
    return lambda: _time_step_ms(decoder.stream_tokens(prompt, TIMED_STEPS), device)


def _make_transformers_workload(
    config: Mapping[str, Any], context: int, device: str, dtype: torch.dtype
) -> Callable[[], float]:
    from transformers import StaticCache as TransformersStaticCache

    n_kv_heads = config["model"]["attention"]["heads"]["n_kv_heads"]
    model = build_transformers_llama(config, n_kv_heads, context + TIMED_STEPS).to(device=device, dtype=dtype)
    step = torch.compile(model.forward, mode="reduce-overhead" if device == "cuda" else None, fullgraph=True)
    prompt = torch.arange(context, device=device)[None] % VOCAB_SIZE
    # The compiled graph holds the addresses of one cache, so it is reset rather than made anew.
    cache = TransformersStaticCache(config=model.config, max_cache_len=context + TIMED_STEPS)

    @torch.inference_mode()
    def stream_tokens() -> Iterator[torch.Tensor]:
        cache.reset()
        logits = None
        position = 0
        for part in prompt.split(PREFILL_CHUNK, 1):
            logits = model(part, past_key_values=cache, use_cache=True).logits[:, -1:]
            position += part.shape[1]
        for _ in range(TIMED_STEPS):
            assert logits is not None
            token = logits.argmax(-1)
            yield token
            position_ids = torch.tensor([[position]], device=device)
            logits = step(token, past_key_values=cache, use_cache=True, position_ids=position_ids).logits
            position += 1

    return lambda: _time_step_ms(stream_tokens(), device)


def _time_step_ms(stream: Iterator[torch.Tensor], device: str) -> float:
    """Measure milliseconds per step after the prefill."""
    next(stream)
    return time_steps_ms(stream, device)
