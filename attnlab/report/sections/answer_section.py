"""The first screen: the answer, the intervals of the claims with their margins, and the arms, best first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from attnlab.report import section
from attnlab.report.answer import (
    answer_question,
    describe_scope,
    get_primary_effects,
    is_untrained,
)
from attnlab.report.charts.comparison_figures import build_verdict_charts
from attnlab.report.number_format import NONE, format_preregistration
from attnlab.report.schema import Effect, EffectVerdict, PairedMean, Report, TradeoffPanel, Verdict
from attnlab.report.section import Block, Cell, Column, Items, Link, Row, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import ArmColumn, average_arm, build_arm_columns
from attnlab.report.tables.arm_options import cut_options, describe_arm_options
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import (
    DELTA,
    build_effect_cell,
    build_training_cell,
    explain_wide_intervals,
    format_effect_level,
    format_effect_verdict,
)
from attnlab.report.verdicts.budget_check import describe_short_training
from attnlab.report.verdicts.leakage_check import BY_DESIGN
from attnlab.stats.evidence import CONFIDENCE_LEVEL

PLACE: Final = 0
COLUMN_COSTS = ("kv_bytes_per_token", "carried_bytes", "decode_ms_per_token")  # trade-off keys in the table
CHART_CAPTION = (
    "Dot: estimate. Line: the deciding interval. Shaded: the region where the claim holds. Entirely inside: "
    "SUPPORTED; entirely outside: REFUTED; otherwise INCONCLUSIVE."
)
NO_EXPERIMENT = "EXPLORATORY. The command names no experiment, so nothing is preregistered:"
DEVIATES = (
    "EXPLORATORY. The terms were not fixed before results were known, so the error rates below do not hold:"
)


def build(report: Report, context: PageContext) -> Section:
    """Build the first screen."""
    verdict = report.verdict
    blocks: list[Block] = []
    if short_training := describe_short_training(report.budget):
        blocks.append(Text(short_training, style="strong"))
    blocks.append(Text(answer_question(report), style="answer"))
    if scope := describe_scope(report):
        blocks.append(section.note(scope))
    blocks += [Text(sentence, style="banner") for sentence in verdict.run_warnings]
    if verdict.exploratory:
        blocks.append(Items(verdict.deviations, NO_EXPERIMENT if verdict.not_preregistered else DEVIATES))
    blocks += [replace(chart, caption=CHART_CAPTION) for chart in build_verdict_charts(report)[:1]]
    blocks.append(build_arms_table(report))
    counts = ", ".join(f"{count:,} {label}" for label, count in report.failures.status_counts)
    counts = f": {counts}" if counts else ""
    blocks.append(
        section.note(
            f"{verdict.finished:,} of {verdict.planned:,} required runs finished{counts}. ",
            Link("Failures and caveats", "#failures"),
        )
    )
    if report.preregistration:
        blocks.append(
            section.note(format_preregistration(report.preregistration, is_changed=verdict.exploratory))
        )
    return Section("verdict", "Answer", blocks, f"Verdict: {build_headline(report)}")


def build_arms_table(report: Report) -> Table:
    """A row per arm: result over complete pairs, difference, verdict and costs; unranked ones last."""
    experiment = report.experiment
    effects = list(get_primary_effects(report).values())
    label = effects[0].label if effects else experiment.metric
    digits = max((row.digits for row in effects), default=3)
    results = {arm: average_arm(report, arm) for arm in experiment.arms}
    is_ranked = {arm: _is_ranked(report, arm, results[arm], effects) for arm in experiment.arms}
    sign = -1 if experiment.direction == "higher" else 1
    arms = sorted(
        experiment.arms,
        key=lambda arm: (not is_ranked[arm], sign * (results[arm].mean or 0.0) if is_ranked[arm] else 0.0),
    )
    options = describe_arm_options(report)
    panels = [panel for panel in report.tradeoff if panel.key in COLUMN_COSTS]
    others = build_arm_columns(report)
    rates, precisions = (_collect_differing_values(report, key) for key in ("lr", "dtype"))
    has_seeds = len({result.n for result in results.values() if result.n}) > 1
    columns = [
        Column("arm"),
        Column(label, "mean", effects[0].unit if effects else "", ends=("mean_low", "mean_high")),
        Column(DELTA, "delta", ends=("low", "high")),
        Column("verdict"),
        Column("learning rate" if rates else "", "learning_rate"),
        Column("precision" if precisions else "", "precision"),
        Column("seeds" if has_seeds else "", "seeds"),
        Column("training compute" if report.compute_calibration else "", "training"),
        Column("", "is_ranked"),
        *(Column(column.label, "", column.unit) for column in others),
        *(Column(panel.label, panel.key, panel.unit) for panel in panels),
    ]
    rows = []
    for arm in arms:
        effect = next((row for row in effects if row.arm == arm), None)
        result = results[arm]
        rows.append(
            Row([
                section.arm(arm, cut_options(options[arm])),
                section.interval(result.mean, result.low, result.high, digits),
                build_effect_cell(effect),
                section.verdict(*_format_arm_verdict(report, arm, effect)),
                section.number(rates.get(arm)),
                Cell(precisions.get(arm) or NONE),
                section.number(result.n),
                build_training_cell(effect.training_equivalent if effect else None),
                Cell("", is_ranked[arm]),
                *(_format_mean(column, arm) for column in others),
                *(_format_cost(panel, arm) for panel in panels),
            ])
        )  # fmt: skip
    best = "highest" if experiment.direction == "higher" else "lowest"
    unranked = "" if all(is_ranked.values()) else "; arms that are not ranked come last"
    level = f"{100 * CONFIDENCE_LEVEL:.0f}% CI"
    members = "complete pairs" if report.is_paired else "finished runs"
    caption = (
        f"Arms by {label}, {best} first{unranked}. Means are over {members}, with {level}; {DELTA} is "
        "the arm minus the baseline. Intervals of timed costs are over interleaved repeats."
    )
    return Table("arms", section.join_text(caption, explain_wide_intervals(report)), columns, rows)


def _is_ranked(report: Report, arm: str, result: PairedMean, effects: Sequence[Effect]) -> bool:
    """Whether an arm has a result that is comparable with the baseline's."""
    effect = next((row for row in effects if row.arm == arm), None)
    has_result = (
        result.mean is not None
        if arm == report.experiment.baseline
        else bool(effect and effect.mean is not None)
    )
    return has_result and not _find_leakage_note(report, arm) and not is_untrained(report, arm)


