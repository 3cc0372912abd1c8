"""A declared family of claims, each decided at its own Holm level by the very interval that the report draws.

Surprising: a claim that "no difference" would satisfy ("costs at most 0.03") is decided by the interval at
1 - 2 alpha, as equivalence and non-inferiority are; a claim that asserts a difference, by that at 1 - alpha.
What was decided at a look stays decided; what it leaves of the level goes to the claims that are still open
(Ye et al. 2013, group-sequential Holm).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnlab.stats.evidence import Ends, Evidence, Exact, Values, finite, fraction, support


@dataclass(frozen=True)
class Question:
    """One declared claim and what was measured for it; `evidence` is None where nothing was.

    `region` is the open interval of values for which the claim holds; `center` is "no difference": 0, or 1
    for a ratio.
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
        """Of the claim being false: one-sided, doubled where the claim asserts a difference."""
        one_sided = None if self.evidence is None else support(self.evidence, self.region)
        return one_sided if one_sided is None or self.is_tolerant else min(1.0, 2 * one_sided)


@dataclass(frozen=True)
class Decision(Ends):
    """What one claim is decided on: draw this interval and no other."""

    n: int
    estimate: float | None
    low: float | None
    high: float | None
    level: float | None  # of the interval; None where the quantity is exact
    alpha: float | None  # the claim's own share, after Holm
    p: float | None  # of the claim being false; doubled where it asserts a difference
    p_holm: float | None
    exact: bool
    holds: bool | None = None  # the claim, as far as the interval tells


def holm(pvalues: Values) -> list[float]:
    """Adjusted p-values, in the order given."""
    p = _probabilities(pvalues)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return [float(value) for value in adjusted]


def holm_levels(pvalues: Values, alpha: float = 0.05) -> list[float]:
    """Each claim's own alpha: p <= its level exactly where the adjusted p <= alpha.

    All that fail share the level at which the procedure stopped. Intervals at these levels agree with the
    decisions; they are not simultaneous intervals.
    """
    p = _probabilities(pvalues)
    left = len(pvalues)
    levels = np.empty_like(p)
    for index in np.argsort(p, kind="stable"):
        levels[index] = fraction(alpha, "alpha") / left
        if p[index] <= levels[index]:
            left = max(left - 1, 1)
    return [float(level) for level in levels]


def decide(
    questions: Sequence[Question | None], alpha: float = 0.05, before: Sequence[Decision] = ()
) -> list[Decision]:
    """Every claim of the family at its Holm level; the chance of any false SUPPORTED is at most alpha.

    Exact quantities cannot err and take no share. A claim without data keeps its share: the family stays as
    declared. `before` has the decisions of the last look: those that hold, or do not, stand, and so does what
    this one does not ask for (None); an identity is asked again, since a later pair can break it.
    """
    stands = {
        i: past
        for i, past in enumerate(before)
        if questions[i] is None or (past.holds is not None and not past.exact)
    }
    asked = {i: question for i, question in enumerate(questions) if question is not None and i not in stands}
    exact = {i for i, question in asked.items() if isinstance(question.evidence, Exact)}
    exact |= {i for i, decision in stands.items() if decision.exact}
    p = {i: 0.0 if decision.holds else 1.0 for i, decision in stands.items()}
    p |= {i: 1.0 if question.p is None else question.p for i, question in asked.items()}
    family = [i for i in range(len(questions)) if i not in exact]
    levels = dict(zip(family, holm_levels([p[i] for i in family], alpha), strict=True))
    adjusted = dict(zip(family, holm([p[i] for i in family]), strict=True))
    decided = dict(stands)
    for i, question in asked.items():
        if isinstance(question.evidence, Exact):
            decided[i] = _decide_exact(question, question.evidence)
        else:
            decided[i] = _decide_at_level(question, levels[i], adjusted[i])
    return [decided[i] for i in range(len(questions))]


def _decide_exact(question: Question, evidence: Exact) -> Decision:
    low, high = evidence.interval(1.0)
    whole = holds(question.region, (low, high)) is True
    return Decision(evidence.n, evidence.estimate, low, high, None, None, None, None, exact=True, holds=whole)


def _decide_at_level(question: Question, alpha: float, adjusted: float) -> Decision:
    """By the interval at the claim's own share of alpha."""
    evidence = question.evidence
    level = 1 - alpha * (2 if question.is_tolerant else 1)
    interval = evidence.interval(level) if evidence else None
    low, high = interval or (None, None)
    return Decision(
        n=evidence.n if evidence else 0,
        estimate=evidence.estimate if evidence else None,
        low=low,
        high=high,
        level=level,
        alpha=alpha,
        p=question.p,
        p_holm=None if question.p is None else adjusted,
        exact=False,
        holds=None if interval is None else holds(question.region, interval),
    )


def holds(region: tuple[float, float], interval: tuple[float, float]) -> bool | None:
    """True where the whole interval lies in the region of a claim, False where none of it does.

    A region without an end goes on to infinity, which is the effect of an arm that diverged.
    """
    low, high = region
    assert interval[0] <= interval[1], "low, then high, and no NaN"
    if (low == -math.inf or low < interval[0]) and (high == math.inf or interval[1] < high):
        return True
    is_outside = (low != -math.inf and interval[1] <= low) or (high != math.inf and interval[0] >= high)
    return False if is_outside else None


def _probabilities(pvalues: Values) -> np.ndarray:
    p = finite(pvalues, "p-values", least=0)
    if p.size and (p.min() < 0 or p.max() > 1):
        raise ValueError(f"p-values: must lie in [0, 1], got {p.tolist()}")
    return p
