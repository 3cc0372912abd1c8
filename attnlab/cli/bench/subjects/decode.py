"""Tokens a second of cached generation by KV heads, beside `transformers` where it is installed; one step
with a cache and without at growing contexts, and its time against the bytes that it reads.

Both sides are made, not trained: a Llama block of ours and of theirs with equally many parameters, batch 1,
greedy, the same prompt and length.
"""

import functools
import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnlab.attention.cache import DynamicCache, StaticCache
from attnlab.cli.bench import Bench, Row
from attnlab.cli.bench.rows import rows
from attnlab.cli.bench.setup import conditions, here, is_debug
from attnlab.cli.bench.trials import survey
from attnlab.measure.counts import bytes_per_step, formula
from attnlab.measure.roofline import Roofline, roofline
from attnlab.measure.timing import in_bf16, timed, wait
from attnlab.model.build import build_model, device_of
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer

OVERRIDES = [
    "model=llama", "model.dim=256", "model.n_layers=4", "model.n_heads=8", "model.ffn_width=688",
    "heads=gqa", "position=rope", "decode=static", "data.length=272", "data.batch_size=1", "logger=none",
]  # fmt: skip
ROUNDS = 7
VOCABULARY = 256
PROMPT = 16
STEPS = 16  # at a context, a few steps are timed
CONTEXTS = {
    "cpu": (64, 128, 256, 512, 1024),
    "cuda": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),  # reading keys takes the time there
    "debug": (16, 32),
}
prepare = functools.partial(here, OVERRIDES)


def measure(config: Mapping[str, Any], bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Every generation is `data.length` tokens with the prompt; KV heads are all, a quarter and one."""
    device = device_of(config)
    dtype = torch.bfloat16 if in_bf16(config) else torch.float32
    say("measuring copy bandwidth and matrix products")
    limits = roofline(device, dtype)
    bench.conditions |= conditions(config) | {
        "copy_bytes_per_s": limits.bytes_per_s,
        "matmul_flops_per_s": limits.flops_per_s,
        "vocabulary": VOCABULARY,
        "prompt": _prompt_length(config),
    }
    n_heads = config["model"]["n_heads"]
    for n_kv_heads in sorted({n_heads, max(1, n_heads // 4), 1}, reverse=True):
        say(f"{n_kv_heads} KV heads")
        model = _ours(config, n_kv_heads).to(device=device, dtype=dtype)
        bench.rows += _generation(config, model, n_kv_heads, limits, device, say, rounds)
    _contexts(config, limits, device, dtype, bench, say, rounds)


def _prompt_length(config: Mapping[str, Any]) -> int:
    """Tokens of the prompt: at most half of a generation."""
    return min(PROMPT, config["data"]["length"] // 2)


def _ours(config: Mapping[str, Any], n_kv_heads: int) -> Transformer:
    attention = config["model"]["attention"]
    heads = attention["heads"] | {"n_kv_heads": n_kv_heads}
    model = config["model"] | {"attention": attention | {"heads": heads}}
    return build_model({"model": model}, VOCABULARY).eval()


def theirs(config: Mapping[str, Any], n_kv_heads: int, length: int) -> Any:
    """`transformers`' Llama of this shape and so many positions, untrained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = config["model"]
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=model["dim"], intermediate_size=model["ffn_width"],
            num_hidden_layers=model["n_layers"], num_attention_heads=model["n_heads"],
            num_key_value_heads=n_kv_heads, max_position_embeddings=length,
            tie_word_embeddings=model["tie"], eos_token_id=None, bos_token_id=None, pad_token_id=0,
        )
    ).eval()  # fmt: skip


