"""Scores of random queries and keys: how large they grow with the width of a head, and what softmax makes of
them. Nothing of a model is used but the exponent of its scale.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from attnlab.measure.measurement import Measured
from attnlab.measure.studies.fits import exponent, increasing, positive
from attnlab.model.initial import named_generator
from attnlab.store.schema import Metric

ROWS = 1024  # queries at a time
METRICS = (
    Metric("growth/variance", "exponent of the scores' variance"),
    Metric("growth/magnitude", "exponent of the scores' typical size"),
    Metric("scores/variance_over_dim", "variance of a score over the width"),
    Metric("softmax/largest", "mean of the largest weight"),
    Metric("softmax/entropy", "entropy over that of uniform weights"),
    Metric("softmax/jacobian", "trace of the softmax's Jacobian"),
)


class Scores:
    """Entries of q and k are independent N(0, 1); scores are q·k * d^scale_exponent for each width d of
    `dims`, `queries` queries over `keys` keys of their own each.

    Metrics: `growth/variance` and `growth/magnitude`, exponents over d of the scores' variance and of their
    mean size; and at the width `at`: `scores/variance_over_dim`, `softmax/largest` weight,
    `softmax/entropy` in units of ln(keys), `softmax/jacobian`, the trace 1 - sum of squares, through which
    gradients pass.
    """

    on_paper = True

    def __init__(
        self, dims: Sequence[int], at: int, keys: int, queries: int, scale_exponent: float, seed: int
    ) -> None:
        positive(keys=keys, queries=queries)
        self.dims = increasing(dims, "measurement.dims")
        self.at = at
        if at not in self.dims or keys < 2:
            raise ValueError(f"measurement: at={at} must be one of dims={list(dims)}, and keys at least 2")
        self.keys = keys
        self.queries = queries
        self.scale_exponent = scale_exponent
        self.seed = seed

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in METRICS]

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Draws the scores of every width, the same numbers for the same seed."""
        variance = {}
        magnitude = {}
        softmax = {}
        for dim in self.dims:
            scores = self._scores(dim)
            variance[dim], magnitude[dim] = scores.var().item(), scores.abs().mean().item()
            weights = scores.softmax(-1)
            softmax[dim] = {
                "largest": weights.amax(-1).mean().item(),
                "entropy": (torch.special.entr(weights).sum(-1).mean() / math.log(self.keys)).item(),
                "jacobian": (1 - weights.square().sum(-1)).mean().item(),
            }
        metrics = {
            "growth/variance": exponent(variance),
            "growth/magnitude": exponent(magnitude),
            "scores/variance_over_dim": variance[self.at] / self.at,
            **{f"softmax/{name}": value for name, value in softmax[self.at].items()},
        }
        series = {f"softmax_{name}": {d: softmax[d][name] for d in self.dims} for name in softmax[self.at]}
        return Measured(metrics, declared=METRICS, series=series)

    def _scores(self, dim: int) -> torch.Tensor:
        generator = named_generator(self.seed, f"scores/{dim}")
        parts = []
        for start in range(0, self.queries, ROWS):
            rows = min(ROWS, self.queries - start)
            q = torch.randn(rows, 1, dim, generator=generator)
            k = torch.randn(rows, dim, self.keys, generator=generator)
            parts.append((q @ k).squeeze(1).double() * dim**self.scale_exponent)
        return torch.cat(parts)
