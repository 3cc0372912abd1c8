"""Tables of a plan's runs: a row per run if they fit on a screen, else a row per arm."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnlab.errors import escape_unprintable, format_seeds
from attnlab.store import config_groups
from attnlab.store.run_schema import FAILED_STATUSES, LOST_STATUSES, RunConfig, RunEstimate
from attnlab.sweep.execute.progress import format_duration
from attnlab.sweep.execute.time_estimate import UNKNOWN
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.adaptive_table import AdaptiveTable
from attnlab.sweep.status.forecast import Forecast
from attnlab.sweep.status.states import RunState

SCREEN_ROWS = 20  # with more runs, a table has a row per arm
FIGURE_COLUMNS = ("parameters", "KV B/token", "epochs", "memory", "time")
# dropped in this order on a narrow terminal
OPTIONAL_COLUMNS = ("KV B/token", "epochs", "parameters", "id", "memory", "time", "seeds")
FAILED_STATES = (*FAILED_STATUSES, *LOST_STATUSES)


def build_run_table(
    plan: Plan, run_states: Mapping[str, RunState], forecasts: Mapping[str, Forecast] | None, by_arm: bool
) -> AdaptiveTable:
    """Build the table of a plan's runs.

    Args:
        plan: the plan.
        run_states: run id -> state.
        forecasts: run id -> forecast, for columns with sizes and times; None leaves them out.
        by_arm: whether a row stands for an arm instead of a run.
    """
    arms: dict[str, list[RunConfig]] = {}
    for run in plan.all_runs:
        arms.setdefault(run.arm, []).append(run)
    figures = FIGURE_COLUMNS if forecasts is not None else ()
    label_columns = ("arm", "runs", "seeds") if by_arm else ("arm", "seed", "id")
    right_aligned = ("seed", "runs", *figures)
    headings = {
        heading: "right" if heading in right_aligned else "left"
        for heading in (*label_columns, *figures, "state")
    }
    title = f"{escape_unprintable(plan.title)}: {len(plan.all_runs)} runs"
    table = AdaptiveTable(title, headings, OPTIONAL_COLUMNS, wrapped_columns=("state",))
    groups: Iterable[list[RunConfig]] = arms.values() if by_arm else ([run] for run in plan.all_runs)
    for runs in groups:
        first = runs[0]
        states = [run_states[run.id] for run in runs]
        seeds = format_seeds(run.seed for run in runs)
        labels = (str(len(runs)), seeds) if by_arm else (seeds, first.id)
        cells = (
            [] if forecasts is None else _format_figures(first.estimate, [forecasts[run.id] for run in runs])
        )
        state = format_state_counts(states) if by_arm else str(states[0])
        table.add_row(escape_unprintable(first.arm), *labels, *cells, escape_unprintable(state))
    return table


def describe_failures(plan: Plan, run_states: Mapping[str, RunState]) -> list[str]:
    """Describe each failed run in a line, since a row per arm only counts them."""
    states = ((run, run_states[run.id]) for run in plan.all_runs)
    return [
        escape_unprintable(f"{run.arm} seed={run.seed} {run.id}: {state}")
        for run, state in states
        if state.status in FAILED_STATES
    ]


def format_state_counts(states: Sequence[RunState]) -> str:
    """Format the number of runs per state, as in `3 done, 1 to train`."""
    statuses = [state.status for state in states]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _format_figures(estimate: RunEstimate, forecasts: Sequence[Forecast]) -> list[str]:
    """Format the cells of FIGURE_COLUMNS; of several runs, the longest one's memory and time."""
    longest = max(forecasts, key=lambda forecast: forecast.seconds or 0)
    mark = "~" if longest.is_guess else ""
    return [
        *(_format_count(estimate.get(key)) for key in ("parameters", "kv_bytes_per_token")),
        _format_epochs(estimate),
        f"{longest.peak_bytes / 1e6:,.0f} MB" if longest.peak_bytes else "?",
        f"{mark}{format_duration(longest.seconds)}" if longest.seconds is not None else UNKNOWN,
    ]


def _format_epochs(estimate: RunEstimate) -> str:
    if estimate.epochs is not None:
        return config_groups.format_epochs(estimate.epochs)
    return "drawn" if estimate.steps and estimate.data.get("train_tokens") == 0 else "?"


def _format_count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
