"""Counts of a command's runs and the time that they take, as every view and the live display show them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.progress import WorkLeft
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status import interim_status
from attnlab.sweep.status.forecast import Forecast, forecast_runs
from attnlab.sweep.status.states import UNFINISHED_STATES, RunState, load_cached_result, load_finished_results

TUNING = "learning-rate tuning"
CALIBRATION = "compute calibration"


def load_work_left(
    plans: Sequence[Plan], root: Path, settings: Mapping[str, Any], launched: Collection[str] = ()
) -> WorkLeft:
    """Load the states of all runs and count the work left.

    Args:
        plans: the plans of the command; a run of several plans counts once.
        root: the runs directory.
        settings: the config group `sweep`.
        launched: ids of runs that are being trained or measured again, whatever their stored results.
    """
    finished = load_finished_results(root)
    states = [interim_status.load_plan_states(plan, root) for plan in plans]
    forecasts = [
        forecast_runs(plan, run_states, finished, root)
        for plan, run_states in zip(plans, states, strict=True)
    ]
    return count_work_left(plans, root, settings, states, forecasts, launched)


def count_work_left(
    plans: Sequence[Plan],
    root: Path,
    settings: Mapping[str, Any],
    states: Sequence[Mapping[str, RunState]],
    forecasts: Sequence[Mapping[str, Forecast]],
    launched: Collection[str] = (),
) -> WorkLeft:
    """Count the work left, as `load_work_left`, from each plan's run states and forecasts."""
    untrainable = {id for plan in plans for id in _list_untrainable_ids(plan, root)}
    certain = {id for plan in plans for id in interim_status.list_certain_ids(plan, root)} - untrainable
    run_states = {id: state for plan_states in states for id, state in plan_states.items()}
    times = {id: forecast for plan_forecasts in forecasts for id, forecast in plan_forecasts.items()}
    runs = {run.id: run for plan in plans for run in plan.all_runs}
    untuned_ids = {run.id for plan in plans for run in plan.runs if run.arm in plan.untuned_arms}
    unfinished = {
        id
        for id in certain
        if run_states[id].status in (*UNFINISHED_STATES, interim_status.LATER)
        or id in untuned_ids  # its id changes with the learning rate
        or id in launched
    }
    possible = [
        run
        for run in runs.values()
        if run.id not in certain | untrainable and run_states[run.id].status == interim_status.LATER
    ]
    possible_tuning = [run for plan in plans for run in _list_possible_tuning_runs(plan, unfinished)]
    due = [runs[id] for id in runs if id in unfinished]
    n_slots = count_slots([*runs.values()], settings)
    return WorkLeft(
        stage=_name_stage(plans, root, unfinished),
        n_ended=len(certain) - len(unfinished),
        n_failed=sum(
            id not in unfinished and run_states[id].status not in ("done", interim_status.NOT_NEEDED)
            for id in certain
        ),
        n_required=len(certain),
        n_possible=len(possible),
        n_possible_tuning=len(possible_tuning),
        seconds=_estimate_wall_seconds(due, run_states, times, n_slots),
        max_seconds=_estimate_wall_seconds([*due, *possible, *possible_tuning], run_states, times, n_slots),
        slot_seconds=estimate_slot_seconds(due, run_states, times),
        n_slots=n_slots,
    )


def _list_untrainable_ids(plan: Plan, root: Path) -> set[str]:
    """List the runs of arms without a learning rate, once their tuning runs have all ended."""
    tuning_runs = (plan.rate_plan or plan).tuning_runs
    if not plan.untuned_arms or any(load_cached_result(root / run.id) is None for run in tuning_runs):
        return set()
    return {run.id for run in plan.runs if run.arm in plan.untuned_arms}


def _list_possible_tuning_runs(plan: Plan, unfinished: Collection[str]) -> list[RunConfig]:
    """List a planned tuning run for each further one that the search for learning rates may request."""
    if plan.tuning is None or not any(run.id in unfinished for run in plan.tuning_runs):
        return []
    n_possible = plan.tuning.grid.max_runs * len(plan.tuning.arms) - len(plan.tuning_runs)
    return plan.tuning_runs[:1] * max(0, n_possible)


def _name_stage(plans: Sequence[Plan], root: Path, unfinished: Collection[str]) -> str:
    """Name the earliest stage with unfinished runs; empty for runs without claims."""

    def has_unfinished(select_runs: Callable[[Plan], Sequence[RunConfig]]) -> bool:
        return any(run.id in unfinished for plan in plans for run in select_runs(plan))

    if has_unfinished(lambda plan: plan.tuning_runs):
        return TUNING
    if has_unfinished(lambda plan: plan.ready_calibration_runs):
        return CALIBRATION
    pending = [interim_status.list_pending_analyses(plan, root) for plan in plans]
    numbers = sorted({number for analyses in pending for number in analyses})
    n_planned = max((len(interim_status.list_analysis_seeds(plan)) for plan in plans), default=0)
    if not numbers:
        return "comparison" if any(plan.experiment for plan in plans) else ""
    name = "interim analysis" if len(numbers) == 1 else "interim analyses"
    return f"{name} {', '.join(map(str, numbers))} of {n_planned}"


def count_slots(runs: Sequence[RunConfig], settings: Mapping[str, Any]) -> int:
    """Count the worker slots of this machine for the runs."""
    return len(worker_slots.list_configured_slots(runs[0].estimate.device_kind, settings))


def _estimate_wall_seconds(
    runs: Sequence[RunConfig],
    run_states: Mapping[str, RunState],
    forecasts: Mapping[str, Forecast],
    n_slots: int,
) -> float | None:
    seconds = estimate_slot_seconds(runs, run_states, forecasts)
    return None if seconds is None else seconds / max(1, min(n_slots, len(runs)))


def estimate_slot_seconds(
    runs: Sequence[RunConfig], run_states: Mapping[str, RunState], forecasts: Mapping[str, Forecast]
) -> float | None:
    """Estimate the remaining slot-seconds of `runs`; None if no run's time is known.

    Runs with an unknown time count as the mean of the others.
    """
    if not runs:
        return 0.0
    seconds_left = [
        (1 - (run_states[run.id].fraction_done if run_states[run.id].fraction_done < 1 else 0.0)) * seconds
        for run in runs
        if (seconds := forecasts[run.id].seconds) is not None
    ]
    return sum(seconds_left) * len(runs) / len(seconds_left) if seconds_left else None
