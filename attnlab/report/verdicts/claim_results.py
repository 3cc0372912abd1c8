"""Results of the preregistered claims: verdicts and numbers.

`claim_decisions` decides over the family of claims. This module adds each claim's verdict and sensitivity
analyses, all as numbers; `tables/wording.py` formats them.
"""

import re
from dataclasses import asdict
from itertools import combinations

from attnlab import stats
from attnlab.report.schema import (
    BudgetCheck,
    ClaimResult,
    ClaimStatus,
    ConfidenceInterval,
    Decision,
    InterimAnalyses,
    InterimAnalysis,
    PreregisteredClaim,
    ThresholdSignFlip,
    TrainingEquivalent,
    Verdict,
)
from attnlab.report.verdicts import claim_decisions, comparability, leakage_check
from attnlab.report.verdicts.budget_check import find_training_shortfall, find_untrained_reason
from attnlab.report.verdicts.claim_decisions import ClaimDecision
from attnlab.report.verdicts.evidence_bases import find_basis
from attnlab.report.verdicts.results import IncomparabilityReason, SweepResults
from attnlab.report.verdicts.sensitivity_analyses import compute_sensitivity
from attnlab.report.verdicts.training_equivalence import convert_to_training
from attnlab.report.verdicts.verdict_rules import count_decimals, decide_claim_verdict
from attnlab.stats.evidence import CONFIDENCE_LEVEL
from attnlab.store.experiment_schema import MARGIN, NEGATIVE_MARGIN

MARGIN_OVERRIDDEN = "Given on the command line."  # in place of the rationale in the experiment file


def resolve_claims(sweep: SweepResults) -> list[PreregisteredClaim]:
    """Fill in the defaults of every claim.

    A claim is by default against the baseline, on the primary metric, as a difference. Each gets the
    direction that is better.
    """
    claims = []
    for claim in sweep.experiment.claims:
        arm, against = sweep.experiment.get_claim_sides(claim)
        if claim.threshold in (MARGIN, NEGATIVE_MARGIN) and sweep.is_overridden("margin"):
            claim = claim.model_copy(update={"says": remove_margin(claim.says), "reason": MARGIN_OVERRIDDEN})
        resolved = PreregisteredClaim(
            says=claim.says,
            arm=arm,
            against=against,
            metric=sweep.experiment.get_claim_metric(claim),
            compare=claim.compare,
            relation=claim.relation,
            threshold=sweep.experiment.amount_to_nats(claim.threshold, sweep.nats_per_doubling),
            threshold_text=sweep.experiment.format_compute_amount(claim.threshold),
            identity=claim.identity,
            reason=claim.reason,
            direction=claim.direction,
            contrast=claim.contrast,
            interaction=claim.interaction,
            chain=claim.chain,
            parts_of=claim.leave_one_out,
        )
        claims.append(resolved.model_copy(update={"direction": _resolve_direction(sweep, resolved)}))
    return claims


def remove_margin(says: str) -> str:
    """Remove the experiment's own margin from the wording of a claim: another one is in force."""
    without_amount = re.sub(r"\ba margin of [\d.]+(% of training compute| nats)", "the margin", says)
    return re.sub(r" \(margin: [^()]*\)", "", without_amount)


def build_claim_statuses(sweep: SweepResults, budget: BudgetCheck) -> list[ClaimStatus]:
    """Build the status of every claim between interim analyses."""
    claims = resolve_claims(sweep)
    comparable = [not _find_incomparability(sweep, budget, claim) for claim in claims]
    return [
        ClaimStatus(
            decided_by_seeds=claim_decision.basis.is_paired_by_seed,
            verdict=decide_claim_verdict(
                claim_decision.decision.holds,
                n=claim_decision.decision.n,
                comparable=is_comparable,
                shortfall=_find_shortfall(sweep, budget, claim, claim_decision),
            ),
            interim_analyses=_build_interim_analyses(sweep, claim_decision),
            completed_analyses=claim_decision.completed_analyses,
            required_seeds=seeds,
            is_pending=is_pending,
        )
        for claim, is_comparable, (claim_decision, seeds, is_pending) in zip(
            claims, comparable, claim_decisions.compute_seed_needs(sweep, claims, comparable), strict=True
        )
    ]