def _generation(
    config: Mapping[str, Any], model: Transformer, n_kv_heads: int, limits: Roofline, device: str,
    say: Callable[[str], None], rounds: int,
) -> list[Row]:  # fmt: skip
    length = config["data"]["length"]
    given = _prompt_length(config)
    new = length - given
    prompt = torch.arange(given, device=device)[None] % VOCABULARY
    static = functools.partial(StaticCache, length)
    works = {}
    notes = {}
    facts = {}
    if importlib.util.find_spec("transformers"):
        llama = theirs(config, n_kv_heads, length).to(device=device, dtype=model.embedding.weight.dtype)
        ours, other = (sum(p.numel() for p in network.parameters()) for network in (model, llama))
        assert ours == other, f"{ours} parameters against {other}"
        works["transformers, its default cache"] = lambda: llama.generate(
            prompt, max_new_tokens=new, do_sample=False
        )
    else:
        notes["transformers"] = "not installed"
    decoders = {"growing": Decoder(model, DynamicCache), "static": Decoder(model, static)}
    say("compiling the step")
    decoders["static, compiled"] = Decoder(model, static, compile=True)
    began = time.perf_counter()
    decoders["static, compiled"].generate(prompt, new)
    facts["static, compiled"] = {"compile_s": time.perf_counter() - began}
    for name, decoder in decoders.items():
        works[name] = functools.partial(decoder.generate, prompt, new)
    per_second = {name: _rate(work, new, device) for name, work in works.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples, failed = survey(per_second, rounds, say)
    read = bytes_per_step(model, (given + length) // 2)
    flops = formula(model, 1, given, new, cached=True).flops / new
    floor = 1e3 / limits.milliseconds(sum(read.values()), flops)
    counts = {"bytes_per_step": sum(read.values()), "flops_per_token": int(flops)}
    return rows(
        f"generation with {n_kv_heads} KV heads", samples, "tokens/s", dict.fromkeys(samples, floor),
        {name: counts | facts.get(name, {}) for name in samples}, notes | failed,
    )  # fmt: skip


def _rate(work: Callable[[], Any], units: int, device: str) -> Callable[[], float]:
    milliseconds = timed(work, units, device)
    return lambda: 1e3 / milliseconds()


def _contexts(
    config: Mapping[str, Any], limits: Roofline, device: str, dtype: torch.dtype,
    bench: Bench, say: Callable[[str], None], rounds: int,
) -> None:  # fmt: skip
    """Milliseconds of the token after N others, by N: all heads, the static cache and none."""
    model = _ours(config, config["model"]["n_heads"]).to(device=device, dtype=dtype)
    cached = {}
    uncached = {}
    rooflines = {}
    facts = {}
    for context in CONTEXTS["debug" if is_debug(config) else device]:
        prompt = torch.arange(context, device=device)[None] % VOCABULARY
        name = f"N = {context}"
        cached[name] = _step(
            Decoder(model, functools.partial(StaticCache, context + STEPS)), prompt, STEPS, device
        )
        uncached[name] = _step(Decoder(model, None), prompt, 1, device)
        read = bytes_per_step(model, context)
        flops = formula(model, 1, context, 2, True).flops - formula(model, 1, context, 1, True).flops
        whole = formula(model, 1, context, 1, False).flops
        rooflines[name] = (
            limits.milliseconds(sum(read.values()), flops),
            limits.milliseconds(read["weights"], whole),
        )
        facts[name] = ({"bytes": sum(read.values()), "flops": flops}, {"flops": whole})
    for n, (kind, works) in enumerate({"with a static cache": cached, "without a cache": uncached}.items()):
        say(f"a step {kind}")
        samples, notes = survey(works, rounds, say)
        floors = {name: rooflines[name][n] for name in samples}
        counts = {name: facts[name][n] for name in samples}
        bench.rows += rows(f"one token after N others, {kind}", samples, "ms", floors, counts, notes)


def _step(decoder: Decoder, prompt: torch.Tensor, steps: int, device: str) -> Callable[[], float]:
    """The time of a step after the prompt. With a cache the prefill is done and not timed."""

    def figure() -> float:
        stream = decoder.stream(prompt, steps if decoder.make_cache is not None else 1)
        if decoder.make_cache is not None:
            next(stream)
        wait(device)
        began = time.perf_counter()
        done = sum(1 for _ in stream)
        wait(device)
        return (time.perf_counter() - began) * 1e3 / done

    return figure
