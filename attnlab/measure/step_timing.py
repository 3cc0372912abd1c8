"""Time of a training step and of a decoded token, arms interleaved A B ... B A.

One process has the device to itself. Interleaving spreads slow drifts (heat, other load) over all arms; a
loop over arms would assign them to the last arm. Raw samples are stored.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_model
from torch import Tensor

from attnlab.attention.contracts import Unsupported
from attnlab.measure.resources import THROUGHPUT
from attnlab.measure.training_pass import (
    compute_training_loss,
    get_weight_dtype,
    list_device_passes,
    make_autocast,
)
from attnlab.model.build import build_data, build_model, instantiate_config, select_device
from attnlab.model.generation import Decoder
from attnlab.stats import estimate_median
from attnlab.store import run_directories
from attnlab.store.guards import trust
from attnlab.store.run_schema import Metric, index_by_name

N_ROUNDS = 12  # a round is a block A B B A: two samples per arm
PROMPT_TOKENS = 16
Name = TypeVar("Name", bound=Hashable)
TRAIN_STEP = Metric("train_step_ms", "time of a training step", "ms", kind="time")
TIME_METRICS = index_by_name(
    TRAIN_STEP,
    Metric("decode_ms_per_token", "decoding time per token", "ms", kind="time"),
    Metric("decode_uncached_ms_per_token", "decoding time per token without a cache", "ms", kind="time"),
)


def measure_timings(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Time finished runs, one per arm, in milliseconds.

    Timed are the training step, and decoding with the run's cache and without any cache. A step is that of
    one device, without communication, in as many passes as in training. Its time also gives training tokens
    per second. Training steps use temporary optimizer state over the final weights, so nothing on disk
    changes.
    """
    torch.manual_seed(0)
    arms = {arm: load_trained_run(folder) for arm, folder in folders.items()}
    first = next(iter(arms.values()))
    works = {arm: _build_workloads(*loaded) for arm, loaded in arms.items()}
    notes = {arm: _drop_unsupported(work) for arm, work in works.items()}
    samples = {
        kind: interleave_calls({arm: call for arm, work in works.items() if (call := work[kind]) is not None})
        for kind in TIME_METRICS
    }
    return {
        "order": "ABBA",
        "metric_definitions": {
            name: asdict(metric) for name, metric in (TIME_METRICS | index_by_name(THROUGHPUT)).items()
        },
        "device": first[2],
        "threads": torch.get_num_threads(),
        "context": first[3].task.length,
        "batch": first[3].batch_size,
        "arms": {
            arm: {
                kind: _summarize_samples(samples[kind][arm]) if arm in samples[kind] else None
                for kind in samples
            }
            | {
                THROUGHPUT.name: _compute_throughput(
                    samples[TRAIN_STEP.name].get(arm), data.batch_size * data.task.length
                )
            }
            | {"note": notes[arm]}
            for arm, (_, _, _, data, _) in arms.items()
        },
    }


def _drop_unsupported(works: dict[str, Callable[[], float] | None]) -> str | None:
    """Remove the workloads that this arm does not support, and return the reasons."""
    reasons = []
    for kind, work in works.items():
        try:
            if work is not None:
                work()
        except Unsupported as error:
            works[kind] = None
            reasons.append(f"{kind}: {error}")
    return "; ".join(reasons) or None


def interleave_calls(
    works: Mapping[Name, Callable[[], float]],
    rounds: int = N_ROUNDS,
    report_progress: Callable[[str], None] = lambda line: None,
    warm_up: bool = True,
) -> dict[Name, list[float]]:
    """Call every workload twice per round, forward then backward, after one warm-up call each.

    A workload returns its own measurement; measurements 2r and 2r + 1 of all workloads belong to the same
    moment.
    """
    samples: dict[Name, list[float]] = {name: [] for name in works}
    for work in works.values() if warm_up else ():
        work()
    for n in range(rounds):
        report_progress(f"round {n + 1} of {rounds}")
        for name in [*works, *reversed(list(works))]:
            samples[name].append(works[name]())
    return samples


