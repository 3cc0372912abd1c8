"""Workloads: interleaved sampling of those that the machine supports, and the time of a stream's steps."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from attnlab.attention.contracts import Unsupported
from attnlab.errors import OUT_OF_MEMORY, is_out_of_memory
from attnlab.measure.step_timing import interleave_calls, synchronize_device


def sample_supported(
    workloads: Mapping[str, Callable[[], float]], rounds: int, log: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Sample the supported workloads interleaved, and return notes on the unsupported ones."""
    notes: dict[str, str] = {}
    for name, workload in workloads.items():
        note = try_workload(workload)
        if note is not None:
            notes[name] = note
    supported = {name: workload for name, workload in workloads.items() if name not in notes}
    return (interleave_calls(supported, rounds, log, warm_up=False) if supported else {}), notes


def try_workload(workload: Callable[[], Any]) -> str | None:
    """Run a workload once; return None, or the reason of a failure: unsupported or out of memory."""
    try:
        workload()
    except Unsupported as error:
        return str(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return OUT_OF_MEMORY
    return None


def time_steps_ms(stream: Iterator[torch.Tensor], device: str) -> float:
    """Return the milliseconds per step of the rest of a stream."""
    synchronize_device(device)
    start_time = time.perf_counter()
    n_steps = sum(1 for _ in stream)
    synchronize_device(device)
    return (time.perf_counter() - start_time) * 1e3 / n_steps
