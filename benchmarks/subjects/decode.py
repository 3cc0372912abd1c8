"""Throughput of cached generation by KV heads, and time of one step with and without a cache by context.

Compares with `transformers` if it is installed. Both models are untrained Llamas with equally many
parameters, at batch 1, greedy, with the same prompt and length. Steps are compared with the bytes that they
read.
"""

import functools
import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnlab.attention.cache import DynamicCache, StaticCache
from attnlab.measure.generation_costs import count_step_bytes, predict_generation_cost
from attnlab.measure.roofline import Roofline
from attnlab.measure.step_timing import is_bf16, make_timer
from attnlab.model.build import build_model, select_device
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer
from benchmarks import BenchResult, BenchRow
from benchmarks.bench_config import compose_local_config, is_debug, measure_limits
from benchmarks.bench_rows import build_rows
from benchmarks.workloads import sample_supported, time_steps_ms

OVERRIDES = [
    "model=llama", "model.dim=256", "model.n_layers=4", "model.n_heads=8", "model.ffn_width=688",
    "heads=gqa", "position=rope", "decode=static", "data.length=272", "data.batch_size=1", "logger=none",
]  # fmt: skip
ROUNDS = 7
VOCAB_SIZE = 256
MAX_PROMPT_LENGTH = 16
TIMED_STEPS = 16  # per context
CONTEXTS = {
    "cpu": (64, 128, 256, 512, 1024),
    "cuda": (
        64,
        128,
        256,
        512,
        1024,
        2048,
        4096,
        8192,
        16384,
        32768,
    ),  # long enough for key reads to dominate
    "debug": (16, 32),
}
prepare = functools.partial(compose_local_config, OVERRIDES)


def measure(config: Mapping[str, Any], bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure generations of `data.length` tokens with the prompt, for all, a quarter and one KV head."""
    device = select_device(config)
    dtype = torch.bfloat16 if is_bf16(config) else torch.float32
    limits = measure_limits(config, dtype, bench, log)
    bench.conditions |= {"vocabulary": VOCAB_SIZE, "prompt": _compute_prompt_length(config)}
    n_heads = config["model"]["n_heads"]
    for n_kv_heads in sorted({n_heads, max(1, n_heads // 4), 1}, reverse=True):
        log(f"{n_kv_heads} KV heads")
        torch.compiler.reset()  # otherwise the second shape of a function is compiled for all shapes
        model = _build_gqa_model(config, n_kv_heads).to(device=device, dtype=dtype)
        bench.rows += _measure_generation(config, model, n_kv_heads, limits, device, log, rounds)
    _measure_contexts(config, limits, device, dtype, bench, log, rounds)


def _compute_prompt_length(config: Mapping[str, Any]) -> int:
    """Compute the tokens of the prompt, at most half of a generation."""
    return min(MAX_PROMPT_LENGTH, config["data"]["length"] // 2)


def _build_gqa_model(config: Mapping[str, Any], n_kv_heads: int) -> Transformer:
    attention = config["model"]["attention"]
    heads = attention["heads"] | {"n_kv_heads": n_kv_heads}
    model = config["model"] | {"attention": attention | {"heads": heads}}
    return build_model({"model": model}, VOCAB_SIZE).eval()


def build_transformers_llama(config: Mapping[str, Any], n_kv_heads: int, length: int) -> Any:
    """Build an untrained `transformers` Llama of this shape with `length` positions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = config["model"]
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE, hidden_size=model["dim"], intermediate_size=model["ffn_width"],
            num_hidden_layers=model["n_layers"], num_attention_heads=model["n_heads"],
            num_key_value_heads=n_kv_heads, max_position_embeddings=length,
            tie_word_embeddings=model["tie"], eos_token_id=None, bos_token_id=None, pad_token_id=0,
        )
    ).eval()  # fmt: skip


