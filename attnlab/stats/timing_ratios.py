"""Measured times: medians of interleaved repeats and the ratio of two medians.

The ratio resamples whole blocks, the same ones for both arms, because a slow moment of the machine slows both
halves of a block. Resampling single repeats would treat that drift as noise between the arms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import BootstrapDraws, IntervalResult, Values, validate_finite, validate_fraction

Blocks = Sequence[float] | Sequence[Sequence[float]] | np.ndarray


@dataclass(frozen=True)
class RatioEstimate(IntervalResult):
    """A ratio of medians, or a single median, with its interval at `level`."""

    n: int  # blocks, or samples for a single median
    estimate: float
    low: float | None
    high: float | None
    level: float


def estimate_median(samples: Values, level: float = 0.95) -> RatioEstimate:
    """Median with its exact order-statistic interval; None below the sample size it needs (6 for 95%)."""
    from scipy import stats  # imported here: takes a second, which planning does not need

    values = validate_finite(samples, "samples")
    middle = float(np.median(values))
    interval = stats.quantile_test(values, q=middle, p=0.5).confidence_interval(
        validate_fraction(level, "level")
    )
    if np.isnan([interval.low, interval.high]).any():
        return RatioEstimate(values.size, middle, None, None, level)
    return RatioEstimate(values.size, middle, float(interval.low), float(interval.high), level)


def bootstrap_ratio(
    a_blocks: Blocks, b_blocks: Blocks, seed: int = 0, resamples: int = 9999
) -> BootstrapDraws:
    """median(a) / median(b) with its bootstrap over blocks: evidence for a claim about a ratio.

    Args:
        a_blocks: one number per block, or [block, repeat]; block k of both arms was measured in the same
            moment.
    """
    a = _build_block_table(a_blocks, "first arm")
    b = _build_block_table(b_blocks, "second arm")
    if len(a) != len(b):
        raise ValueError(f"ratio: {len(a)} and {len(b)} blocks; interleaved arms need the same number")
    picks = np.random.default_rng(seed).integers(len(a), size=(resamples, len(a)))
    draws = np.median(a[picks], axis=(1, 2)) / np.median(b[picks], axis=(1, 2))
    return BootstrapDraws(len(a), float(np.median(a) / np.median(b)), draws)


def estimate_ratio_of_medians(
    a_blocks: Blocks, b_blocks: Blocks, level: float = 0.95, seed: int = 0
) -> RatioEstimate:
    """`bootstrap_ratio` with its percentile interval; no interval for one block."""
    draws = bootstrap_ratio(a_blocks, b_blocks, seed)
    low, high = draws.interval(level) or (None, None)
    return RatioEstimate(draws.n, draws.estimate, low, high, level)


def _build_block_table(blocks: Blocks, label: str) -> np.ndarray:
    table = np.asarray(blocks, dtype=float)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2:
        raise ValueError(f"{label}: need one number per block or [block, repeat], got shape {table.shape}")
    if validate_finite(table.ravel(), label).min() <= 0:
        raise ValueError(f"{label}: a time of {table.min()} is not positive")
    return table
