"""Simultaneous confidence intervals for the ranks of many arms, from seeds that all arms share.

Every pair of arms is tested in both directions, and Holm's method controls the error rate of all these tests
together. An arm ranks behind all arms that are shown to be better than it, and before all that are shown to
be worse; with probability 1 - alpha no interval of the table misses its arm's rank (the idea of Mogstad et
al. 2024, Rev. Econ. Stud. 91:476, with paired t tests). No equal spread of the arms is assumed. The price is
power: 42 arms have 861 pairs.
"""

from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import is_rounding_error, validate_fraction
from attnlab.stats.stopping_rules import FIXED_SAMPLE, StoppingRule


@dataclass(frozen=True)
class RankInterval:
    """The ranks that an arm may have, 1 being the lowest mean."""

    low: int
    high: int


def compute_rank_intervals(
    values_AS: np.ndarray, alpha: float = 0.05, stopping_rule: StoppingRule = FIXED_SAMPLE
) -> list[RankInterval]:
    """Compute the rank interval of every arm; together they hold with probability 1 - alpha.

    Args:
        values_AS: arms x seeds. NaN where an arm has no value: it is not shown to differ from any other arm.
        stopping_rule: that of the interim analysis at which these seeds were counted.

    Raises:
        ValueError: the array is not two-dimensional, or holds an infinite value.
    """
    validate_fraction(alpha, "alpha")
    if values_AS.ndim != 2 or np.isinf(values_AS).any():
        raise ValueError(f"values: need arms x seeds, finite or NaN, got {values_AS.tolist()}")
    is_better_AA = _find_shown_differences(values_AS, alpha, stopping_rule)
    count = len(values_AS)
    return [
        RankInterval(1 + int(is_better_AA[:, arm].sum()), count - int(is_better_AA[arm].sum()))
        for arm in range(count)
    ]


def _find_shown_differences(values_AS: np.ndarray, alpha: float, stopping_rule: StoppingRule) -> np.ndarray:
    """[arm, other]: whether the mean of `arm` is shown to be lower than that of `other`."""
    count, seeds = values_AS.shape
    t_AA = np.full((count, count), -np.inf)
    for arm in range(count):
        for other in range(count):
            differences = values_AS[other] - values_AS[arm]
            sd = float(differences.std(ddof=1)) if seeds > 1 else np.nan
            if np.isfinite(sd) and not is_rounding_error(sd, differences.tolist()):
                t_AA[arm, other] = differences.mean() * np.sqrt(seeds) / sd
    is_shown_AA = np.zeros((count, count), dtype=bool)
    tests = count * (count - 1)
    largest_first = np.argsort(-t_AA, axis=None, kind="stable")[:tests]
    for remaining, position in zip(range(tests, 0, -1), largest_first, strict=True):
        if not t_AA.flat[position] >= stopping_rule.critical_value(seeds, alpha / remaining):
            break  # Holm: no smaller t is tested; without seeds, the critical value is NaN
        is_shown_AA.flat[position] = True
    return is_shown_AA
