"""JSON form of `plan` and `status`: the runs of each plan, their states and forecasts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute.progress import WorkLeft
from attnlab.sweep.execute.work_folder import WorkerState
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast
from attnlab.sweep.status.states import RunState


def build_plan_json(
    plan: Plan,
    run_states: Mapping[str, RunState],
    forecasts: Mapping[str, Forecast],
    work: WorkLeft,
    notes: list[str],
    workers: Sequence[WorkerState] = (),
) -> dict[str, Any]:
    """Build the JSON object of a plan.

    Args:
        plan: the plan.
        run_states: run id -> state.
        forecasts: run id -> forecast; empty for `status`. Unknown seconds and bytes become null.
        work: counts of the runs and the time left.
        notes: sentences about the plan as a whole.
        workers: the living workers of `attnlab work` on the whole command.
    """
    statuses = [state.status for state in run_states.values()]
    return {
        "title": plan.title,
        "counts": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "work": asdict(work),
        "untuned": list(plan.untuned_arms),
        "notes": notes,
        "workers": [worker.model_dump() for worker in workers],
        "runs": [_build_run_json(run, run_states[run.id], forecasts.get(run.id)) for run in plan.all_runs],
    }


def _build_run_json(run: RunConfig, state: RunState, forecast: Forecast | None) -> dict[str, Any]:
    forecast_json = forecast and {
        "seconds": forecast.seconds,
        "bytes": forecast.peak_bytes,
        "guess": forecast.is_guess,
    }
    return {
        "arm": run.arm,
        "seed": run.seed,
        "id": run.id,
        "axes": run.use.axes,
        "state": state.status,
        "detail": state.detail,
        "done": round(state.fraction_done, 4),
        "budget": run.estimate.get_budget(),
        **({"forecast": forecast_json} if forecast_json else {}),
    }