def make_timer(work: Callable[[], object], units: int, device: str) -> Callable[[], float]:
    """Return a function that runs `work` and returns milliseconds per unit, including the device's queue."""

    def measure_once() -> float:
        synchronize_device(device)
        start = time.perf_counter()
        work()
        synchronize_device(device)
        return (time.perf_counter() - start) * 1e3 / units

    return measure_once


def is_bf16(config: Mapping[str, Any]) -> bool:
    """Return whether arithmetic is in bfloat16, regardless of the dtype of the weights."""
    return str(config["trainer"]["precision"]).startswith("bf16")


def synchronize_device(device: str) -> None:
    """Wait until the device has finished all queued work."""
    if device == "cuda":
        torch.cuda.synchronize()


def _summarize_samples(samples: list[float]) -> dict[str, Any]:
    interval = estimate_median(samples)
    return {"median": interval.estimate, "low": interval.low, "high": interval.high, "samples": samples}


def _compute_throughput(samples: list[float] | None, tokens: int) -> dict[str, Any] | None:
    """Return the throughput of training steps of `tokens` tokens, from their milliseconds."""
    if samples is None:
        return None
    step_time = _summarize_samples(samples)
    tokens_ms = 1e3 * tokens
    return {
        "median": tokens_ms / step_time["median"],
        "low": tokens_ms / step_time["high"] if step_time["high"] else None,
        "high": tokens_ms / step_time["low"] if step_time["low"] else None,
        "samples": [tokens_ms / sample for sample in samples],
    }


def load_trained_run(folder: Path) -> tuple[Any, Any, str, Any, Mapping[str, Any]]:
    """Return module, model, device, data and config of a finished run, with its final weights."""
    record = run_directories.load_run_result(folder)
    assert record is not None, folder
    run_config = trust.load_trusted_run(folder)
    config = run_config.config
    data = build_data(run_config)
    data.micro_batches = record.split
    device = select_device(config)
    model = build_model(config, data.task.vocab_size).to(get_weight_dtype(config))
    load_model(model, str(folder / "model.safetensors"))
    module = instantiate_config(config["optim"], model=model).to(device)
    return module, model, device, data, config


def _build_workloads(
    module: Any, model: Any, device: str, data: Any, config: Mapping[str, Any]
) -> dict[str, Callable | None]:
    batch = {key: value.to(device) for key, value in data.task.train_batch(0, 0, data.batch_size).items()}
    passes = list_device_passes(batch, data.micro_batches, config["trainer"]["devices"])
    make_optimizer = getattr(module, "optimizer", None)  # user-defined modules may have none
    optimizer = make_optimizer(1)[0] if make_optimizer else torch.optim.AdamW(model.parameters(), fused=True)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a step with learning rate 0 costs as much as any other

    def train_step() -> None:
        model.train()
        for rows in passes:
            with make_autocast(config, device):
                loss = compute_training_loss(module, rows)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    length = data.task.length
    prompt: Tensor = batch["tokens"][:1, : min(PROMPT_TOKENS, length // 2)]
    new_tokens = length - prompt.shape[1]
    cache = instantiate_config(config["decode"]["cache"]) if config["decode"]["cache"] is not None else None
    compiled = bool(config["decode"].get("compile"))

    def make_decode_timer(
        make_cache: Callable[..., Any] | None, compiled: bool = False
    ) -> Callable[[], float]:
        decoder = Decoder(model, make_cache, compiled)

        def generate_tokens() -> None:
            with make_autocast(config, device):
                decoder.generate(prompt, new_tokens)

        return make_timer(generate_tokens, new_tokens, device)

    return {
        "train_step_ms": make_timer(train_step, 1, device),
        "decode_ms_per_token": make_decode_timer(cache, compiled) if cache is not None else None,
        "decode_uncached_ms_per_token": make_decode_timer(None),
    }
