"""Throughput of text batches, and start time of the data module with cached tokens.

Compares memory-mapped tokens with a hand-written loop over a tensor in memory. The loop reads the same
windows of the same tokens. `M` and `L` are the windows and batches of these sizes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attnlab.data.data_module import StepLoader
from attnlab.data.task import Batch, make_generator
from attnlab.data.text import TextTask
from attnlab.model.build import instantiate_config
from benchmarks import BenchResult
from benchmarks.bench_config import compose_local_config, describe_conditions, is_debug
from benchmarks.bench_rows import build_rows

OVERRIDES = ["data=code", "data/tokenizer=byte", "logger=none"]
ROUNDS = 5
BATCH_SHAPES = {"M": (64, 512), "L": (64, 1024)}  # rows per batch, tokens per window
BATCHES_PER_SAMPLE = 200
DEBUG_BATCHES_PER_SAMPLE = 2


def prepare(overrides: Sequence[str], threads: int | None) -> dict[str, Any]:
    """Compose the config; size=debug uses pydocs, which loads within seconds."""
    defaults = ["data=pydocs", *OVERRIDES[1:]] if "size=debug" in overrides else OVERRIDES
    return compose_local_config(defaults, overrides, threads)


def measure(config: Mapping[str, Any], bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure tokens per second, and seconds to construct the data module."""
    bench.conditions |= describe_conditions(config)
    log("preparing the corpus")
    cached_task = instantiate_config(config["data"]).task
    facts = {"once cached": {"tokens": cached_task.train_tokens + cached_task.val_tokens}}
    samples: dict[str, list[float]] = {"once cached": []}
    try:
        for round_index in range(2 * rounds):
            log(f"start {round_index + 1} of {2 * rounds}")
            samples["once cached"].append(_time_call(lambda: instantiate_config(config["data"])))
    finally:
        bench.rows += build_rows("start of the data", samples, "s", facts=facts)
    debug_shape = (config["data"]["batch_size"], config["data"]["length"])
    n_batches = DEBUG_BATCHES_PER_SAMPLE if is_debug(config) else BATCHES_PER_SAMPLE
    for name, (batch_size, length) in ({"debug": debug_shape} if is_debug(config) else BATCH_SHAPES).items():
        task = instantiate_config({**config["data"], "length": length, "batch_size": batch_size}).task
        assert isinstance(task, TextTask), "a text is asked for"
        workloads = _make_workloads(task, batch_size, n_batches)
        speeds: dict[str, list[float]] = {workload_name: [] for workload_name in workloads}
        try:
            for round_index in range(rounds):
                log(f"{name}: round {round_index + 1} of {rounds}")
                for direction in (1, -1):
                    for workload_name in list(workloads)[::direction]:
                        seconds = _time_call(workloads[workload_name])
                        speeds[workload_name].append(n_batches * batch_size * length / seconds)
        finally:
            bench.rows += build_rows(f"batches of {batch_size} x {length} ({name})", speeds, "tokens/s")


def _make_workloads(task: TextTask, batch_size: int, n_batches: int) -> dict[str, Callable[[], None]]:
    """Make a workload of `n_batches` batches for each way of loading."""
    tokens_in_memory = torch.from_numpy(task.train_ids.astype(np.int64))

    def load_with_loop(step: int) -> Batch:
        n_starts = task.train_tokens - task.length
        starts = torch.randint(n_starts, (batch_size,), generator=make_generator(0, step)).tolist()
        return {
            "tokens": torch.stack([tokens_in_memory[start : start + task.length] for start in starts]),
            "targets": torch.stack(
                [tokens_in_memory[start + 1 : start + 1 + task.length] for start in starts]
            ),
        }

    def load_mapped(step: int) -> Batch:
        return task.train_batch(0, step, batch_size)

    def load_in_memory(step: int) -> Batch:
        n_starts = task.train_tokens - task.length
        starts = torch.randint(n_starts, (batch_size,), generator=make_generator(0, step))
        return task.gather_windows(tokens_in_memory.numpy(), starts.numpy())

    assert all(torch.equal(load_with_loop(3)[key], batch) for key, batch in load_mapped(3).items()), (
        "not the same windows"
    )
    return {
        "a loop over a tensor in memory": lambda: _consume_batches(map(load_with_loop, range(n_batches))),
        "the same as below, in memory": lambda: _consume_batches(map(load_in_memory, range(n_batches))),
        "mapped tokens": lambda: _consume_batches(map(load_mapped, range(n_batches))),
        "mapped tokens, the loader": lambda: _consume_batches(
            StepLoader(lambda step: [load_mapped(step)], lambda: 0, n_batches, workers=0)
        ),
    }


def _consume_batches(batches: Any) -> None:
    for _ in batches:
        pass


def _time_call(workload: Callable[[], object]) -> float:
    start_time = time.perf_counter()
    workload()
    return time.perf_counter() - start_time
