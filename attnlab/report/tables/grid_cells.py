"""The grid of a sweep without an experiment: cells, and main effects per axis.

It describes and tests nothing. Statistics use trained and comparable cells only: models that have barely
learned, or that are evaluated on other data, say nothing about an axis.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from attnlab import stats
from attnlab.errors import format_seeds
from attnlab.report.grid_schema import CellState, GridAxis, GridCell, GridSection, OptionEffect
from attnlab.report.schema import BudgetCheck, Verdict
from attnlab.report.verdicts import comparability, leakage_check
from attnlab.report.verdicts.budget_check import find_untrained_reason
from attnlab.report.verdicts.results import SweepResults
from attnlab.report.verdicts.verdict_rules import count_decimals, decide_claim_verdict
from attnlab.store.experiment_schema import SweptGrid

STATES: dict[Verdict, CellState] = {
    Verdict.NO_RESULT: "NO RESULT",
    Verdict.NOT_COMPARABLE: "NOT COMPARABLE",
    Verdict.UNTRAINED: "UNTRAINED",
    Verdict.INCONCLUSIVE: "TRAINED",  # undecided, because the grid decides nothing
}


def build_grid_section(sweep: SweepResults, budget_check: BudgetCheck) -> GridSection | None:
    """Build the grid of a sweep; None for an experiment."""
    grid = sweep.context.grid
    if grid is None:
        return None
    metric = sweep.get_metric(sweep.experiment.metric)
    reference = _find_reference_arm(sweep)
    cells = [_build_cell(sweep, budget_check, grid, arm, reference) for arm in grid.cells]
    trained_arms = {cell.arm for cell in cells if cell.state == "TRAINED"}
    values, present = _collect_values(sweep, grid, trained_arms)
    axes = [_build_axis(grid, index, values, present) for index in range(len(grid.axes))]
    best, best_note = _find_best_cell(sweep, cells)
    return GridSection(
        metric=metric.name,
        label=metric.display_name,
        unit=metric.unit,
        direction=sweep.experiment.direction,
        digits=_count_digits(cells),
        axes=axes,
        cells=cells,
        best=best,
        best_note=best_note,
    )


def _find_reference_arm(sweep: SweepResults) -> str:
    """Find the arm that all cells are comparable with: the first with a finished run, without leakage."""
    finished = [arm for arm in sweep.arms if sweep.get_finished_runs(arm)]
    valid = [arm for arm in finished if not leakage_check.find_leaking_results(sweep, arm)]
    return next(iter([*valid, *finished, sweep.baseline]))


def _build_cell(
    sweep: SweepResults, budget_check: BudgetCheck, grid: SweptGrid, arm: str, reference: str
) -> GridCell:
    metric = sweep.experiment.metric
    options = list(grid.cells[arm])
    if arm in grid.rejected:
        reason = f"rejected: {grid.rejected[arm]}"
        return GridCell(
            arm=arm, options=options, mean=None, sd=None, n=0, planned=0, state="NO RESULT", reason=reason
        )
    values = sweep.get_values(arm, metric)
    reasons = comparability.list_incomparability_reasons(sweep, budget_check, arm, reference, metric)
    untrained_reason = find_untrained_reason(sweep, [arm])
    verdict = decide_claim_verdict(
        None,
        n=len(values),
        comparable=not reasons,
        shortfall=None if untrained_reason is None else Verdict.UNTRAINED,
    )
    text = {
        Verdict.NO_RESULT: _describe_missing_runs(sweep, arm),
        Verdict.NOT_COMPARABLE: "; ".join(reason.text for reason in reasons),
        Verdict.UNTRAINED: untrained_reason or "",
    }.get(verdict, "")
    if verdict != Verdict.NO_RESULT and len(values) < len(sweep.get_runs(arm)):
        text = "; ".join(filter(None, [text, _describe_missing_runs(sweep, arm)]))
    return GridCell(
        arm=arm,
        options=options,
        mean=fmean(values) if values else None,
        sd=stdev(values) if len(values) > 1 else None,
        n=len(values),
        planned=len(sweep.get_runs(arm)),
        state=STATES[verdict],
        reason=text,
    )


def _describe_missing_runs(sweep: SweepResults, arm: str) -> str:
    """Describe the runs of an arm without a value: `not finished: seeds 1 and 2`."""
    seeds_by_status: dict[str, list[int]] = {}
    for run in sweep.get_runs(arm):
        if sweep.get_value(arm, run.seed, sweep.experiment.metric) is None:
            status = {"missing": "not finished", "done": "not measured"}.get(run.status, run.status)
            seeds_by_status.setdefault(status.replace("_", " "), []).append(run.seed)
    return "; ".join(
        f"{status}: seed{'s' if len(seeds) > 1 else ''} {format_seeds(seeds)}"
        for status, seeds in seeds_by_status.items()
    )


def _collect_values(
    sweep: SweepResults, grid: SweptGrid, arms: set[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Collect the metric of some arms as [option of axis 1, ..., option of axis k, seed], and which exist."""
    values = np.zeros((*map(len, grid.axes.values()), len(sweep.seeds)))
    present = np.zeros(values.shape, dtype=bool)
    for arm, options in grid.cells.items():
        index = tuple(names.index(option) for names, option in zip(grid.axes.values(), options, strict=True))
        for position, seed in enumerate(sweep.seeds):
            value = sweep.get_value(arm, seed, sweep.experiment.metric) if arm in arms else None
            if value is not None:
                values[*index, position] = value
                present[*index, position] = True
    return values, present


