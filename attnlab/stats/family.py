"""A declared family of claims, each decided at its own Holm level by the very interval that the report draws.

Surprising: a claim that "no difference" would satisfy ("costs at most 0.03") is decided by the interval at
1 - 2 alpha, as equivalence and non-inferiority are; a claim that asserts a difference, by that at 1 - alpha.
What was decided at a look stays decided; what it leaves of the level goes to the claims that are still open
(Ye et al. 2013, group-sequential Holm).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import Ends, Evidence, Exact, Values, finite, fraction, region, support


@dataclass(frozen=True)
class Question:
    """One declared claim and what was measured for it; `evidence` is None where nothing was."""

    evidence: Evidence | None
    relation: str  # within | below | above
    threshold: float
    centre: float = 0.0  # "no difference": 0, or 1 for a ratio


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
    tolerant: list[bool] = []
    p: list[float | None] = []
    for q in questions:
        if q is None:
            tolerant.append(False)
            p.append(None)
            continue
        where = region(q.relation, q.threshold, q.centre)
        one_sided = None if q.evidence is None else support(q.evidence, where)
        tolerant.append(where[0] < q.centre < where[1])
        p.append(one_sided if one_sided is None or tolerant[-1] else min(1.0, 2 * one_sided))
    for i, decision in stands.items():
        p[i] = 0.0 if decision.holds else 1.0
    exact = {i for i, q in enumerate(questions) if q and isinstance(q.evidence, Exact)}
    exact |= {i for i, decision in stands.items() if decision.exact}
    family = [i for i in range(len(questions)) if i not in exact]
    certain = [1.0 if (value := p[i]) is None else value for i in family]
    shares = dict(zip(family, holm_levels(certain, alpha), strict=True))
    adjusted = dict(zip(family, holm(certain), strict=True))

    decisions = []
    for i, q in enumerate(questions):
        if q is None or i in stands:
            decisions.append(stands[i])
        elif isinstance(q.evidence, Exact):
            n = q.evidence.n
            point = q.evidence.estimate
            ends = q.evidence.interval(1.0)
            whole = holds(q, ends) is True
            decisions.append(Decision(n, point, *ends, None, None, None, None, exact=True, holds=whole))
        else:
            level = 1 - shares[i] * (2 if tolerant[i] else 1)
            interval = q.evidence.interval(level) if q.evidence else None
            low, high = interval or (None, None)
            n, value = (q.evidence.n, q.evidence.estimate) if q.evidence else (0, None)
            p_holm = None if p[i] is None else adjusted[i]
            told = None if interval is None else holds(q, interval)
            decisions.append(
                Decision(n, value, low, high, level, shares[i], p[i], p_holm, exact=False, holds=told)
            )
    return decisions


def holds(question: Question, interval: tuple[float, float]) -> bool | None:
    """True where the whole interval satisfies the claim, False where none of it does."""
    low, high = region(question.relation, question.threshold, question.centre)
    assert interval[0] <= interval[1], "low, then high, and no NaN"
    if low < interval[0] and interval[1] < high:
        return True
    return False if interval[1] <= low or interval[0] >= high else None


def _probabilities(pvalues: Values) -> np.ndarray:
    p = finite(pvalues, "p-values", least=0)
    if p.size and (p.min() < 0 or p.max() > 1):
        raise ValueError(f"p-values: must lie in [0, 1], got {p.tolist()}")
    return p
