"""Measured times: medians of interleaved repeats and the ratio of two medians.

Surprising: the ratio resamples whole blocks, the same ones for both arms, because a slow moment of the
machine slows both halves of a block; resampling single repeats would call that drift noise between the arms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import Draws, Ends, Values, finite, fraction

Blocks = Sequence[float] | Sequence[Sequence[float]] | np.ndarray


@dataclass(frozen=True)
class Ratio(Ends):
    n: int  # blocks, or samples for a single median
    estimate: float
    low: float | None
    high: float | None
    level: float


def median_interval(samples: Values, level: float = 0.95) -> Ratio:
    """Median with its exact order-statistic interval; None below the samples that it takes (6 for 95 %)."""
    from scipy import stats  # takes a second to import, which a plan does not need

    values = finite(samples, "samples")
    middle = float(np.median(values))
    interval = stats.quantile_test(values, q=middle, p=0.5).confidence_interval(fraction(level, "level"))
    if np.isnan([interval.low, interval.high]).any():
        return Ratio(values.size, middle, None, None, level)
    return Ratio(values.size, middle, float(interval.low), float(interval.high), level)


def ratio_draws(a_blocks: Blocks, b_blocks: Blocks, seed: int = 0, resamples: int = 9999) -> Draws:
    """median(a) / median(b) with its bootstrap over blocks: evidence for a claim about a ratio.

    Either is one number per block or [block, repeat]; block k of both was measured in the same moment.
    """
    a = _table(a_blocks, "first arm")
    b = _table(b_blocks, "second arm")
    if len(a) != len(b):
        raise ValueError(f"ratio: {len(a)} and {len(b)} blocks; interleaved arms have equally many")
    picks = np.random.default_rng(seed).integers(len(a), size=(resamples, len(a)))
    draws = np.median(a[picks], axis=(1, 2)) / np.median(b[picks], axis=(1, 2))
    return Draws(len(a), float(np.median(a) / np.median(b)), draws)


def ratio_of_medians(a_blocks: Blocks, b_blocks: Blocks, level: float = 0.95, seed: int = 0) -> Ratio:
    """`ratio_draws` with its percentile interval; no interval for one block."""
    draws = ratio_draws(a_blocks, b_blocks, seed)
    low, high = draws.interval(level) or (None, None)
    return Ratio(draws.n, draws.estimate, low, high, level)


def _table(blocks: Blocks, what: str) -> np.ndarray:
    table = np.asarray(blocks, dtype=float)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2:
        raise ValueError(f"{what}: need one number per block or [block, repeat], got shape {table.shape}")
    if finite(table.ravel(), what).min() <= 0:
        raise ValueError(f"{what}: a time of {table.min()} is not positive")
    return table
