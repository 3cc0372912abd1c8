"""Growth of a kernel's time and memory with the length.

Exponents are fitted over the upper lengths, for the forward pass and with the backward pass. The crossover is
the length at which a block's attention costs as many FLOPs as the rest of the block.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.contracts import AttentionInputs, Kernel
from attnlab.attention.masks.causal import causal
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.resources import count_saved_bytes, reference_kernel
from attnlab.measure.step_timing import interleave_calls, make_timer
from attnlab.measure.studies.fits import fit_exponent, take_upper_half, validate_increasing, validate_positive
from attnlab.store.run_schema import Metric

METRICS = (
    Metric("exponent/saved", "exponent of the bytes saved for the backward pass", "", "lower", "count"),
    Metric(
        "crossover/over_dim",
        "length at which attention FLOPs exceed all others, in units of dim",
        kind="count",
    ),
    Metric("exponent/forward", "exponent of the forward time", kind="time"),
    Metric("exponent/step", "exponent of the forward and backward time", kind="time"),
    Metric("exponent/peak", "exponent of the peak memory", "", "lower"),
)


class KernelScaling:
    """Fits exponents of time and memory over length.

    Metrics: `exponent/forward` and `exponent/step` (with backward), of time; `exponent/saved`, of the counted
    bytes saved for the backward pass; on a GPU `exponent/peak`, of the peak bytes allocated in a step;
    `crossover/over_dim`, the crossover length in units of the model's dim.
    """

    metrics = METRICS
    shapes_only = True

    def __init__(
        self,
        kernel: Kernel,
        lengths: Sequence[int],
        head_dim: int,
        n_heads: int = 1,
        rounds: int = 2,
        bf16: bool = False,
    ) -> None:
        validate_positive(head_dim=head_dim, n_heads=n_heads, rounds=rounds)
        self.lengths = validate_increasing(lengths, "measurement.lengths", min_count=3)
        self.kernel = kernel
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.rounds = rounds
        self.dtype = torch.bfloat16 if bf16 else torch.float32

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Count, then time."""
        saved_bytes = {n: self._count_saved_bytes(n, device) for n in self.lengths}
        counts = {
            "exponent/saved": fit_exponent(take_upper_half(saved_bytes)),
            "crossover/over_dim": self._compute_crossover(module),
        }
        works = {
            (kind, n): make_timer(self._make_work(n, device, kind == "step"), 1, device)
            for n in self.lengths
            for kind in ("forward", "step")
        }
        samples = interleave_calls(works, self.rounds)
        times = {kind: {n: median(samples[kind, n]) for n in self.lengths} for kind in ("forward", "step")}
        timings = {
            f"exponent/{kind}": fit_exponent(take_upper_half(by_length)) for kind, by_length in times.items()
        }
        series = {f"attention_ms/{kind}": by_length for kind, by_length in times.items()}
        series["attention_saved_bytes"] = {n: float(value) for n, value in saved_bytes.items()}
        peaks = {}
        if device == "cuda":
            series["attention_peak_bytes"] = {n: self._measure_peak_bytes(n, device) for n in self.lengths}
            peaks = {"exponent/peak": fit_exponent(take_upper_half(series["attention_peak_bytes"]))}
        return MeasurementResult(counts | timings | peaks, series=series)

    def _make_inputs(self, length: int, device: str, gradient: bool) -> list[Tensor]:
        shape = (1, self.n_heads, length, self.head_dim)
        return [torch.randn(shape, device=device, dtype=self.dtype, requires_grad=gradient) for _ in range(3)]

    def _attend(self, inputs: Sequence[Tensor]) -> Tensor:
        positions = torch.arange(inputs[0].shape[2], device=inputs[0].device)
        q_idx = positions[None, None, :, None]
        kv_idx = positions[None, None, None, :]
        scale = self.head_dim**-0.5
        q, k, v = inputs
        return self.kernel(AttentionInputs(q, k, v, q_idx, kv_idx, scale, causal, aligned=True)).out

    def _make_work(self, length: int, device: str, backward: bool) -> Callable[[], None]:
        """Return a function that runs the kernel once.

        Tensors are created at each call: those of many lengths may not fit in memory together.
        """

        def run_kernel() -> None:
            with torch.set_grad_enabled(backward):
                out = self._attend(self._make_inputs(length, device, backward))
            if backward:
                out.sum().backward()

        return run_kernel

    def _count_saved_bytes(self, length: int, device: str) -> int:
        inputs = self._make_inputs(length, device, gradient=True)
        return count_saved_bytes(lambda: self._attend(inputs).sum(), nn.Identity())

    def _measure_peak_bytes(self, length: int, device: str) -> float:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._make_work(length, device, backward=True)()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated())

    def _compute_crossover(self, module: Any) -> float:
        """Return the crossover length over dim, from FLOPs counted at two lengths.

        FLOPs of a block are a n + b n², so the two terms are equal at n = a / b.
        """
        block = module.model.blocks[0]
        dim = module.model.embedding.embedding_dim
        n = self.lengths[0]
        short, long = (self._count_block_flops(module, block, dim, length) / length for length in (n, 2 * n))
        per_key = (long - short) / n
        return (short - per_key * n) / per_key / dim

    @staticmethod
    def _count_block_flops(module: Any, block: nn.Module, dim: int, length: int) -> int:
        with reference_kernel(module.model), FlopCounterMode(display=False) as counter, torch.no_grad():
            block(torch.empty(1, length, dim, device="meta", dtype=next(block.parameters()).dtype))
        return counter.get_total_flops()
