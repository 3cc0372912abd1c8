"""Analysis of a ladder: combine the reports of its sizes or budgets. A pure function of these reports."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from attnlab.report.ladder_schema import (
    ArmLosses,
    Comparison,
    DecisionAccuracySummary,
    FloorMultiplier,
    HoldoutEstimate,
    LadderClaim,
    LadderProvenance,
    LadderReport,
    LadderSize,
    LinePoint,
    LossPoint,
    Multiplier,
    SizeEffect,
    TenfoldEstimate,
)
from attnlab.report.number_format import NONE, format_bounds, format_difference, format_number
from attnlab.report.replications.arm_pairs import (
    collect_values,
    compute_differences,
    count_failed_runs,
    count_unfinished_runs,
    find_incomparability_reasons,
    get_training_flops,
    is_primary_difference,
    list_comparisons,
)
from attnlab.report.schema import ExperimentSummary, MeanInterval, Report
from attnlab.stats import PairedEstimate, estimate_paired_difference
from attnlab.stats.evidence import CONFIDENCE_LEVEL
from attnlab.stats.replications.budget_verdict import BudgetTrajectories, decide_budget_verdict
from attnlab.stats.replications.compute_multiplier import SizeLosses, estimate_multiplier_range
from attnlab.stats.replications.decision_accuracy import compute_decision_accuracy
from attnlab.stats.replications.holdout import predict_largest_size
from attnlab.stats.replications.ladder_sample import Estimate, SizeSample, estimate_size_effects
from attnlab.stats.replications.scaling_verdict import INCONCLUSIVE, SeedsNeeded, decide_scaling_verdict
from attnlab.stats.replications.trend import EXTRAPOLATION_DECADES, Trend

LINE_POINTS = 40  # at which the line is drawn
DIGITS = 3
SizeReports = Sequence[tuple[LadderSize, Report]]  # the smallest first


def build_ladder_report(reports: Mapping[str, Report]) -> LadderReport:
    """The ladder of these reports, by title.

    The sizes are ordered by the compute of their baseline, as a file does not preserve their order.
    """
    baseline = next(iter(reports.values())).experiment.baseline
    ordered = sorted(reports.items(), key=lambda item: get_training_flops(item[1], baseline) or 0.0)
    size_reports = [(_build_size(title, report, baseline), report) for title, report in ordered]
    first = size_reports[0][1]
    context = first.replication
    experiment = first.experiment
    assert context is not None, "the report of a ladder size has the name of its ladder"
    assert context.ladder is not None
    pairs = list(dict.fromkeys(pair for _, report in size_reports for pair in list_comparisons(report)))
    growth = _estimate_compute_growth([size for size, _ in size_reports])
    claims = _build_claims(size_reports)
    has_budgets = bool(context.ladder.budgets)
    return LadderReport(
        name=context.combined_report,
        experiment=experiment.name,
        question=experiment.question,
        metric=experiment.metric,
        unit=next((row.unit for row in first.effects if row.metric == experiment.metric), ""),
        direction=experiment.direction,
        margin=_get_margin(experiment),
        margin_reason=experiment.margin_reason,
        level=CONFIDENCE_LEVEL,
        arms=experiment.arms,
        baseline=baseline,
        ladder=context.ladder,
        corpus=", ".join(dict.fromkeys(str(dataset.get("name")) for dataset in first.reproduce.data)) or None,
        sizes=[size for size, _ in size_reports],
        comparisons=[
            _build_budget_comparison(size_reports, pair, experiment, context.ladder.budgets)
            if has_budgets
            else _build_comparison(size_reports, pair, experiment, growth)
            for pair in pairs
        ],
        losses=_build_arm_losses(size_reports, experiment, has_multiplier=not has_budgets),
        claims=claims,
        # budgets share their seeds, so their verdicts do not test one another
        agreement=DecisionAccuracySummary(pairs=[], sentence="")
        if has_budgets
        else summarize_decision_accuracy([claim.verdicts for claim in claims]),
        exploratory=any(report.verdict.exploratory for report in reports.values()),
        reproduce=LadderProvenance(
            **{key: getattr(first.reproduce, key) for key in LadderProvenance.model_fields}
        ),
    )


def _get_margin(experiment: ExperimentSummary) -> float:
    assert experiment.margin is not None, "a ladder declares its margin as a number"
    return experiment.margin


def _build_size(title: str, report: Report, baseline: str) -> LadderSize:
    budget = next(
        (run.budget for run in report.runs if run.arm == baseline and run.budget.get_known_values()), None
    )
    assert report.replication is not None
    keys = ("parameters", "parameters_non_embedding", "tokens", "steps")
    return LadderSize(
        name=report.replication.name,
        title=title,
        flops=get_training_flops(report, baseline),
        **{key: budget.get(key) if budget else None for key in keys},
        learning_rates={run.arm: float(run.budget.lr) for run in report.runs if run.budget.lr is not None},
        finished=report.verdict.finished,
        planned=report.verdict.planned,
        headline=report.verdict.headline,
        seconds=sum(run.seconds or 0 for run in report.runs),
    )


def _estimate_compute_growth(sizes: Sequence[LadderSize]) -> float | None:
    """Tenfolds of compute per tenfold of parameters, from the smallest size to the largest.

    None where the parameters do not grow, or are unknown.
    """
    first, last = sizes[0], sizes[-1]
    if not (first.parameters and last.parameters and first.flops and last.flops):
        return None
    log_parameter_growth = math.log(last.parameters / first.parameters)
    return math.log(last.flops / first.flops) / log_parameter_growth if log_parameter_growth > 0 else None


def _collect_effects(
    size_reports: SizeReports, pair: tuple[str, str], metric: str
) -> tuple[list[SizeEffect], list[str]]:
    """The effect at each size or budget, and the first reasons against comparing the two arms; [] if none."""
    rows = [_build_size_effect(size, report, pair, metric) for size, report in size_reports]
    reasons = (find_incomparability_reasons(report, *pair, metric) for _, report in size_reports)
    return rows, next(filter(None, reasons), [])


def _build_comparison(
    size_reports: SizeReports, pair: tuple[str, str], experiment: ExperimentSummary, growth: float | None
) -> Comparison:
    """The effect at each size, the line through them, and the scaling verdict of the preregistered rule.

    The interval at each size is the one that the rule uses.
    """
    rows, reasons = _collect_effects(size_reports, pair, experiment.metric)
    obstacle = _explain_missing_verdict(size_reports, pair, rows, reasons)
    known_rows = [row for row in rows if row.differences and not row.failed and not reasons]
    sizes = [SizeSample(row.x, row.differences) for row in known_rows]
    intervals = dict(zip((row.size for row in known_rows), estimate_size_effects(sizes), strict=True))
    rows = [
        row.model_copy(update=dict(_convert_estimate(intervals[row.size]))) if row.size in intervals else row
        for row in rows
    ]
    verdict = None if obstacle else decide_scaling_verdict(sizes, _get_margin(experiment))
    trend = Trend(sizes) if len(sizes) > 1 else None
    holdout = predict_largest_size(sizes) if len(sizes) > 2 else None
    comparison = Comparison(
        arm=pair[0],
        against=pair[1],
        effects=rows,
        verdict=verdict.verdict if verdict else INCONCLUSIVE,
        reason=f"{verdict.reason}{_format_seeds_needed(verdict.seeds_needed)}" if verdict else obstacle,
        seeds_needed=verdict.seeds_needed if verdict else None,
        slope=_convert_estimate(trend.estimate_slope()) if trend else None,
        change=_convert_estimate(trend.estimate_change()) if trend else None,
        extrapolation=_build_line_point(trend, trend.largest_x + EXTRAPOLATION_DECADES) if trend else None,
        at_tenfold_parameters=TenfoldEstimate(
            **dict(_convert_estimate(trend.estimate_at(trend.largest_x + growth))), compute=10**growth
        )
        if trend and growth is not None
        else None,
        holdout=HoldoutEstimate(
            mean=holdout.predicted,
            low=holdout.low,
            high=holdout.high,
            observed=holdout.observed,
            hit=holdout.hit,
        )
        if holdout
        else None,
        line=[
            _build_line_point(trend, float(x))
            for x in np.linspace(trend.smallest_x, trend.largest_x + EXTRAPOLATION_DECADES, LINE_POINTS)
        ]
        if trend
        else [],
        sentence="",
        extrapolation_sentence="",
    )
    extrapolation = _format_extrapolation(comparison) if comparison.extrapolation else ""
    sentence = f"{_format_comparison(comparison, experiment)} {extrapolation}".rstrip()
    return comparison.model_copy(update={"sentence": sentence, "extrapolation_sentence": extrapolation})


def _build_budget_comparison(
    size_reports: SizeReports, pair: tuple[str, str], experiment: ExperimentSummary, budgets: dict[str, float]
) -> Comparison:
    """The effect at each budget, the lines of the seeds, and the budget verdict of the preregistered rule.

    Seeds that lack a budget are left out.
    """
    rows, reasons = _collect_effects(size_reports, pair, experiment.metric)
    by_budget = [compute_differences(report, *pair, experiment.metric) for _, report in size_reports]
    seeds = [seed for seed in by_budget[0] if all(seed in differences for differences in by_budget)]
    obstacle = _explain_missing_verdict(size_reports, pair, rows, reasons, "budget")
    if obstacle is None and not seeds:
        obstacle = "no seed has a finished pair of runs at every budget"
    multiples = [budgets[size.name] for size, _ in size_reports]
    trajectories = (
        BudgetTrajectories(multiples, [[differences[seed] for differences in by_budget] for seed in seeds])
        if obstacle is None and len(multiples) > 1
        else None
    )
    verdict = decide_budget_verdict(trajectories, _get_margin(experiment)) if trajectories else None
    if trajectories:
        rows = [
            row.model_copy(
                update={
                    **dict(_convert_paired(trajectories.estimate_effect(index))),
                    "n": len(seeds),
                    "differences": trajectories.differences[:, index].tolist(),
                }
            )
            for index, row in enumerate(rows)
        ]
    comparison = Comparison(
        arm=pair[0],
        against=pair[1],
        effects=rows,
        verdict=verdict.verdict if verdict else INCONCLUSIVE,
        reason=verdict.reason if verdict else obstacle,
        seeds_needed=None,
        slope=_convert_paired(trajectories.estimate_slope()) if trajectories else None,
        change=_convert_paired(trajectories.estimate_change()) if trajectories else None,
        extrapolation=None,
        at_tenfold_parameters=None,
        holdout=None,
        line=[
            LinePoint(
                **dict(_convert_paired(trajectories.estimate_line(float(x)))),
                flops=(rows[0].flops or 1.0) * 2 ** (float(x) - trajectories.x[0]),
            )
            for x in np.linspace(trajectories.x[0], trajectories.x[-1], LINE_POINTS)
        ]
        if trajectories
        else [],
        sentence="",
        extrapolation_sentence="",
    )
    return comparison.model_copy(update={"sentence": _format_comparison(comparison, experiment)})


def _explain_missing_verdict(
    size_reports: SizeReports,
    pair: tuple[str, str],
    rows: Sequence[SizeEffect],
    reasons: Sequence[str],
    step_name: str = "size",
) -> str | None:
    """The reason why two arms have no verdict: `reasons` against comparing them, failed or unfinished runs.

    None where they have a verdict. The runs that finish first may be a biased subset, as for claims.
    """
    if reasons:
        return f"NOT COMPARABLE: {'; '.join(reasons)}"
    if lost := ", ".join(f"{row.size} ({row.failed})" for row in rows if row.failed):
        return f"runs failed at {lost}, so the trend is unknown"
    unfinished = {size.name: count_unfinished_runs(report, *pair) for size, report in size_reports}
    if waiting := ", ".join(f"{size} ({count})" for size, count in unfinished.items() if count):
        return f"runs are not finished at {waiting}"
    has_pair = any(row.differences for row in rows)
    return None if has_pair else f"no {step_name} of the ladder has a finished pair of runs"


def _build_line_point(trend: Trend, x: float) -> LinePoint:
    return LinePoint(**dict(_convert_estimate(trend.estimate_at(x))), flops=10**x)


def _build_size_effect(size: LadderSize, report: Report, pair: tuple[str, str], metric: str) -> SizeEffect:
    differences = [*compute_differences(report, *pair, metric).values()]
    return SizeEffect(
        size=size.name,
        flops=size.flops,
        x=math.log10(size.flops or 1.0),
        n=len(differences),
        **dict(_estimate_mean(differences)),
        differences=differences,
        failed=count_failed_runs(report, *pair),
    )


def _estimate_mean(differences_by_seed: list[float]) -> MeanInterval:
    """The mean of values by seed with its t interval; all None without a value."""
    estimate = (
        estimate_paired_difference(differences_by_seed, CONFIDENCE_LEVEL) if differences_by_seed else None
    )
    return MeanInterval(**{key: getattr(estimate, key, None) for key in ("mean", "low", "high")})


def _format_seeds_needed(seeds_needed: SeedsNeeded | None) -> str:
    """The seeds that would decide, where they are known."""
    if seeds_needed is None:
        return ""
    alternatives = (
        (seeds_needed.at_largest_size, "seeds in total at the largest size"),
        (seeds_needed.at_next_size, "seeds at one further size"),
    )
    options = " or ".join(f"{seeds} {place}" for seeds, place in alternatives if seeds)
    return f"; 80% power at the observed effect requires about {options}" if options else ""


def _convert_paired(estimate: PairedEstimate) -> MeanInterval:
    return MeanInterval(mean=estimate.mean, low=estimate.low, high=estimate.high)


def _convert_estimate(estimate: Estimate) -> MeanInterval:
    return MeanInterval(mean=estimate.estimate, low=estimate.low, high=estimate.high)


def _format_mean(mean: MeanInterval | None) -> str:
    return (
        f"{format_number(mean.mean, DIGITS, sign=True)} {format_bounds(mean.low, mean.high, DIGITS)}"
        if mean
        else NONE
    )


def _format_comparison(comparison: Comparison, experiment: ExperimentSummary) -> str:
    """The effect at both ends, its change, and the test of the largest size."""
    effects = [row for row in comparison.effects if row.mean is not None]
    if not effects:
        return "No pair of runs has finished."
    first = effects[0]
    last = effects[-1]
    difference = format_difference(comparison.arm, comparison.against)
    parts = [
        f"{difference}: {_format_mean(first)} at {first.size}, {_format_mean(last)} at "
        f"{last.size} ({experiment.metric})"
    ]
    if comparison.change:
        parts.append(
            f"change along the fitted line {_format_mean(comparison.change)}, margin "
            f"{format_number(experiment.margin)}"
        )
    if comparison.holdout:
        conclusions = {True: "agrees with", False: "differs from", None: "cannot be compared with"}
        conclusion = conclusions[comparison.holdout.hit]
        parts.append(f"the largest size {conclusion} the prediction from the others")
    return "; ".join(parts) + "."


def _format_extrapolation(comparison: Comparison) -> str:
    text = (
        f"Extrapolated to ten times the compute of the largest size: {_format_mean(comparison.extrapolation)}"
    )
    if at_tenfold := comparison.at_tenfold_parameters:
        times = f"{at_tenfold.compute:.0f} times its compute at the growth of this ladder"
        text += f"; to ten times its parameters, {times}: {_format_mean(at_tenfold)}"
    return f"{text}."


def _build_arm_losses(
    size_reports: SizeReports, experiment: ExperimentSummary, has_multiplier: bool
) -> list[ArmLosses]:
    """The loss of every arm at each size, and its compute multiplier at the largest.

    The multiplier takes the seeds of two sizes as independent, which those of two budgets are not. Without a
    verdict on the arm against the baseline there is none either, nor in a metric that is not a loss.
    """
    base = experiment.baseline
    rows = {
        arm: [_build_loss_point(size, report, arm, experiment.metric) for size, report in size_reports]
        for arm in experiment.arms
    }
    has_losses = experiment.direction == "lower" and all(
        value > 0 for points in rows.values() for point in points for value in point.values
    )
    known_losses = {
        arm: [SizeLosses(p.flops, p.values) for p in points if p.flops and p.values]
        for arm, points in rows.items()
    }
    leaking = {arm for _, report in size_reports for arm in (report.leakage.arms if report.leakage else ())}
    return [
        ArmLosses(
            arm=arm,
            points=points,
            multiplier=None
            if arm == base
            or {arm, base} & leaking
            or not (has_multiplier and has_losses)
            or _explain_missing_verdict(
                size_reports, (arm, base), *_collect_effects(size_reports, (arm, base), experiment.metric)
            )
            else _build_multiplier(known_losses[base], known_losses[arm]),
        )
        for arm, points in rows.items()
    ]


def _build_loss_point(size: LadderSize, report: Report, arm: str, metric: str) -> LossPoint:
    losses = [*collect_values(report, arm, metric).values()]
    return LossPoint(
        size=size.name, flops=get_training_flops(report, arm), values=losses, **dict(_estimate_mean(losses))
    )


def _build_multiplier(baseline: list[SizeLosses], arm: list[SizeLosses]) -> Multiplier | None:
    """Multipliers by the assumed floor of the loss; None with too few sizes."""
    if len(baseline) < 2 or not arm:
        return None
    multipliers = estimate_multiplier_range(baseline, arm[-1])
    floors = {
        name: FloorMultiplier(
            floor=multiplier.floor, value=multiplier.estimate, low=multiplier.low, high=multiplier.high
        )
        for name, multiplier in multipliers.by_floor.items()
    }
    return Multiplier(floors=floors, lowest=multipliers.lowest, highest=multipliers.highest)


def _build_claims(size_reports: SizeReports) -> list[LadderClaim]:
    """Each claim that seeds decide, with its verdict at every size."""
    reports = [report for _, report in size_reports]
    claims = {
        claim.says: claim
        for report in reports
        for claim in report.verdict.claims
        if is_primary_difference(claim, report)
    }
    verdicts = [{claim.says: claim.verdict for claim in report.verdict.claims} for report in reports]
    return [
        LadderClaim(
            says=says,
            arm=claim.arm,
            against=claim.against,
            verdicts=[verdicts_of_size.get(says) for verdicts_of_size in verdicts],
        )
        for says, claim in claims.items()
    ]


def summarize_decision_accuracy(verdicts: Sequence[Sequence[str | None]]) -> DecisionAccuracySummary:
    """Decision accuracy of every size against the next, over claims.

    Args:
        verdicts: per claim, those of all sizes from the smallest on.
    """
    pairs = [(small or "", large or "") for row in verdicts for small, large in pairwise(row)]
    accuracy = compute_decision_accuracy(pairs)
    inconclusive = accuracy.small_inconclusive + accuracy.large_inconclusive
    if accuracy.proportion is None:
        return DecisionAccuracySummary(
            pairs=pairs, sentence="Decision accuracy: no claim was decided at two adjacent ladder sizes."
        )
    interval = f"[{accuracy.proportion.low:.0%}, {accuracy.proportion.high:.0%}]"
    decided = accuracy.same + accuracy.opposite
    sentence = (
        f"Decision accuracy: where two adjacent ladder sizes both decided a claim, they agreed in "
        f"{accuracy.same} of {decided} cases, 95% CI {interval}; in {inconclusive} further cases at "
        "least one of the two was inconclusive."
    )
    return DecisionAccuracySummary(pairs=pairs, sentence=sentence)
