"""What this machine allows: bytes a second of a large copy, and FLOPs a second of a large matrix product.

A model smaller than the last level of cache may beat the first; the figure says how far from memory it is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnlab.measure.timing import wait

COPY_BYTES = 2**28
SIDE = 1024
REPEATS = 5  # of a GPU: four times the bytes, eight times the side


@dataclass(frozen=True)
class Roofline:
    """Bytes and FLOPs a second."""

    bytes_per_s: float
    flops_per_s: float

    def milliseconds(self, bytes_: float, flops: float) -> float:
        """The least time that both allow."""
        return 1e3 * max(bytes_ / self.bytes_per_s, flops / self.flops_per_s)


def roofline(device: str, dtype: torch.dtype = torch.float32) -> Roofline:
    """Measured now: the best of a few copies (each byte read and written once) and products."""
    gpu = device == "cuda"
    source = torch.zeros(COPY_BYTES * (4 if gpu else 1) // 4, device=device)
    target = torch.empty_like(source)
    side = SIDE * (8 if gpu else 1)
    square = torch.ones(side, side, device=device, dtype=dtype)
    copy = _best(lambda: target.copy_(source), device)
    product = _best(lambda: square @ square, device)
    return Roofline(2 * source.numel() * source.element_size() / copy, 2 * side**3 / product)


def _best(work: Callable[[], object], device: str) -> float:
    seconds = []
    for _ in range(REPEATS):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
