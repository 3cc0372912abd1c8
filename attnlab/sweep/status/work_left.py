"""Counts of a command's runs and the time that they take, as every view and the live display show them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.progress import WorkLeft
from attnlab.sweep.execute.work_folder import get_title, load_workers
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
    possible_tuning = [id for plan in plans for id in _list_possible_tuning_runs(plan, unfinished)]
    due_seconds = [_estimate_rest(run_states[id], times[id]) for id in runs if id in unfinished]
    possible_seconds = [times[id].seconds for id in [*(run.id for run in possible), *possible_tuning]]
    n_slots = count_slots(plans, root, settings)
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
        seconds=_estimate_wall_seconds(due_seconds, n_slots),
        max_seconds=_estimate_wall_seconds([*due_seconds, *possible_seconds], n_slots),
        slot_seconds=_add_up(due_seconds),
        n_slots=n_slots,
    )


def _list_untrainable_ids(plan: Plan, root: Path) -> set[str]:
    """List the runs of arms without a learning rate, once their tuning runs have all ended."""
    tuning_runs = (plan.rate_plan or plan).tuning_runs
    if not plan.untuned_arms or any(load_cached_result(root / run.id) is None for run in tuning_runs):
        return set()
    return {run.id for run in plan.runs if run.arm in plan.untuned_arms}


def _list_possible_tuning_runs(plan: Plan, unfinished: Collection[str]) -> list[str]:
    """List a planned tuning run of the same arm for each further one that the searches may request."""
    if plan.tuning is None or not any(run.id in unfinished for run in plan.tuning_runs):
        return []
    planned = {run.base_arm: run.id for run in plan.tuning_runs}
    return [
        planned[arm]
        for arm, entry in plan.tuning.arms.items()
        if entry.search.best_rate is None
        for _ in range(plan.tuning.grid.max_runs - len(entry.search.requested_losses))
    ]


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


def count_slots(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> int:
    """Count the runs that train at a time: those of the living workers, of SLURM, or of this machine.

    Args:
        plans: the plans of the command.
        root: the runs directory.
        settings: the config group `sweep`, and `array_parallelism` of the launcher `slurm`.
    """
    if workers := load_workers(root, get_title(plans)):
        return sum(worker.slots for worker in workers)
    if n_tasks := settings.get("array_parallelism"):
        return int(min(n_tasks, settings.get("slots") or n_tasks))
    return len(worker_slots.list_configured_slots(plans[0].runs[0].estimate.device_kind, settings))


def _estimate_rest(state: RunState, forecast: Forecast) -> float | None:
    """Estimate the seconds that a run still takes; a finished one is trained again as a whole."""
    fraction_left = 1 - state.fraction_done if state.fraction_done < 1 else 1.0
    return None if forecast.seconds is None else fraction_left * forecast.seconds


def _estimate_wall_seconds(run_seconds: Sequence[float | None], n_slots: int) -> float | None:
    total = _add_up(run_seconds)
    return None if total is None else total / max(1, min(n_slots, len(run_seconds)))


def _add_up(run_seconds: Sequence[float | None]) -> float | None:
    """Add up the seconds of runs, an unknown time as the mean of the others; None if all are unknown."""
    if not run_seconds:
        return 0.0
    known = [seconds for seconds in run_seconds if seconds is not None]
    return sum(known) * len(run_seconds) / len(known) if known else None
