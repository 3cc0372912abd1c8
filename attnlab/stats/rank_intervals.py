"""Simultaneous confidence intervals for the ranks of many arms, from seeds that all arms share.

Every pair of arms is tested in both directions, and Holm's method controls the error rate of all these tests
together. An arm ranks behind all arms that are shown to be better than it, and before all that are shown to
be worse; with probability 1 - alpha no interval of the table misses its arm's rank (the idea of Mogstad et
al. 2024, Rev. Econ. Stud. 91:476, with paired t tests). No equal spread of the arms is assumed. The price is
power: 42 arms have 861 pairs.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from attnlab.stats.claim_family import adjust_holm_p_values
from attnlab.stats.evidence import PairedDifferences, validate_fraction
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
    count = len(values_AS)
    directions, p_values = [], []
    for arm, other in combinations(range(count), 2):
        differences = values_AS[other] - values_AS[arm]
        sample = PairedDifferences([] if np.isnan(differences).any() else differences, stopping_rule)
        directions += [(arm, other), (other, arm)]
        p_values += [sample.p_above(0), sample.p_below(0)]
    intervals = [RankInterval(1, count)] * count
    adjusted = adjust_holm_p_values([1.0 if p is None else p for p in p_values])
    for (better, worse), p in zip(directions, adjusted, strict=True):
        if p <= alpha:
            intervals[better] = replace(intervals[better], high=intervals[better].high - 1)
            intervals[worse] = replace(intervals[worse], low=intervals[worse].low + 1)
    return intervals