def _measure_generation(
    config: Mapping[str, Any], model: Transformer, n_kv_heads: int, limits: Roofline, device: str,
    log: Callable[[str], None], rounds: int,
) -> list[BenchRow]:  # fmt: skip
    length = config["data"]["length"]
    prompt_length = _compute_prompt_length(config)
    n_new = length - prompt_length
    prompt = torch.arange(prompt_length, device=device)[None] % VOCAB_SIZE
    make_static_cache = functools.partial(StaticCache, length)
    workloads = {}
    notes = {}
    facts = {}
    if importlib.util.find_spec("transformers"):
        llama = build_transformers_llama(config, n_kv_heads, length).to(
            device=device, dtype=model.embedding.weight.dtype
        )
        attnlab_parameters, transformers_parameters = (
            sum(p.numel() for p in network.parameters()) for network in (model, llama)
        )
        assert attnlab_parameters == transformers_parameters, (
            f"{attnlab_parameters} parameters against {transformers_parameters}"
        )
        workloads["transformers, its default cache"] = lambda: llama.generate(
            prompt, max_new_tokens=n_new, do_sample=False
        )
    else:
        notes["transformers"] = "not installed"
    decoders = {"dynamic": Decoder(model, DynamicCache), "static": Decoder(model, make_static_cache)}
    log("compiling the step")
    decoders["static, compiled"] = Decoder(model, make_static_cache, compile=True)
    start_time = time.perf_counter()
    decoders["static, compiled"].generate(prompt, n_new)
    facts["static, compiled"] = {"compile_s": time.perf_counter() - start_time}
    for name, decoder in decoders.items():
        workloads[name] = functools.partial(decoder.generate, prompt, n_new)
    per_second = {name: _make_rate_workload(workload, n_new, device) for name, workload in workloads.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples, failure_notes = sample_supported(per_second, rounds, log)
    step_bytes = count_step_bytes(model, (prompt_length + length) // 2)
    flops = predict_generation_cost(model, 1, prompt_length, n_new, cached=True).flops / n_new
    roofline = 1e3 / limits.minimum_ms(sum(step_bytes.values()), flops)
    common_facts = {"bytes_per_step": sum(step_bytes.values()), "flops_per_token": int(flops)}
    return build_rows(
        f"generation with {n_kv_heads} KV heads", samples, "tokens/s", dict.fromkeys(samples, roofline),
        {name: common_facts | facts.get(name, {}) for name in samples}, notes | failure_notes,
    )  # fmt: skip


def _make_rate_workload(workload: Callable[[], Any], tokens: int, device: str) -> Callable[[], float]:
    milliseconds = make_timer(workload, tokens, device)
    return lambda: 1e3 / milliseconds()


def _measure_contexts(
    config: Mapping[str, Any], limits: Roofline, device: str, dtype: torch.dtype,
    bench: BenchResult, log: Callable[[str], None], rounds: int,
) -> None:  # fmt: skip
    """Measure milliseconds of the token after N others, with a static cache and without, all KV heads."""
    model = _build_gqa_model(config, config["model"]["n_heads"]).to(device=device, dtype=dtype)
    cached = {}
    uncached = {}
    rooflines = {}
    facts = {}
    for context in CONTEXTS["debug" if is_debug(config) else device]:
        prompt = torch.arange(context, device=device)[None] % VOCAB_SIZE
        name = f"N = {context}"
        cached[name] = _make_step_workload(
            Decoder(model, functools.partial(StaticCache, context + TIMED_STEPS)), prompt, TIMED_STEPS, device
        )
        uncached[name] = _make_step_workload(Decoder(model, None), prompt, 1, device)
        step_bytes = count_step_bytes(model, context)
        flops = (
            predict_generation_cost(model, 1, context, 2, True).flops
            - predict_generation_cost(model, 1, context, 1, True).flops
        )
        full_pass_flops = predict_generation_cost(model, 1, context, 1, False).flops
        rooflines[name] = (
            limits.minimum_ms(sum(step_bytes.values()), flops),
            limits.minimum_ms(step_bytes["weights"], full_pass_flops),
        )
        facts[name] = ({"bytes": sum(step_bytes.values()), "flops": flops}, {"flops": full_pass_flops})
    for index, (kind, workloads) in enumerate(
        {"with a static cache": cached, "without a cache": uncached}.items()
    ):
        log(f"a step {kind}")
        samples, notes = sample_supported(workloads, rounds, log)
        rooflines_ms = {name: rooflines[name][index] for name in samples}
        facts_of_kind = {name: facts[name][index] for name in samples}
        bench.rows += build_rows(
            f"one token after N others, {kind}", samples, "ms", rooflines_ms, facts_of_kind, notes
        )


def _make_step_workload(
    decoder: Decoder, prompt: torch.Tensor, steps: int, device: str
) -> Callable[[], float]:
    """Make a workload that times a step after the prompt; a prefill into a cache is not timed."""

    def time_step_ms() -> float:
        stream = decoder.stream_tokens(prompt, steps if decoder.make_cache is not None else 1)
        if decoder.make_cache is not None:
            next(stream)
        return time_steps_ms(stream, device)

    return time_step_ms
