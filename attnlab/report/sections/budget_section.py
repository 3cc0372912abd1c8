"""Budget check: the resources of each arm against the baseline, and the search of learning rates."""

from collections.abc import Iterator
from statistics import fmean
from typing import Final

from attnlab.report import section
from attnlab.report.number_format import TIMES, append_unit, format_number, format_percent
from attnlab.report.schema import (
    BudgetCell,
    LearningRateRow,
    Report,
    SelectionStatistic,
    TrialValue,
    TuningSection,
)
from attnlab.report.section import Block, Cell, Column, Fold, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import MANY_ARMS
from attnlab.report.verdicts.budget_check import UNMATCHED, classify_budget_cell

PLACE: Final = 40
SIGNS: Final = {  # state of a cell -> its sign and its description in the caption
    "equal": ("✓", "equal to the baseline within the row’s tolerance"),
    "differs": ("≠", "differs"),
    "differs, controlled": ("✗", "differs although controlled"),
    UNMATCHED: ("†", UNMATCHED),
    "unknown": ("?", "unknown"),
}


def build(report: Report, context: PageContext) -> Section:
    """Build the budget check."""
    blocks: list[Block] = [
        Text(" ".join(_explain_check(report)), style="lead"),
        _build_table(report),
        *map(Text, _describe_layers(report)),
    ]
    tuning = report.budget.tuning
    statistic = _get_selection_statistic(report)
    if tuning and len(report.experiment.arms) <= MANY_ARMS:
        blocks.append(section.note(_describe_picked_rates(tuning, statistic)))
    blocks.append(section.note(f"Learning-rate tuning: {report.budget.lr_tuning}."))
    if report.compute_calibration:
        blocks.append(section.note(f"Compute calibration: {report.compute_calibration.cost}."))
    if tuning:
        blocks.append(Fold("Learning-rate search", [_build_search_table(tuning, statistic)]))
    return Section("budget", "Budget", blocks, "Budget check")


def _explain_check(report: Report) -> Iterator[str]:
    budget = report.budget
    yield f"Resources of each arm, and their ratio to {report.experiment.baseline}."
    if budget.controlled:
        yield (
            "A difference in a row marked as controlled makes the claims NOT COMPARABLE; any other may be "
            "the point of the experiment."
        )
    else:
        yield "The experiment controls no resource."
    if budget.match != "none":
        through = f", through {budget.match_by}" if budget.match_by else ""
        unmatched = f"; {', '.join(budget.unmatched)} not matched" if budget.unmatched else ""
        yield f"Matched by {budget.match}{through}{unmatched}."


def _build_table(report: Report) -> Table:
    """A row per resource, a column per arm."""
    budget = report.budget
    columns = [
        Column("resource"),
        Column("", "unit"),
        Column("", "controlled"),
        *map(Column, report.experiment.arms),
        Column("tolerance"),
    ]
    rows: list[list[Cell | str]] = [
        [
            Cell(append_unit(row.label, row.unit), row.key, note="(controlled)" if row.controlled else ""),
            row.unit,
            Cell("", row.controlled),
            *(_build_cell(cell, classify_budget_cell(budget, row, cell)) for cell in row.cells),
            Cell(_format_tolerance(row.tolerance), row.tolerance, kind="number"),
        ]
        for row in budget.rows
    ]
    finished: list[Cell | str] = [
        Cell(
            f"{count.finished} of {count.planned}",
            count.finished,
            kind="number",
            mark=("✓", "all finished") if count.finished == count.planned else ("✗", "not all finished"),
        )
        for count in budget.seeds
    ]
    rows.append(
        [
            Cell("finished seeds of required", "finished_seeds"), "", Cell("", False), *finished,
            Cell("", kind="number"),
        ]
    )  # fmt: skip
    states = [state for state in SIGNS if state != UNMATCHED or budget.unmatched]
    signs = ", ".join(" ".join(SIGNS[state]) for state in states)
    return Table("budget", f"Budgets. {signs}.", columns, rows, by_arm=True)


