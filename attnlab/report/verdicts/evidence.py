"""What was measured for each claim, at each interim analysis, and what the family of claims decides on it.

An interim analysis is made of a claim once all its runs have ended, never before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab import stats
from attnlab.report.schema import DeclaredClaim, Pair
from attnlab.report.verdicts.bases import Basis, find_basis
from attnlab.report.verdicts.runs import Sweep, kind


@dataclass(frozen=True)
class Step:
    """One interim analysis of a claim: how many seeds it has, and what was decided then."""

    seeds: int
    decision: stats.Decision


@dataclass(frozen=True)
class Found:
    """A claim's decision with the evidence of its last interim analysis, its basis, the interim analyses that
    were made, and its pairs of finished runs.
    """

    decision: stats.Decision
    evidence: stats.Evidence | None
    basis: Basis
    steps: tuple[Step, ...]
    pairs: list[Pair]

    @property
    def sample(self) -> list[float]:
        """The paired differences that it was decided on, as far as both runs were finished."""
        return [pair.value - pair.against for pair in self.pairs]


def found(sweep: Sweep, claims: Sequence[DeclaredClaim]) -> list[Found]:
    """Every claim's decision, over all interim analyses that have been made."""
    decisions = list[stats.Decision]()
    steps = [list[Step]() for _ in claims]
    seen: list[stats.Evidence | None] = [None for _ in claims]
    for number, (count, design) in enumerate(stats.designs(sweep.experiment.looks, len(sweep.seeds))):
        made = [_is_due(sweep, claim, count) for claim in claims]
        asked = list[stats.Question | None]()
        for i, claim in enumerate(claims):
            is_open = not number or decisions[i].holds is None or decisions[i].exact
            shown = design if made[i] else stats.Early()
            asked.append(
                _question(sweep, claim, count, shown) if is_open and (made[i] or not number) else None
            )
        decisions = stats.decide(asked, before=decisions)
        for i, question in enumerate(asked):
            if question is not None:
                seen[i] = question.evidence
                if made[i]:
                    steps[i].append(Step(count, decisions[i]))
    out = []
    for claim, decision, evidence, looks in zip(claims, decisions, seen, steps, strict=True):
        seeds = sweep.seeds[: looks[-1].seeds] if looks else sweep.seeds
        basis = find_basis(sweep, claim, seeds)
        pairs = sweep.pairs(claim.arm, claim.against, claim.metric, seeds) if basis.by_seed else []
        out.append(Found(decision, evidence, basis, tuple(looks), pairs))
    return out


def needs(
    sweep: Sweep, claims: Sequence[DeclaredClaim], comparable: Sequence[bool]
) -> list[tuple[Found, int, bool]]:
    """Every claim's decision, how many of the seeds it needs by now, and whether it waits for an interim
    analysis. Those are the seeds of the interim analyses so far, and of the next one where it waits for one.
    A claim that compares nothing, or has nothing to compare, needs no more; one that seeds do not decide
    needs those of the first.
    """
    counts = [count for count, _ in stats.designs(sweep.experiment.looks, len(sweep.seeds))]
    out = []
    for one, equal in zip(found(sweep, claims), comparable, strict=True):
        made = len(one.steps) if one.basis.by_seed else 0
        closed = one.decision.holds is not None or (made > 0 and not one.decision.n) or not equal
        closed = closed or not one.basis.by_seed or made == len(counts)
        out.append(
            (one, one.steps[-1].seeds if made and closed else counts[0 if closed else made], not closed)
        )
    return out


def _is_due(sweep: Sweep, claim: DeclaredClaim, count: int) -> bool:
    """Whether all runs of an interim analysis of so many seeds have ended, as far as it needs any."""
    seeds = sweep.seeds[:count]
    return not find_basis(sweep, claim, seeds).by_seed or sweep.tried((claim.arm, claim.against), seeds)


def _question(sweep: Sweep, claim: DeclaredClaim, count: int, design: stats.Design) -> stats.Question:
    if claim.region is None:
        return stats.Question(None, claim.relation.region(1.0, claim.center), claim.center)
    seeds = sweep.seeds[:count]
    evidence = find_basis(sweep, claim, seeds).evidence(sweep, claim, seeds, design)
    return stats.Question(evidence, claim.region, claim.center)


def timed(sweep: Sweep, claim: DeclaredClaim) -> bool:
    """Whether a run of the two arms made it of times."""
    arms = (claim.arm, claim.against)
    return any(kind(record, claim.metric) == "time" for record in sweep.having(claim.metric, arms))
