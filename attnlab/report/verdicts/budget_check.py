"""Budget check: resources of each arm against the baseline, and whether they are equal.

A difference in a row that the experiment declares `controlled` makes a claim NOT COMPARABLE. Any other
difference is only marked, in words and without alarm: it may be the point of the experiment (fewer KV bytes).
"""

import math
from collections.abc import Sequence
from typing import Any, get_args

from attnlab.report.number_format import format_number
from attnlab.report.schema import ArmRunCount, BudgetCell, BudgetCheck, BudgetRow, Verdict
from attnlab.report.verdicts.results import (
    IncomparabilityReason,
    Run,
    SweepResults,
    get_common_value,
    get_resource,
)
from attnlab.report.verdicts.tuning_summary import TUNING_TOKENS_METRIC, build_tuning_section, describe_tuning
from attnlab.store.config_groups import EPOCHS_KEY, format_repetition_warning
from attnlab.store.experiment_schema import resolve_resource_alias
from attnlab.store.run_schema import Budget, Metric, RunResult

# Relative differences that count as equal; other numbers, and texts, must be exactly equal.
TOLERANCES = {
    "parameters": 0.01,
    "parameters_non_embedding": 0.01,
    "parameters_attention": 0.01,
    "flops_per_token": 0.01,
}


TOKENS_KEY = "tokens"


def get_tolerance(key: str) -> float | None:
    """Return the relative tolerance of a resource; None if its values are text."""
    field = Budget.model_fields.get(key)
    return None if field and str in get_args(field.annotation) else TOLERANCES.get(key, 0.0)


def _summarize_resource(runs: list[Run], key: str) -> tuple[Any, bool]:
    """Return an arm's value, and whether its seeds disagree; then it is their mean, or all distinct texts."""
    values = [get_resource(run.result, key) for run in runs if run.result]
    if key == TOKENS_KEY:  # including those its ancestors were trained on
        values = [
            None if own is None or run.ancestor_tokens is None else own + run.ancestor_tokens
            for own, run in zip(values, (run for run in runs if run.result), strict=True)
        ]
    present = [value for value in values if value is not None]
    if not present or get_common_value(present) is not None:
        return (present[0] if present else None), False
    if all(isinstance(value, int | float) for value in present):
        return sum(present) / len(present), True
    return ", ".join(sorted({str(value) for value in present})), True


def _is_within_tolerance(value: Any, baseline_value: Any, tolerance: float | None) -> bool:
    if tolerance is None or not isinstance(value, int | float) or not isinstance(baseline_value, int | float):
        return bool(value == baseline_value)
    return abs(value - baseline_value) <= tolerance * abs(baseline_value)


def build_budget_check(sweep: SweepResults) -> BudgetCheck:
    """Build a row per resource and a cell per arm with its value, its ratio to the baseline and its mark."""
    controlled = {resolve_resource_alias(name) for name in sweep.experiment.controlled}
    resources = tuple(Budget.model_fields)
    rows = list[BudgetRow]()
    for key in [*resources, *sorted(controlled - {*resources, TUNING_TOKENS_METRIC.name})]:
        values = {arm: _summarize_resource(sweep.get_finished_runs(arm), key) for arm in sweep.arms}
        if key == EPOCHS_KEY and key not in controlled and not any(value for value, _ in values.values()):
            continue  # sampled tasks repeat no text, and older run results lack the key
        rows.append(_build_budget_row(sweep, sweep.get_metric(key), values, key in controlled))
    tuning = build_tuning_section(sweep)
    if tuning is not None:
        tokens_by_arm: dict[str, tuple[Any, bool]] = {
            entry.arm: (entry.tokens, False) for entry in tuning.arms
        }
        rows.append(
            _build_budget_row(
                sweep, TUNING_TOKENS_METRIC, tokens_by_arm, TUNING_TOKENS_METRIC.name in controlled
            )
        )
    counts = [
        ArmRunCount(arm=arm, planned=len(sweep.get_runs(arm)), finished=len(sweep.get_finished_runs(arm)))
        for arm in sweep.arms
    ]
    return BudgetCheck(
        rows=rows,
        controlled=sorted(controlled),
        seeds=counts,
        match=sweep.experiment.match,
        match_by=sweep.experiment.match_by,
        unmatched=[arm for arm in sweep.experiment.unmatched if arm in sweep.arms],
        lr_tuning=describe_tuning(sweep),
        tuning=tuning,
    )


def describe_repeated_epochs(sweep: SweepResults) -> list[str]:
    """Describe the arms that repeat their corpus too often; [] if none does."""
    sentence = format_repetition_warning(
        {arm: _summarize_resource(sweep.get_finished_runs(arm), EPOCHS_KEY)[0] for arm in sweep.arms}
    )
    return [f"{sentence[0].upper()}{sentence[1:]}."] if sentence else []


UNMATCHED = "unmatched by design"  # state of a budget cell
MIN_TRAINED_STEPS = 50  # a model trained for fewer steps is not judged
DEMONSTRATION_STEPS = 200  # fewer steps show no design at its best
GUESSING_LOSS_RATIO = 0.98  # of the loss of a guess; above it the model counts as untrained


def find_training_shortfall(
    sweep: SweepResults, budget_check: BudgetCheck, arms: Sequence[str]
) -> Verdict | None:
    """Find why no claim about the training of these arms can be decided; None if it can be."""
    if find_untrained_reason(sweep, arms) is not None:
        return Verdict.UNTRAINED
    return Verdict.DEMONSTRATION if describe_short_training(budget_check) else None


