"""Evidence of each claim at each interim analysis, and the decision over the family of claims.

An interim analysis of a claim runs once all runs it needs have ended, never before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab import stats
from attnlab.report.schema import PreregisteredClaim, SeedPair
from attnlab.report.verdicts.evidence_bases import Basis, find_basis
from attnlab.report.verdicts.results import SweepResults, get_figure_kind


@dataclass(frozen=True)
class AnalysisStep:
    """One interim analysis of a claim: its number of seeds, and the decision at that point."""

    seeds: int
    decision: stats.Decision


@dataclass(frozen=True)
class ClaimDecision:
    """Decision of a claim, with its basis and the evidence of its last interim analysis.

    `analyses` holds the completed interim analyses, `pairs` the pairs of finished runs.
    """

    decision: stats.Decision
    evidence: stats.Evidence | None
    basis: Basis
    analyses: tuple[AnalysisStep, ...]
    pairs: list[SeedPair]

    @property
    def completed_analyses(self) -> int:
        """Number of completed interim analyses; 0 if seeds do not decide the claim."""
        return len(self.analyses) if self.basis.is_paired_by_seed else 0

    @property
    def paired_differences(self) -> list[float]:
        """Paired differences behind the decision, of pairs in which both runs finished."""
        return [pair.value - pair.against for pair in self.pairs]


def collect_claim_decisions(sweep: SweepResults, claims: Sequence[PreregisteredClaim]) -> list[ClaimDecision]:
    """Decide every claim over all interim analyses completed so far."""
    decisions = list[stats.Decision]()
    steps = [list[AnalysisStep]() for _ in claims]
    evidence_by_claim: list[stats.Evidence | None] = [None for _ in claims]
    for index, (count, design) in enumerate(
        stats.list_stopping_rules(sweep.experiment.looks, len(sweep.seeds))
    ):
        is_due = [_is_due(sweep, claim, count) for claim in claims]
        tests = list[stats.ClaimTest | None]()
        for i, claim in enumerate(claims):
            is_open = not index or decisions[i].holds is None or decisions[i].exact
            rule = design if is_due[i] else stats.BeforeFirstAnalysis()
            tests.append(
                _build_question(sweep, claim, count, rule) if is_open and (is_due[i] or not index) else None
            )
        decisions = stats.decide_claims(tests, previous=decisions)
        for i, test in enumerate(tests):
            if test is not None:
                evidence_by_claim[i] = test.evidence
                if is_due[i]:
                    steps[i].append(AnalysisStep(count, decisions[i]))
    claim_decisions = []
    for claim, decision, evidence, analyses in zip(claims, decisions, evidence_by_claim, steps, strict=True):
        seeds = sweep.seeds[: analyses[-1].seeds] if analyses else sweep.seeds
        basis = find_basis(sweep, claim, seeds)
        pairs = sweep.build_pairs(claim.weights, claim.metric, seeds) if basis.is_paired_by_seed else []
        claim_decisions.append(ClaimDecision(decision, evidence, basis, tuple(analyses), pairs))
    return claim_decisions


def compute_seed_needs(
    sweep: SweepResults, claims: Sequence[PreregisteredClaim], comparable: Sequence[bool]
) -> list[tuple[ClaimDecision, int, bool]]:
    """Compute for every claim its decision, the seeds it needs so far, and whether an analysis is pending.

    A claim needs the seeds of its completed interim analyses, and of the next one if that is pending. A claim
    without comparable or measured arms needs no more. A claim that seeds do not decide needs those of the
    first analysis.
    """
    counts = [count for count, _ in stats.list_stopping_rules(sweep.experiment.looks, len(sweep.seeds))]
    needs = []
    for claim_decision, is_comparable in zip(collect_claim_decisions(sweep, claims), comparable, strict=True):
        completed = claim_decision.completed_analyses
        is_closed = (
            claim_decision.decision.holds is not None
            or (completed > 0 and not claim_decision.decision.n)
            or not is_comparable
        )
        is_closed = is_closed or not claim_decision.basis.is_paired_by_seed or completed == len(counts)
        last = claim_decision.analyses[-1].seeds if completed else counts[0]
        needs.append((claim_decision, last if is_closed else counts[completed], not is_closed))
    return needs


def _is_due(sweep: SweepResults, claim: PreregisteredClaim, seed_count: int) -> bool:
    """Whether all runs that an interim analysis with `seed_count` seeds needs have ended."""
    seeds = sweep.seeds[:seed_count]
    return not find_basis(sweep, claim, seeds).is_paired_by_seed or sweep.has_all_outcomes(claim.arms, seeds)


def _build_question(
    sweep: SweepResults, claim: PreregisteredClaim, seed_count: int, design: stats.StoppingRule
) -> stats.ClaimTest:
    if claim.region is None:
        return stats.ClaimTest(None, claim.relation.compute_region(1.0, claim.null_value), claim.null_value)
    seeds = sweep.seeds[:seed_count]
    evidence = find_basis(sweep, claim, seeds).collect_evidence(sweep, claim, seeds, design)
    return stats.ClaimTest(evidence, claim.region, claim.null_value)


def is_timed(sweep: SweepResults, claim: PreregisteredClaim) -> bool:
    """Whether the metric was timed after training, or a run of the claim's arms declares it as a time."""
    return claim.metric in sweep.timed_metrics or any(
        get_figure_kind(result, claim.metric) == "time"
        for result in sweep.find_results_with(claim.metric, claim.arms)
    )
