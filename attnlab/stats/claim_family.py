"""A preregistered family of claims, each decided at its own Holm level by the interval that the report draws.

A claim that "no difference" would satisfy ("costs at most 0.03") is decided by the interval at 1 - 2 alpha,
as equivalence and non-inferiority are. A claim that asserts a difference is decided by that at 1 - alpha.
A decision at an interim analysis is final; its alpha passes to the claims that are still inconclusive
(Ye et al. 2013, group-sequential Holm).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnlab.stats.evidence import (
    Evidence,
    ExactEvidence,
    IntervalResult,
    Values,
    compute_region_p_value,
    validate_finite,
    validate_fraction,
)


@dataclass(frozen=True)
class ClaimTest:
    """One preregistered claim and its evidence; `evidence` is None where nothing was measured.

    Attributes:
        region: the open interval of values for which the claim holds.
        center: the value of "no difference": 0, or 1 for a ratio.
    """

    evidence: Evidence | None
    region: tuple[float, float]
    center: float = 0.0

    @property
    def is_tolerant(self) -> bool:
        """Whether "no difference" satisfies the claim."""
        return self.region[0] < self.center < self.region[1]

    @cached_property
    def p(self) -> float | None:
        """p-value of "the claim is false": one-sided, doubled where the claim asserts a difference."""
        one_sided = None if self.evidence is None else compute_region_p_value(self.evidence, self.region)
        return one_sided if one_sided is None or self.is_tolerant else min(1.0, 2 * one_sided)


@dataclass(frozen=True)
class Decision(IntervalResult):
    """The numbers that decide one claim: draw this interval and no other."""

    n: int
    estimate: float | None
    low: float | None
    high: float | None
    level: float | None  # of the interval; None for an exact quantity
    alpha: float | None  # allocated to the claim by Holm
    p: float | None  # of "the claim is false"; doubled where it asserts a difference
    p_holm: float | None
    exact: bool
    holds: bool | None = None  # whether the interval decides for or against the claim


def adjust_holm_p_values(pvalues: Values) -> list[float]:
    """Holm-adjusted p-values, in the order given."""
    p = _validate_p_values(pvalues)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return [float(value) for value in adjusted]


def compute_holm_levels(pvalues: Values, alpha: float = 0.05) -> list[float]:
    """Each claim's own alpha: p <= its level exactly where the adjusted p <= alpha.

    All claims that fail get the level at which the procedure stopped. Intervals at these levels agree with
    the decisions; they are not simultaneous intervals.
    """
    p = _validate_p_values(pvalues)
    remaining = len(pvalues)
    levels = np.empty_like(p)
    for index in np.argsort(p, kind="stable"):
        levels[index] = validate_fraction(alpha, "alpha") / remaining
        if p[index] <= levels[index]:
            remaining = max(remaining - 1, 1)
    return [float(level) for level in levels]


def decide_claims(
    claims: Sequence[ClaimTest | None], alpha: float = 0.05, previous: Sequence[Decision] = ()
) -> list[Decision]:
    """Decide every claim of the family at its Holm level; P(any false SUPPORTED) is at most alpha.

    Exact quantities cannot err and use no alpha. A claim without data keeps its share of alpha: the family
    stays as preregistered.

    Args:
        claims: None for a claim that this interim analysis does not test; its previous decision stands.
        previous: the decisions of the previous interim analysis. Those that hold or fail are final, except
            for an identity, which is tested again, as a later pair can break it.
    """
    standing = {
        i: past
        for i, past in enumerate(previous)
        if claims[i] is None or (past.holds is not None and not past.exact)
    }
    open_claims = {i: claim for i, claim in enumerate(claims) if claim is not None and i not in standing}
    exact = {i for i, claim in open_claims.items() if isinstance(claim.evidence, ExactEvidence)}
    exact |= {i for i, decision in standing.items() if decision.exact}
    p = {i: 0.0 if decision.holds else 1.0 for i, decision in standing.items()}
    p |= {i: 1.0 if claim.p is None else claim.p for i, claim in open_claims.items()}
    family = [i for i in range(len(claims)) if i not in exact]
    levels = dict(zip(family, compute_holm_levels([p[i] for i in family], alpha), strict=True))
    adjusted = dict(zip(family, adjust_holm_p_values([p[i] for i in family]), strict=True))
    decided = dict(standing)
    for i, claim in open_claims.items():
        if isinstance(claim.evidence, ExactEvidence):
            decided[i] = _decide_exact(claim, claim.evidence)
        else:
            decided[i] = _decide_at_level(claim, levels[i], adjusted[i])
    return [decided[i] for i in range(len(claims))]


def _decide_exact(claim: ClaimTest, evidence: ExactEvidence) -> Decision:
    low, high = evidence.interval(1.0)
    is_inside = is_inside_region(claim.region, (low, high)) is True
    return Decision(
        evidence.n, evidence.estimate, low, high, None, None, None, None, exact=True, holds=is_inside
    )


def _decide_at_level(claim: ClaimTest, alpha: float, adjusted_p: float) -> Decision:
    """Decide by the interval at the claim's own share of alpha."""
    evidence = claim.evidence
    level = 1 - alpha * (2 if claim.is_tolerant else 1)
    interval = evidence.interval(level) if evidence else None
    low, high = interval or (None, None)
    return Decision(
        n=evidence.n if evidence else 0,
        estimate=evidence.estimate if evidence else None,
        low=low,
        high=high,
        level=level,
        alpha=alpha,
        p=claim.p,
        p_holm=None if claim.p is None else adjusted_p,
        exact=False,
        holds=None if interval is None else is_inside_region(claim.region, interval),
    )


def is_inside_region(region: tuple[float, float], interval: tuple[float, float]) -> bool | None:
    """True where the whole interval lies in the region of a claim, False where none of it does, else None.

    A region without an end extends to infinity, which is the effect of an arm that diverged.
    """
    low, high = region
    assert interval[0] <= interval[1], "the interval must be (low, high) without NaN"
    if (low == -math.inf or low < interval[0]) and (high == math.inf or interval[1] < high):
        return True
    is_outside = (low != -math.inf and interval[1] <= low) or (high != math.inf and interval[0] >= high)
    return False if is_outside else None


def _validate_p_values(pvalues: Values) -> np.ndarray:
    p = validate_finite(pvalues, "p-values", min_count=0)
    if p.size and (p.min() < 0 or p.max() > 1):
        raise ValueError(f"p-values: must lie in [0, 1], got {p.tolist()}")
    return p