def describe_short_training(budget_check: BudgetCheck) -> str:
    """Describe training that is too short for a finding about any design; empty for longer training.

    That is fewer than 200 steps, with those of a parent run, and less than one pass over the training text.
    """
    totals = list[float]()
    resources = {
        row.key: {cell.arm: cell.value for cell in row.cells if isinstance(cell.value, int | float)}
        for row in budget_check.rows
    }
    batches, epochs = resources.get("batch_tokens", {}), resources.get(EPOCHS_KEY, {})
    for arm, tokens in resources.get(TOKENS_KEY, {}).items():
        if tokens and (batch := batches.get(arm)):  # the arm has a finished run, and trains
            totals.append(tokens / batch)
            if totals[-1] >= DEMONSTRATION_STEPS or (epochs.get(arm) or 0) >= 1:
                return ""
    if not totals:
        return ""
    fewest, most = (format_number(round(end(totals))) for end in (min, max))
    steps = fewest if fewest == most else f"{fewest} to {most}"
    return f"Trained for {steps} steps: a demonstration of the report, not a finding about the designs."


def find_untrained_reason(sweep: SweepResults, arms: Sequence[str]) -> str | None:
    """Find the reason these arms show no effect of training; None if they do.

    Runs that measure or continue another run are as trained as that one.
    """
    trained_here = [
        result
        for arm in arms
        for result in sweep.get_finished_results(arm)
        if not (result.config.get("parent") or result.config.get("measurement"))
    ]
    if short_runs := [
        int(steps)
        for result in trained_here
        if (steps := result.estimate.get("steps")) is not None and steps < MIN_TRAINED_STEPS
    ]:
        fewest = f"{min(short_runs)} step{'s' if min(short_runs) > 1 else ''}"
        return f"trained for {fewest}, below the minimum of {MIN_TRAINED_STEPS}"
    if trained_here and all(map(_is_guessing, trained_here)):
        return "no better than guessing at the end of training"
    return None


def _is_guessing(result: RunResult) -> bool:
    """Whether no loss of a run beats a uniform guess, or on generated data the best guess by frequencies."""
    definitions = result.estimate.metric_definitions.values()
    names = [one.name for one in definitions if (one.unit, one.evaluated_on) == ("nats", "targets")]
    losses = [loss for name in names if (loss := result.get_value(name)) is not None]
    size = result.estimate.data.get("vocab_size")
    if not losses or not size or size < 2:
        return False
    guess = result.estimate.data.get("guessing_loss") or math.log(size)
    return bool(min(losses) > GUESSING_LOSS_RATIO * guess)


def _build_budget_row(
    sweep: SweepResults, metric: Metric, measured: dict[str, tuple[Any, bool]], controlled: bool
) -> BudgetRow:
    tolerance = get_tolerance(metric.name)
    baseline_value = measured[sweep.baseline][0]
    cells = []
    for arm in sweep.arms:
        value, varies = measured[arm]
        missing = value is None or baseline_value is None
        same = None if missing else _is_within_tolerance(value, baseline_value, tolerance) and not varies
        ratio = (
            value / baseline_value
            if not missing and isinstance(value, int | float) and baseline_value
            else None
        )
        cells.append(BudgetCell(arm=arm, value=value, ratio=ratio, same=same, varies=varies))
    comparisons = [cell.same for cell in cells if cell.same is not None]
    return BudgetRow(
        key=metric.name,
        label=metric.display_name,
        unit=metric.unit,
        tolerance=tolerance,
        controlled=controlled,
        cells=cells,
        mark="unknown" if not comparisons else "equal" if all(comparisons) else "differs",
    )


def classify_budget_cell(budget: BudgetCheck, row: BudgetRow, cell: BudgetCell) -> str:
    """State of a budget cell: equal, differs (controlled or not), unmatched by design, or unknown."""
    if cell.same is None:
        return "unknown"
    if cell.same:
        return "equal"
    if not row.controlled:
        return "differs"
    return UNMATCHED if is_unmatched(budget, row, cell.arm) else "differs, controlled"


def is_unmatched(budget_check: BudgetCheck, row: BudgetRow, arm: str) -> bool:
    """Whether the experiment matches the resource of a row, but leaves this arm unmatched by design."""
    return arm in budget_check.unmatched and row.key == resolve_resource_alias(budget_check.match)


def find_budget_violations(budget_check: BudgetCheck, arm: str, against: str) -> list[IncomparabilityReason]:
    """Find the controlled rows in which two arms differ or may differ; they make a claim NOT COMPARABLE.

    The matched resource is no reason against an arm that was left unmatched. A resource may differ if only
    one of two finished arms reports it.
    """
    reasons = list[IncomparabilityReason]()
    finished_arms = {count.arm for count in budget_check.seeds if count.finished}
    for row in budget_check.rows:
        if not row.controlled or any(is_unmatched(budget_check, row, name) for name in (arm, against)):
            continue
        cell, against_cell = (row.get_cell(name) for name in (arm, against))
        missing = [each.arm for each in (cell, against_cell) if each.value is None]
        if missing:
            if len(missing) == 1 and missing[0] in finished_arms:
                text = f"{row.label}: controlled, but {missing[0]} has no value"
                reasons.append(IncomparabilityReason(row.label, text))
            continue
        if cell.varies or against_cell.varies:
            text = f"{row.label}: controlled, but differs between seeds"
            reasons.append(IncomparabilityReason(row.label, text))
        elif not _is_within_tolerance(cell.value, against_cell.value, row.tolerance):
            difference = (
                f"{_format_budget_cell(cell)} in {arm} and {_format_budget_cell(against_cell)} in {against}"
            )
            text = f"{row.label}: controlled, but {difference}"
            reasons.append(IncomparabilityReason(row.label, text))
    return reasons


def _format_budget_cell(cell: BudgetCell) -> str:
    value = cell.value
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.6g}"
        if isinstance(value, float)
        else str(value)
    )
