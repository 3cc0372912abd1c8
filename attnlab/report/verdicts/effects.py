"""Effects: the paired difference of each arm from the baseline in each metric, with sensitivity analyses.

The estimate has a 95% interval. Its verdict comes from `verdict_rules`, on the kind of evidence that decides
claims and at the alpha that Holm's method allocated to the claim about that arm, so that it never goes beyond
the claim's verdict. Only the primary metric is judged against the margin. The other metrics are exploratory
and stay out of the verdict.
"""

from collections.abc import Sequence

from attnlab import stats
from attnlab.report.schema import (
    BudgetCheck,
    ClaimResult,
    Effect,
    EffectVerdict,
)
from attnlab.report.verdicts import comparability, leakage_check
from attnlab.report.verdicts.budget_check import find_training_shortfall
from attnlab.report.verdicts.evidence_bases import (
    collect_censored_steps,
    collect_differences,
    collect_proportions,
)
from attnlab.report.verdicts.results import SweepResults
from attnlab.report.verdicts.sensitivity_analyses import compute_margin_p_values, compute_sensitivity
from attnlab.report.verdicts.training_equivalence import convert_to_training
from attnlab.report.verdicts.verdict_rules import count_decimals, decide_effect_verdict
from attnlab.stats.evidence import CONFIDENCE_LEVEL

ALPHA = 0.05


def list_metrics(sweep: SweepResults) -> list[str]:
    """List the primary metric, then those of the claims and the experiment file that any seed has."""
    experiment = sweep.experiment
    extra = [claim.metric for claim in experiment.claims if claim.metric and claim.compare == "difference"]
    candidates = dict.fromkeys([experiment.metric, *extra, *experiment.metrics])
    return [
        m for m in candidates if m == experiment.metric or any(sweep.get_values(arm, m) for arm in sweep.arms)
    ]


def build_effects(sweep: SweepResults, claims: list[ClaimResult], budget: BudgetCheck) -> list[Effect]:
    """Build a row per metric and arm that measures it; p is Holm-adjusted over the arms of one metric."""
    primary = sweep.experiment.metric
    rows = list[Effect]()
    for metric in list_metrics(sweep):
        margin = sweep.margin if metric == primary else None
        family = [
            _build_effect(
                sweep, arm, metric, margin, _find_allocated_alpha(sweep, claims, arm, metric), budget
            )
            for arm in sweep.treatment_arms
            if sweep.has_metric(arm, metric) and sweep.has_metric(sweep.baseline, metric)
        ]
        adjusted = iter(stats.adjust_holm_p_values([row.p for row in family if row.p is not None]))
        rows += [
            row if row.p is None else row.model_copy(update={"p_holm": next(adjusted)}) for row in family
        ]
    return rows


def find_latest_design(sweep: SweepResults, arms: Sequence[str]) -> tuple[int, stats.StoppingRule]:
    """Find the seeds of the last interim analysis that is complete for all arms, and its stopping rule.

    As with claims, no interval is computed before its interim analysis. Before the first one, all seeds
    present count, without an interval.
    """
    needed = min((len(sweep.get_runs(arm)) for arm in arms), default=0)  # needed by the claims so far
    latest: tuple[int, stats.StoppingRule] = len(sweep.seeds), stats.BeforeFirstAnalysis()
    for count, rule in stats.list_stopping_rules(sweep.experiment.looks, len(sweep.seeds)):
        if count <= needed and sweep.has_all_outcomes(arms, sweep.seeds[:count]):
            latest = count, rule
    return latest


def _find_allocated_alpha(sweep: SweepResults, claims: list[ClaimResult], arm: str, metric: str) -> float:
    """Find the strictest alpha allocated to a claim about this difference; 5% without one."""
    comparison = (arm, sweep.baseline, metric, "difference")
    levels = [
        claim.decision.alpha
        for claim in claims
        if (claim.arm, claim.against, claim.metric, claim.compare) == comparison
    ]
    return min((level for level in levels if level is not None), default=ALPHA)


