"""Roofline of this machine: bytes per second of a large copy, FLOPs per second of a large matrix product.

A model smaller than the last-level cache may exceed the bandwidth.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnlab.measure.step_timing import synchronize_device

COPY_BYTES = 2**28
MATMUL_SIZE = 1024
N_SAMPLES = 5  # on a GPU the copy is 4 times larger and the matrix side 8 times


@dataclass(frozen=True)
class Roofline:
    """Measured throughput in bytes and FLOPs per second."""

    bytes_per_s: float
    flops_per_s: float

    def minimum_ms(self, bytes_: float, flops: float) -> float:
        """Return the shortest time in milliseconds that both limits allow."""
        return 1e3 * max(bytes_ / self.bytes_per_s, flops / self.flops_per_s)


def measure_roofline(device: str, dtype: torch.dtype = torch.float32) -> Roofline:
    """Measure now: the fastest of a few copies (each byte read and written once) and products."""
    gpu = device == "cuda"
    source = torch.zeros(COPY_BYTES * (4 if gpu else 1) // 4, device=device)
    target = torch.empty_like(source)
    side = MATMUL_SIZE * (8 if gpu else 1)
    square = torch.ones(side, side, device=device, dtype=dtype)
    copy = _time_fastest(lambda: target.copy_(source), device)
    product = _time_fastest(lambda: square @ square, device)
    return Roofline(2 * source.numel() * source.element_size() / copy, 2 * side**3 / product)


def _time_fastest(work: Callable[[], object], device: str) -> float:
    seconds = []
    for _ in range(N_SAMPLES):
        synchronize_device(device)
        start = time.perf_counter()
        work()
        synchronize_device(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