def build_claim_results(sweep: SweepResults, budget: BudgetCheck, exploratory: bool) -> list[ClaimResult]:
    """Build every claim's numbers and verdict, in the preregistered order."""
    claims = resolve_claims(sweep)
    return [
        _build_claim_result(sweep, budget, claim, claim_decision, exploratory)
        for claim, claim_decision in zip(
            claims, claim_decisions.collect_claim_decisions(sweep, claims), strict=True
        )
    ]


def _find_shortfall(
    sweep: SweepResults, budget: BudgetCheck, claim: PreregisteredClaim, claim_decision: ClaimDecision
) -> Verdict | None:
    requires_training = claim_decision.basis.requires_training
    return find_training_shortfall(sweep, budget, claim.arms) if requires_training else None


def _build_claim_result(
    sweep: SweepResults,
    budget: BudgetCheck,
    claim: PreregisteredClaim,
    claim_decision: ClaimDecision,
    exploratory: bool,
) -> ClaimResult:
    """Build a claim's numbers and verdict.

    For incomparable arms only the number of seeds is given. The interval has one level for all claims, and
    comes from the same evidence as the decision.
    """
    decision = claim_decision.decision
    metric = sweep.get_metric(claim.metric)
    reasons = [reason.text for reason in _find_incomparability(sweep, budget, claim)]
    shortfall = _find_shortfall(sweep, budget, claim, claim_decision)
    untrained_reason = find_untrained_reason(sweep, claim.arms) if shortfall == Verdict.UNTRAINED else None
    verdict = decide_claim_verdict(decision.holds, n=decision.n, comparable=not reasons, shortfall=shortfall)
    unknown_threshold_reason = None
    if claim.threshold is None:
        calibration = sweep.context.compute_calibration
        verdict, untrained_reason, unknown_threshold_reason = (
            Verdict.NO_RESULT,
            None,
            calibration.reason if calibration else "the experiment has no compute calibration",
        )
    interval = (
        claim_decision.evidence.interval(CONFIDENCE_LEVEL)
        if claim_decision.evidence is not None and not reasons
        else None
    )
    numbers = {key: value for key, value in asdict(decision).items() if key != "holds"}
    if reasons:
        numbers |= dict.fromkeys(("estimate", "low", "high", "p", "p_holm"))
    pairs = claim_decision.pairs if claim.compare == "difference" and not reasons else []
    return ClaimResult(
        **dict(claim),
        **dict(compute_sensitivity(pairs)),
        label=metric.display_name,
        unit="" if claim.compare == "ratio" else metric.unit,
        basis=claim_decision.basis.name,
        exploratory=exploratory,
        timed=claim_decisions.is_timed(sweep, claim),
        verdict=verdict,
        not_comparable=reasons,
        untrained_reason=untrained_reason,
        unknown_threshold_reason=unknown_threshold_reason,
        leaking_by_design=[arm for arm in claim.arms if leakage_check.is_leaking_by_design(sweep, arm)],
        unshared_parts=tuple(comparability.list_unshared_parts(sweep, claim.arms)),
        planned=_count_planned_seeds(sweep, claim_decision),
        interim_analyses=None if reasons else _build_interim_analyses(sweep, claim_decision),
        training_equivalent=None if reasons else _convert_effect_to_training(sweep, claim, claim_decision),
        digits=count_decimals(
            interval[1] - interval[0] if interval else None,
            default=0 if claim.metric in sweep.censoring_budgets and claim.compare == "difference" else 3,
        ),
        decision=Decision(**numbers),
        interval=ConfidenceInterval(low=interval[0], high=interval[1], level=CONFIDENCE_LEVEL)
        if interval
        else None,
        required_seeds=_estimate_required_seeds(claim, claim_decision)
        if verdict == Verdict.INCONCLUSIVE
        else None,
        threshold_sign_flip=None if reasons else _test_sign_flips(claim, claim_decision),
    )