def _format_mean(column: ArmColumn, arm: str) -> Cell:
    cell = column.cells.get(arm)
    return section.interval(cell.mean, cell.low, cell.high, column.digits) if cell else section.EMPTY


def _format_cost(panel: TradeoffPanel, arm: str) -> Cell:
    point = next((point for point in panel.points if point.arm == arm), None)
    return section.interval(point.x, point.x_low, point.x_high) if point else section.EMPTY


def _collect_differing_values(report: Report, key: str) -> dict[str, Any]:
    """Collect a value of the budget for each arm; empty if no arm's differs from the baseline's."""
    row = report.budget.find_row(key)
    values = {cell.arm: cell.value for cell in row.cells} if row else {}
    baseline_value = values.get(report.experiment.baseline)
    return values if baseline_value and {*values.values()} - {baseline_value, None} else {}


def _format_arm_verdict(report: Report, arm: str, effect: Effect | None) -> tuple[str, str]:
    """Format the verdict of an arm: the word, and the word with the reason: `NO RESULT: not measured`."""
    leakage = _find_leakage_note(report, arm)
    cell = report.grid.find_cell(arm) if report.grid else None
    if cell and cell.state == Verdict.UNTRAINED:
        return cell.state, f"{cell.state}: {cell.reason}"
    if arm == report.experiment.baseline:
        return "baseline", f"baseline: {leakage}" if leakage else "baseline"
    if effect is None or effect.verdict == EffectVerdict.NO_RESULT:
        finished = [row for row in report.runs if row.arm == arm and row.is_done]
        is_measured = any(row.metrics.get(report.experiment.metric) is not None for row in finished)
        reason = "no complete pair" if is_measured else "not measured" if finished else "no run finished"
        return EffectVerdict.NO_RESULT, f"{EffectVerdict.NO_RESULT}: {reason}"
    level = format_effect_level(effect, report.experiment.direction)
    if effect.verdict == EffectVerdict.LEAKING:
        return effect.verdict, f"{effect.verdict} (by design)" if leakage else f"{effect.against} {BY_DESIGN}"
    if leakage and not effect.reasons:
        return effect.verdict, f"{effect.verdict}{level}; {leakage}"
    return effect.verdict, format_effect_verdict(effect) + level


def _find_leakage_note(report: Report, arm: str) -> str:
    """Find the caveat that an arm sees future tokens; empty if it sees none."""
    if report.leakage is None or arm not in report.leakage.arms:
        return ""
    prefixes = (f"{arm} sees ", f"the predictions of {arm} depend ")
    notes = (note for note in report.failures.caveats if note.startswith(prefixes))
    return next(notes, "").removeprefix(f"{arm} ").rstrip(".")
