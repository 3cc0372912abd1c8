"""Scores of random queries and keys: growth with the head dim, and the effect of softmax.

The only property of a model is the exponent of its scale.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.studies.fits import fit_exponent, validate_increasing, validate_positive
from attnlab.model.initialization import make_named_generator
from attnlab.store.run_schema import Metric

QUERIES_PER_BATCH = 1024
METRICS = (
    Metric("growth/variance", "exponent of the score variance"),
    Metric("growth/magnitude", "exponent of the typical score magnitude"),
    Metric("scores/variance_over_dim", "score variance over dim"),
    Metric("softmax/largest", "mean largest weight"),
    Metric("softmax/entropy", "entropy relative to uniform weights"),
    Metric("softmax/jacobian", "trace of the softmax Jacobian"),
)


class QKScores:
    """Samples scores q·k * d^scale_exponent for each head dim d of `dims`.

    Entries of q and k are independent N(0, 1). There are `queries` queries, each over `keys` keys of its own.

    Metrics: `growth/variance` and `growth/magnitude`, exponents over d of the scores' variance and mean
    absolute value; and at the head dim `at`: `scores/variance_over_dim`; `softmax/largest`, the largest
    weight; `softmax/entropy`, in units of ln(keys); `softmax/jacobian`, the trace 1 - sum of squares, which
    scales gradients.
    """

    metrics = METRICS
    shapes_only = True

    def __init__(
        self, dims: Sequence[int], at: int, keys: int, queries: int, scale_exponent: float, seed: int
    ) -> None:
        validate_positive(keys=keys, queries=queries)
        self.dims = validate_increasing(dims, "measurement.dims")
        self.at = at
        if at not in self.dims or keys < 2:
            raise ValueError(f"measurement: at={at} must be one of dims={list(dims)}, and keys at least 2")
        self.keys = keys
        self.queries = queries
        self.scale_exponent = scale_exponent
        self.seed = seed

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Sample the scores of every head dim, the same numbers for the same seed."""
        variance = {}
        magnitude = {}
        softmax = {}
        for dim in self.dims:
            scores = self._sample_scores(dim)
            variance[dim], magnitude[dim] = scores.var().item(), scores.abs().mean().item()
            weights = scores.softmax(-1)
            softmax[dim] = {
                "largest": weights.amax(-1).mean().item(),
                "entropy": (torch.special.entr(weights).sum(-1).mean() / math.log(self.keys)).item(),
                "jacobian": (1 - weights.square().sum(-1)).mean().item(),
            }
        metrics = {
            "growth/variance": fit_exponent(variance),
            "growth/magnitude": fit_exponent(magnitude),
            "scores/variance_over_dim": variance[self.at] / self.at,
            **{f"softmax/{name}": value for name, value in softmax[self.at].items()},
        }
        series = {f"softmax_{name}": {d: softmax[d][name] for d in self.dims} for name in softmax[self.at]}
        return MeasurementResult(metrics, series=series)

    def _sample_scores(self, dim: int) -> torch.Tensor:
        generator = make_named_generator(self.seed, f"scores/{dim}")
        parts = []
        for start in range(0, self.queries, QUERIES_PER_BATCH):
            rows = min(QUERIES_PER_BATCH, self.queries - start)
            q = torch.randn(rows, 1, dim, generator=generator)
            k = torch.randn(rows, dim, self.keys, generator=generator)
            parts.append((q @ k).squeeze(1).double() * dim**self.scale_exponent)
        return torch.cat(parts)
