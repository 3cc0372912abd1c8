"""What `plan` and `status` know, for programs: of each plan its runs, where they stand and what they take."""

from collections.abc import Mapping
from typing import Any

from attnlab.store.schema import RunSpec
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast
from attnlab.sweep.status.states import State


def plan_as_json(
    plan: Plan, run_states: Mapping[str, State], forecasts: Mapping[str, Forecast], lines: list[str]
) -> dict[str, Any]:
    """`lines`: what is said of the plan as a whole. Seconds and bytes are null where nothing tells."""
    words = [state.word for state in run_states.values()]
    return {
        "title": plan.title,
        "counts": {word: words.count(word) for word in dict.fromkeys(words)},
        "untuned": list(plan.untuned),
        "said": lines,
        "runs": [_run(run, run_states[run.id], forecasts.get(run.id)) for run in plan.all_runs],
    }


def _run(run: RunSpec, state: State, forecast: Forecast | None) -> dict[str, Any]:
    taken = forecast and {"seconds": forecast.seconds, "bytes": forecast.bytes, "guess": forecast.guess}
    return {
        "arm": run.arm,
        "seed": run.seed,
        "id": run.id,
        "axes": run.use.axes,
        "state": state.word,
        "detail": state.detail,
        "done": round(state.done, 4),
        "budget": run.estimate.budget(),
        **({"forecast": taken} if taken else {}),
    }
