"""One attention layer's kernels over the length: forward, and forward with backward, against the roofline."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from attnlab.attention.contracts import AttentionInputs, Kernel
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.masks.causal import causal
from attnlab.cli.bench import Bench
from attnlab.cli.bench.rows import rows
from attnlab.cli.bench.setup import conditions, here, is_debug
from attnlab.cli.bench.trials import survey
from attnlab.measure.roofline import roofline
from attnlab.measure.timing import timed
from attnlab.model.build import device_of

OVERRIDES = ["model.dim=256", "model.n_heads=8", "data.length=64", "data.batch_size=1", "logger=none"]
ROUNDS = 3
LENGTHS = {
    "cpu": (128, 256, 512, 1024, 2048),
    "cuda": (1024, 2048, 4096, 8192, 16384, 32768, 65536),
    "debug": (16, 32),
}
KERNELS: Mapping[str, Kernel] = {"eager": eager, "sdpa": sdpa, "flex": Flex()}
prepare = partial(here, OVERRIDES)


def measure(config: Mapping[str, Any], bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Causal attention with as many KV heads as heads; the first row of a group is the eager reference, or
    the first kernel that can do it here.
    """
    device = device_of(config)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    say("measuring copy bandwidth and matrix products")
    limits = roofline(device, dtype)
    n_heads = config["model"]["n_heads"]
    width = config["model"]["dim"] // n_heads
    bench.conditions |= conditions(config) | {
        "copy_bytes_per_s": limits.bytes_per_s,
        "matmul_flops_per_s": limits.flops_per_s,
        "kernels": str(dtype),
    }
    for length in LENGTHS["debug" if is_debug(config) else device]:
        for backward in (False, True):
            group = f"T = {length}, " + ("forward and backward" if backward else "forward")
            say(group)
            works = {
                name: timed(_work(kernel, length, n_heads, width, device, dtype, backward), 1, device)
                for name, kernel in KERNELS.items()
            }
            samples, notes = survey(works, rounds, say)
            flops = 4 * n_heads * length**2 * width // 2 * (7 if backward else 2) // 2  # half the square
            moved = 4 * n_heads * length * width * dtype.itemsize * (3 if backward else 1)
            floor = limits.milliseconds(moved, flops)
            facts = {name: {"flops": flops, "bytes": moved} for name in samples}
            bench.rows += rows(group, samples, "ms", dict.fromkeys(samples, floor), facts, notes)


def _work(
    kernel: Kernel,
    length: int,
    n_heads: int,
    width: int,
    device: str,
    dtype: torch.dtype,
    backward: bool,
) -> Callable[[], None]:
    """Tensors are made at each call, so that what does not fit is that call's trouble."""
    where = torch.arange(length, device=device)
    q_pos = where[None, None, :, None]
    kv_pos = where[None, None, None, :]

    def work() -> None:
        q, k, v = (
            torch.randn(1, n_heads, length, width, device=device, dtype=dtype, requires_grad=backward)
            for _ in range(3)
        )
        out = kernel(
            AttentionInputs(q, k, v, q_pos, kv_pos, scale=width**-0.5, mask=causal, aligned=True)
        ).out
        if backward:
            out.sum().backward()

    return work