def _build_effect(
    sweep: SweepResults, arm: str, metric: str, margin: float | None, alpha: float, budget: BudgetCheck
) -> Effect:
    """Build the effect of one arm in one metric; incomparable arms have no differences."""
    primary = metric == sweep.experiment.metric
    definition = sweep.get_metric(metric)
    count, rule = find_latest_design(sweep, (arm, sweep.baseline))
    pairs = sweep.build_pairs({arm: 1.0, sweep.baseline: -1.0}, metric, sweep.seeds[:count])
    reasons = (
        comparability.list_incomparability_reasons(sweep, budget, arm, sweep.baseline, metric)
        if pairs
        else []
    )
    differences = [] if reasons else [pair.value - pair.against for pair in pairs]
    evidence = None if reasons else _collect_evidence(sweep, arm, metric, sweep.seeds[:count], rule)
    estimate = None if evidence is None else evidence.estimate
    interval = None if evidence is None else evidence.interval(CONFIDENCE_LEVEL)
    equivalent, noninferior = compute_margin_p_values(evidence, margin, sweep.experiment.direction)
    return Effect(
        **dict(compute_sensitivity([] if reasons else pairs)),
        arm=arm,
        against=sweep.baseline,
        metric=metric,
        label=definition.display_name,
        unit=definition.unit,
        primary=primary,
        margin=margin,
        n=len(pairs) if evidence is None else evidence.n,
        planned=len(sweep.get_runs(arm)),
        digits=count_decimals(
            interval[1] - interval[0] if interval else None,
            default=0 if metric in sweep.censoring_budgets else 3,
        ),
        mean=estimate,
        sd=stats.PairedDifferences(differences).sd,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        level=CONFIDENCE_LEVEL,
        training_equivalent=convert_to_training(sweep, metric, estimate, interval, CONFIDENCE_LEVEL),
        alpha=alpha,
        p=None if evidence is None else stats.compute_two_sided_p_value(evidence),
        p_holm=None,
        p_equivalent=equivalent,
        p_noninferior=noninferior,
        kind=definition.kind,
        verdict=_classify_effect(
            sweep, arm, metric, margin, alpha, evidence, sweep.seeds[:count], rule, budget
        ),
        reasons=[reason.text for reason in reasons],
        pairs=[pair.model_copy(update={"difference": None}) for pair in pairs] if reasons else pairs,
    )


def _collect_evidence(
    sweep: SweepResults, arm: str, metric: str, seeds: Sequence[int], design: stats.StoppingRule
) -> stats.Evidence:
    """Collect the evidence on an arm minus the baseline, of the kind that decides a claim about it.

    t is on the pairs that finished; where a run diverged, `_classify_effect` uses ranks instead.
    """
    weights = {arm: 1.0, sweep.baseline: -1.0}
    definition = sweep.get_metric(metric)
    pairs = sweep.build_pairs(weights, metric, seeds)
    if pairs and not isinstance(design, stats.BeforeFirstAnalysis):
        if definition.kind == "share":
            is_primary = metric == sweep.experiment.metric
            direction = sweep.experiment.direction if is_primary else definition.direction
            return collect_proportions(sweep, weights, metric, seeds, direction)
        if metric in sweep.censoring_budgets:
            return collect_censored_steps(sweep, weights, metric, seeds)
        if sweep.is_counted(metric, [*weights]):
            return stats.ExactEvidence(*(pair.value - pair.against for pair in pairs))
    return collect_differences(pairs, design)


def _classify_effect(
    sweep: SweepResults,
    arm: str,
    metric: str,
    margin: float | None,
    alpha: float,
    evidence: stats.Evidence | None,
    seeds: Sequence[int],
    design: stats.StoppingRule,
    budget: BudgetCheck,
) -> EffectVerdict:
    """Decide the verdict on a difference at the alpha allocated to the claim about it.

    Arms without evidence are not comparable.
    As for claims, too little training leaves no judgment, and ranks decide where a run diverged, except for
    proportions: a mean would be that of the survivors.
    """
    if evidence is None:
        return EffectVerdict.NOT_COMPARABLE
    if evidence.n and any(leakage_check.is_leaking_by_design(sweep, name) for name in (arm, sweep.baseline)):
        return EffectVerdict.LEAKING
    if metric != sweep.experiment.metric:  # its direction is undefined, so it is only described
        return EffectVerdict.EXPLORATORY
    direction = sweep.experiment.direction
    weights = {arm: 1.0, sweep.baseline: -1.0}
    is_counted = sweep.is_counted(metric, [*weights])
    is_of_pairs = isinstance(evidence, stats.PairedDifferences | stats.ExactEvidence)
    if is_of_pairs and not is_counted and sweep.has_diverged(weights, seeds):
        evidence = stats.RankDifferences(sweep.compute_outcomes(weights, metric, seeds, direction))
    if not evidence.n:
        return EffectVerdict.NO_RESULT
    shortfall = None if is_counted else find_training_shortfall(sweep, budget, [*weights])
    if shortfall is not None:
        return EffectVerdict(shortfall)
    if isinstance(design, stats.BeforeFirstAnalysis):
        return EffectVerdict.INCONCLUSIVE
    outer, inner = (evidence.interval(level) for level in (1 - alpha, 1 - 2 * alpha))
    return decide_effect_verdict(outer, inner, margin, direction)