def _build_axis(
    grid: SweptGrid, index: int, values: NDArray[np.float64], present: NDArray[np.bool_]
) -> GridAxis:
    key, options = list(grid.axes.items())[index]
    result = stats.average_options(values, present, index)
    effects = (
        [
            OptionEffect(option=option, mean=mean, difference=difference, low=low, high=high)
            for option, mean, difference, (low, high) in zip(
                options, result.means, result.differences, result.ranges, strict=True
            )
        ]
        if result
        else []
    )
    return GridAxis(
        key=key,
        name=grid.short_names[key],
        options=list(options),
        effects=effects,
        combinations=result.n_combinations if result else 0,
        blocks=result.n_blocks if result else 0,
        reason=""
        if result
        else "no combination of the other axes has a trained, comparable run of each option",
    )


def _find_best_cell(sweep: SweepResults, cells: Sequence[GridCell]) -> tuple[str | None, str]:
    """Find the best cell among trained, comparable ones, over the seeds that all of them finished.

    A cell with a diverged run is none of them: the mean of its other runs leaves out its worst outcome.
    """
    diverged = {run.arm for run in sweep.planned_runs if run.status == "diverged"}
    trained = [cell.arm for cell in cells if cell.state == "TRAINED"]
    candidates = [arm for arm in trained if arm not in diverged]
    if len(candidates) < 2:
        return None, "fewer than two cells are trained, comparable and without a diverged run"
    metric = sweep.experiment.metric
    table = {arm: {seed: sweep.get_value(arm, seed, metric) for seed in sweep.seeds} for arm in candidates}
    common = [seed for seed in sweep.seeds if all(row[seed] is not None for row in table.values())]
    if not common:
        return None, "the trained cells share no finished seed"
    sign = -1 if sweep.experiment.direction == "higher" else 1
    means = {
        arm: fmean(value for seed in common if (value := row[seed]) is not None) for arm, row in table.items()
    }
    best = min(means, key=lambda arm: sign * means[arm])
    partial = len(common) < len(sweep.seeds)
    seeds = f"seed{'s' if len(common) > 1 else ''} {format_seeds(common)}"
    notes = [f"compared over {seeds}, which all of these cells finished"] if partial else []
    if excluded := [arm for arm in trained if arm in diverged]:
        notes.append(f"not counted, because a run diverged: {', '.join(excluded)}")
    return best, "; ".join(notes)


def _count_digits(cells: Sequence[GridCell]) -> int:
    """Count the decimals of a cell's mean from its standard error; three if no cell has two seeds."""
    repeated = [cell for cell in cells if cell.sd is not None]
    if not repeated:
        return count_decimals(None)
    variance = fmean((cell.sd or 0.0) ** 2 for cell in repeated)
    return count_decimals(2 * math.sqrt(variance / max(cell.n for cell in repeated)))
