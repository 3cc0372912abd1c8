"""Kernels of one attention layer by length, forward and forward with backward, against the roofline."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from attnlab.attention.contracts import AttentionInputs, Kernel
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.masks.causal import causal
from attnlab.measure.step_timing import make_timer
from attnlab.model.build import select_device
from benchmarks import BenchResult
from benchmarks.bench_config import compose_local_config, is_debug, measure_limits
from benchmarks.bench_rows import build_rows
from benchmarks.workloads import sample_supported

OVERRIDES = ["model.dim=256", "model.n_heads=8", "data.length=64", "data.batch_size=1", "logger=none"]
ROUNDS = 3
LENGTHS = {
    "cpu": (128, 256, 512, 1024, 2048),
    "cuda": (1024, 2048, 4096, 8192, 16384, 32768, 65536),
    "debug": (16, 32),
}
KERNELS: Mapping[str, Kernel] = {"eager": eager, "sdpa": sdpa, "flex": Flex()}
prepare = partial(compose_local_config, OVERRIDES)


def measure(config: Mapping[str, Any], bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure causal multi-head attention.

    The reference of a group is the first supported kernel, eager if possible.
    """
    device = select_device(config)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    limits = measure_limits(config, dtype, bench, log)
    bench.conditions["kernels"] = str(dtype)
    n_heads = config["model"]["n_heads"]
    width = config["model"]["dim"] // n_heads
    for length in LENGTHS["debug" if is_debug(config) else device]:
        for backward in (False, True):
            group = f"T = {length}, " + ("forward and backward" if backward else "forward")
            log(group)
            torch.compiler.reset()  # torch keeps eight graphs of a function, and then runs it uncompiled
            workloads = {
                name: make_timer(
                    _make_workload(kernel, length, n_heads, width, device, dtype, backward), 1, device
                )
                for name, kernel in KERNELS.items()
            }
            samples, notes = sample_supported(workloads, rounds, log)
            flops = (
                4 * n_heads * length**2 * width // 2 * (7 if backward else 2) // 2
            )  # causal: half of the T x T scores
            bytes_moved = 4 * n_heads * length * width * dtype.itemsize * (3 if backward else 1)
            roofline_ms = limits.minimum_ms(bytes_moved, flops)
            facts = {name: {"flops": flops, "bytes": bytes_moved} for name in samples}
            bench.rows += build_rows(group, samples, "ms", dict.fromkeys(samples, roofline_ms), facts, notes)


def _make_workload(
    kernel: Kernel,
    length: int,
    n_heads: int,
    width: int,
    device: str,
    dtype: torch.dtype,
    backward: bool,
) -> Callable[[], None]:
    """Make a workload that allocates its tensors per call, so that out of memory fails only that call."""
    positions = torch.arange(length, device=device)
    q_idx = positions[None, None, :, None]
    kv_idx = positions[None, None, None, :]

    def run_kernel() -> None:
        q, k, v = (
            torch.randn(1, n_heads, length, width, device=device, dtype=dtype, requires_grad=backward)
            for _ in range(3)
        )
        out = kernel(
            AttentionInputs(q, k, v, q_idx, kv_idx, scale=width**-0.5, mask=causal, aligned=True)
        ).out
        if backward:
            out.sum().backward()

    return run_kernel