def _build_interim_analyses(sweep: SweepResults, claim_decision: ClaimDecision) -> InterimAnalyses | None:
    """Build the planned interim analyses of a claim, with a row for each completed one."""
    if not claim_decision.basis.has_interim_analyses:
        return None
    plan = sweep.experiment.looks
    holds = claim_decision.decision.holds is not None and bool(claim_decision.analyses)
    return InterimAnalyses(
        design="anytime" if isinstance(plan, str) else "looks" if plan else "fixed",
        planned=plan if isinstance(plan, list) else [len(sweep.seeds)],
        decided_at=len(claim_decision.analyses) if holds else None,
        completed=[
            InterimAnalysis(
                seeds=step.seeds,
                n=step.decision.n,
                estimate=step.decision.estimate,
                low=step.decision.low,
                high=step.decision.high,
                level=step.decision.level,
            )
            for step in claim_decision.analyses
        ],
    )


def _test_sign_flips(claim: PreregisteredClaim, claim_decision: ClaimDecision) -> ThresholdSignFlip | None:
    """Run a sign-flip test at the claim's own threshold, at the tail probability of the t test."""
    decision = claim_decision.decision
    evidence = claim_decision.evidence
    if (
        not isinstance(evidence, stats.PairedDifferences)
        or decision.level is None
        or not claim_decision.analyses
        or evidence.tied
    ):
        return None
    if evidence.n < 2 or claim.region is None:
        return None
    return stats.decide_by_sign_flips(
        claim_decision.paired_differences, claim.region, evidence.compute_tail_probability(decision.level)
    )


def _estimate_required_seeds(
    claim: PreregisteredClaim, claim_decision: ClaimDecision
) -> stats.SeedsToDecide | None:
    """Estimate the seeds that would decide an inconclusive claim at the observed effect."""
    decision = claim_decision.decision
    is_inconclusive = decision.holds is None and bool(claim_decision.analyses)
    if not is_inconclusive or decision.level is None or decision.n < 2 or claim.region is None:
        return None
    return claim_decision.basis.estimate_required_seeds(
        claim.region, claim_decision.evidence, claim_decision.paired_differences, (1 - decision.level) / 2
    )


def _convert_effect_to_training(
    sweep: SweepResults, claim: PreregisteredClaim, claim_decision: ClaimDecision
) -> TrainingEquivalent | None:
    """Convert the effect to a change of training compute, with an interval at one level for all claims."""
    if (
        claim.compare == "ratio"
        or claim_decision.decision.exact
        or claim_decision.evidence is None
        or claim.threshold is None
    ):
        return None
    return convert_to_training(
        sweep,
        claim.metric,
        claim_decision.decision.estimate,
        claim_decision.evidence.interval(CONFIDENCE_LEVEL),
        CONFIDENCE_LEVEL,
    )


def _find_incomparability(
    sweep: SweepResults, budget: BudgetCheck, claim: PreregisteredClaim
) -> list[IncomparabilityReason]:
    """Find the reasons against comparing the arms of a claim in its metric, each once."""
    reasons = [
        reason
        for arm, against in combinations(claim.arms, 2)
        for reason in comparability.list_incomparability_reasons(sweep, budget, arm, against, claim.metric)
    ]
    return list(dict.fromkeys(reasons))


def _count_planned_seeds(sweep: SweepResults, claim_decision: ClaimDecision) -> int | None:
    """Count the seeds of a claim's last interim analysis, or of its first if none is complete."""
    if not claim_decision.basis.is_paired_by_seed:
        return None
    if claim_decision.analyses:
        return claim_decision.analyses[-1].seeds
    return stats.list_stopping_rules(sweep.experiment.looks, len(sweep.seeds))[0][0]


def _resolve_direction(sweep: SweepResults, claim: PreregisteredClaim) -> str | None:
    """Resolve the better direction: the claim's own, else the experiment's for its metric, else the metric's.

    Lower is better for counted, timed and censored metrics; None if no direction is defined.
    """
    if claim.direction:
        return claim.direction
    if claim.metric == sweep.experiment.metric:
        return sweep.experiment.direction
    if direction := sweep.get_metric(claim.metric).direction:
        return direction
    is_by_seed = find_basis(sweep, claim).is_paired_by_seed
    return None if is_by_seed and claim.metric not in sweep.censoring_budgets else "lower"