def _build_cell(cell: BudgetCell, state: str) -> Cell:
    text = format_number(cell.value) + (" (varies by seed)" if cell.varies else "")
    ratio = "" if cell.ratio in (None, 1) else f"{format_number(cell.ratio, 3)}{TIMES}"
    kind: section.CellKind = "text" if isinstance(cell.value, str) else "number"
    return Cell(text, cell.value, note=ratio, kind=kind, mark=(SIGNS[state][0], state))


def _format_tolerance(tolerance: float | None) -> str:
    if tolerance is None:
        return "same value"
    return f"{format_percent(tolerance)}%" if tolerance else "none"


def _describe_layers(report: Report) -> Iterator[str]:
    """Describe the layers of each arm whose layers differ, each kind by a letter."""
    for row in report.config.layers:
        kinds = "; ".join(f"{_get_letter(kind)} {name}" for kind, name in enumerate(row.kinds))
        layers = "".join(map(_get_letter, row.layers))
        yield f"Layers of {row.arm}, first layer on the left: {layers}. {kinds}."


def _get_letter(kind: int) -> str:
    """Return the letter of a layer kind: A to H, then again from A."""
    return "ABCDEFGH"[kind % 8]


def _get_selection_statistic(report: Report) -> SelectionStatistic:
    """Return the statistic that picks a rate; in reports that do not store it, by the preregistered rule."""
    if report.budget.tuning and report.budget.tuning.statistic:
        return report.budget.tuning.statistic
    rule = report.reproduce.preregistered.get("tune") or {}
    return "median" if rule.get("robust") is None else "mean"


def _average_trials(row: LearningRateRow, statistic: SelectionStatistic) -> TrialValue:
    """Average a rate over all tuning seeds; None if a seed was not tried, "diverged" if it has no number."""
    if statistic == "median" or row.median is None:
        return row.median
    numbers = [value for value in row.values if isinstance(value, float)]
    return fmean(numbers) if len(numbers) == len(row.values) else "diverged"


def _describe_picked_rates(tuning: TuningSection, statistic: SelectionStatistic) -> str:
    """Describe each arm's rate: `Learning rates: mha 0.006 (1.714), by the mean loss of 3 tuning seeds.`"""
    rates = [
        f"{entry.arm} {format_number(row.lr)} ({format_number(_average_trials(row, statistic), 3)})"
        for entry in tuning.arms
        for row in entry.rows
        if row.picked
    ]
    count = f"{len(tuning.seeds)} tuning seeds"
    return f"Learning rates: {', '.join(rates) or 'none'}, by the {statistic} {tuning.metric} of {count}."


def _build_search_table(tuning: TuningSection, statistic: SelectionStatistic) -> Table:
    """A row per arm and tried learning rate, a column per tuning seed."""
    columns = [
        Column("arm"),
        Column("learning rate", "lr"),
        *(Column(f"seed {seed}", f"seed_{seed}") for seed in tuning.seeds),
        Column(statistic),
        Column("outcome"),
        Column("", "picked"),
        Column("tokens of the arm’s search", "tokens"),
        Column(f"{TIMES} its comparison’s", "comparison_ratio"),
    ]
    rows = [
        [
            section.arm(entry.arm),
            section.number(row.lr),
            *map(_build_trial_cell, (*row.values, _average_trials(row, statistic))),
            Cell(row.outcome, mark=("✓", "picked") if row.picked else None),
            Cell("", row.picked),
            section.number(entry.tokens),
            section.number(entry.comparison_ratio, 2),
        ]
        for entry in tuning.arms
        for row in entry.rows
    ]
    caption = (
        f"Every tried learning rate: {tuning.metric} for each tuning seed, the {statistic} of the "
        f"{len(tuning.seeds)} seeds, which selects the rate, and the outcome; ✓ marks the rate of the "
        "comparison."
    )
    return Table("learning_rates", caption, columns, rows)


def _build_trial_cell(value: TrialValue) -> Cell:
    return Cell(value, kind="number") if isinstance(value, str) else section.number(value, 3)
