"""Variance components of a crossed design without replication: rows, columns, and the rest.

A run at row i and column j has the value mean + row i + column j + rest. All three effects are random. The
estimates equate mean squares with their expectations (Searle, Casella & McCulloch 1992, section 4.4).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attnlab.stats.evidence import validate_finite

FloatArray = NDArray[np.float64]
MIN_LEVELS = 3  # rows, and columns


@dataclass(frozen=True)
class CrossedComponents:
    """Variances by source. A negative estimate of `rows` or `columns` is reported as 0, and named.

    `total` is the variance of one run whose row and column are both drawn anew: the unbiased sum of the
    estimates before truncation. `df` are its effective degrees of freedom (Satterthwaite 1946).
    """

    mean: float
    rows: float
    columns: float
    rest: float
    total: float
    df: float
    truncated: tuple[str, ...]

    @property
    def sd(self) -> float:
        """The standard deviation of one run."""
        return math.sqrt(self.total)

    def compute_sd_interval(self, level: float = 0.95) -> tuple[float, float]:
        """The interval of `sd`: chi squared with `df` degrees of freedom.

        Approximate: simulated 95% intervals of 3 to 8 rows and columns cover 90 to 98%.
        """
        tail = (1 - level) / 2
        low, high = (self.total * self.df / special.chdtri(self.df, q) for q in (tail, 1 - tail))
        return math.sqrt(low), math.sqrt(high)


def estimate_crossed_components(values: FloatArray) -> CrossedComponents:
    """Estimate the components of values [row, column], one run per cell.

    Raises:
        ValueError: a value is missing (not finite), all are equal, or there are fewer than three rows or
            columns: with two of each, the total may be 0.
    """
    n_rows, n_columns = values.shape
    if min(values.shape) < MIN_LEVELS:
        raise ValueError(f"shape {values.shape}: the design needs {MIN_LEVELS} rows and columns")
    validate_finite(values.flatten(), "values")
    if np.ptp(values) == 0:
        raise ValueError("all values are equal, so they have no noise")
    mean = values.mean()
    rows, columns = values.mean(1, keepdims=True) - mean, values.mean(0, keepdims=True) - mean
    dfs = (n_rows - 1, n_columns - 1, (n_rows - 1) * (n_columns - 1))
    sums = (
        n_columns * (rows**2).sum(),
        n_rows * (columns**2).sum(),
        ((values - mean - rows - columns) ** 2).sum(),
    )
    parts = [(float(square) / df, df) for square, df in zip(sums, dfs, strict=True)]
    row_square, column_square, rest = (mean_square for mean_square, _ in parts)
    components = {
        "rows": (row_square - rest) / n_columns,
        "columns": (column_square - rest) / n_rows,
    }
    weights = (1 / n_columns, 1 / n_rows, 1 - 1 / n_columns - 1 / n_rows)
    terms = [weight * mean_square for weight, (mean_square, _) in zip(weights, parts, strict=True)]
    total = sum(terms)
    df = total**2 / sum(term**2 / df for term, (_, df) in zip(terms, parts, strict=True))
    return CrossedComponents(
        mean=float(mean),
        rows=max(0.0, components["rows"]),
        columns=max(0.0, components["columns"]),
        rest=rest,
        total=total,
        df=df,
        truncated=tuple(name for name, variance in components.items() if variance < 0),
    )


def estimate_sampling_error(sums: FloatArray, counts: FloatArray) -> float:
    """The standard error of sum(sums) / sum(counts) over the drawn windows (ratio estimator).

    Args:
        sums: the sum of the scores of each window, or of their differences between two arms.
        counts: the number of scored targets of each window.

    Raises:
        ValueError: there are fewer than two windows, or none has a target.
    """
    n, total = counts.size, float(counts.sum())
    if n < 2 or total <= 0:
        raise ValueError(f"{n} windows with {total:g} targets: a standard error needs two windows")
    residuals = sums - counts * (sums.sum() / total)
    return math.sqrt(n / (n - 1) * float((residuals**2).sum())) / total
