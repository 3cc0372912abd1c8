"""How a kernel's time and memory grow with the length: exponents over the upper lengths, forward and with the
backward pass; and the length at which a block's attention costs as many FLOPs as all else in it.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.contracts import AttentionInputs, Kernel
from attnlab.attention.masks.causal import causal
from attnlab.measure.measurement import Measured
from attnlab.measure.size import reference_kernel, saved_for_backward
from attnlab.measure.studies.fits import exponent, increasing, positive, upper
from attnlab.measure.timing import interleave, timed
from attnlab.store.schema import Metric

METRICS = (
    Metric("exponent/saved", "exponent of the bytes kept for the backward pass", "", "lower", "count"),
    Metric(
        "crossover/over_dim", "length at which attention's FLOPs pass the rest's, in widths", kind="count"
    ),
    Metric("exponent/forward", "exponent of the forward time", kind="time"),
    Metric("exponent/step", "exponent of the time forward and backward", kind="time"),
    Metric("exponent/peak", "exponent of the peak memory", "", "lower"),
)


class Scaling:
    """Metrics: `exponent/forward` and `exponent/step` (with backward) of time over length, `exponent/saved`
    of the bytes kept for the backward pass, counted; on a GPU `exponent/peak` of the bytes allocated at
    most in a step; `crossover/over_dim`, the crossing of attention's FLOPs and the rest's in units of the
    model's width.
    """

    on_paper = True

    def __init__(
        self,
        kernel: Kernel,
        lengths: Sequence[int],
        head_dim: int,
        n_heads: int = 1,
        rounds: int = 2,
        bf16: bool = False,
    ) -> None:
        positive(head_dim=head_dim, n_heads=n_heads, rounds=rounds)
        self.lengths = increasing(lengths, "measurement.lengths", least=3)
        self.kernel = kernel
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.rounds = rounds
        self.dtype = torch.bfloat16 if bf16 else torch.float32

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in METRICS]

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Counts, then times."""
        saved = {n: self._saved(n, device) for n in self.lengths}
        counted = {"exponent/saved": exponent(upper(saved)), "crossover/over_dim": self._crossover(module)}
        works = {
            (kind, n): timed(self._work(n, device, kind == "step"), 1, device)
            for n in self.lengths
            for kind in ("forward", "step")
        }
        samples = interleave(works, self.rounds)
        times = {kind: {n: median(samples[kind, n]) for n in self.lengths} for kind in ("forward", "step")}
        timings = {f"exponent/{kind}": exponent(upper(by_length)) for kind, by_length in times.items()}
        series = {f"attention_ms/{kind}": by_length for kind, by_length in times.items()}
        series["attention_saved_bytes"] = {n: float(value) for n, value in saved.items()}
        peaks = {}
        if device == "cuda":
            series["attention_peak_bytes"] = {n: self._peak(n, device) for n in self.lengths}
            peaks = {"exponent/peak": exponent(upper(series["attention_peak_bytes"]))}
        return Measured(counted | timings | peaks, declared=METRICS, series=series)

    def _inputs(self, length: int, device: str, gradient: bool) -> list[Tensor]:
        shape = (1, self.n_heads, length, self.head_dim)
        return [torch.randn(shape, device=device, dtype=self.dtype, requires_grad=gradient) for _ in range(3)]

    def _attend(self, inputs: Sequence[Tensor]) -> Tensor:
        where = torch.arange(inputs[0].shape[2], device=inputs[0].device)
        q_pos = where[None, None, :, None]
        kv_pos = where[None, None, None, :]
        scale = self.head_dim**-0.5
        q, k, v = inputs
        return self.kernel(AttentionInputs(q, k, v, q_pos, kv_pos, scale, causal, aligned=True)).out

    def _work(self, length: int, device: str, backward: bool) -> Callable[[], None]:
        """Tensors are made at each call: what many lengths would hold together may not fit."""

        def work() -> None:
            with torch.set_grad_enabled(backward):
                out = self._attend(self._inputs(length, device, backward))
            if backward:
                out.sum().backward()

        return work

    def _saved(self, length: int, device: str) -> int:
        inputs = self._inputs(length, device, gradient=True)
        return saved_for_backward(lambda: self._attend(inputs).sum(), nn.Identity())

    def _peak(self, length: int, device: str) -> float:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._work(length, device, backward=True)()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated())

    def _crossover(self, module: Any) -> float:
        """FLOPs of a block are a n + b n², so they cross at n = a / b; from counts at two lengths."""
        block = module.model.blocks[0]
        dim = module.model.embedding.embedding_dim
        n = self.lengths[0]
        short, long = (self._flops(module, block, dim, length) / length for length in (n, 2 * n))
        per_key = (long - short) / n
        return (short - per_key * n) / per_key / dim

    @staticmethod
    def _flops(module: Any, block: nn.Module, dim: int, length: int) -> int:
        with reference_kernel(module.model), FlopCounterMode(display=False) as counter, torch.no_grad():
            block(torch.empty(1, length, dim, device="meta", dtype=next(block.parameters()).dtype))
        return counter.get_total_flops()
