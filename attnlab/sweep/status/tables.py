"""Tables of a plan's runs: a row per run where they fit a screen, else a row per arm."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnlab.errors import printable
from attnlab.store import values
from attnlab.store.schema import LOST, Estimate, RunSpec
from attnlab.sweep.execute.progress import duration
from attnlab.sweep.execute.time_estimate import UNKNOWN
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.fitting import Fitting
from attnlab.sweep.status.forecast import Forecast
from attnlab.sweep.status.states import State

SCREEN = 20  # runs, a row each
FIGURES = ("parameters", "KV B/token", "epochs", "memory", "time")
SPARE = ("KV B/token", "epochs", "parameters", "id", "memory", "time", "seeds")  # on a narrow terminal
FAILED = ("diverged", "crashed", "timed_out", "out_of_memory", *LOST)


def table(
    plan: Plan, run_states: Mapping[str, State], forecasts: Mapping[str, Forecast] | None, by_arm: bool
) -> Fitting:
    """Of all runs of a plan; `forecasts` add what each will take."""
    arms: dict[str, list[RunSpec]] = {}
    for run in plan.all_runs:
        arms.setdefault(run.arm, []).append(run)
    figures = FIGURES if forecasts is not None else ()
    fixed = ("arm", "runs", "seeds") if by_arm else ("arm", "seed", "id")
    right = ("seed", "runs", *figures)
    headings = {each: "right" if each in right else "left" for each in (*fixed, *figures, "state")}
    title = f"{printable(plan.title)}: {len(plan.all_runs)} runs"
    shown = Fitting(title, headings, SPARE, wraps=("state",))
    groups: Iterable[list[RunSpec]] = arms.values() if by_arm else ([run] for run in plan.all_runs)
    for runs in groups:
        first = runs[0]
        states = [run_states[run.id] for run in runs]
        named = (str(len(runs)), _seeds(runs)) if by_arm else (str(first.seed), first.id)
        cells = [] if forecasts is None else _figures(first.estimate, [forecasts[run.id] for run in runs])
        state = counted(states) if by_arm else str(states[0])
        shown.add(printable(first.arm), *named, *cells, printable(state))
    return shown


def failures(plan: Plan, run_states: Mapping[str, State]) -> list[str]:
    """A line for each run that failed, which a row per arm only counts."""
    states = ((run, run_states[run.id]) for run in plan.all_runs)
    return [
        printable(f"{run.arm} seed={run.seed} {run.id}: {state}")
        for run, state in states
        if state.word in FAILED
    ]


def counted(states: Sequence[State]) -> str:
    """How many runs stand where, as in: 3 done, 1 to train."""
    words = [state.word for state in states]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def _seeds(runs: Sequence[RunSpec]) -> str:
    """As in 20-27, or 1, 5, 9."""
    seeds = sorted({run.seed for run in runs})
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _figures(estimate: Estimate, forecasts: Sequence[Forecast]) -> list[str]:
    """What one run has and takes: the longest, where they differ."""
    longest = max(forecasts, key=lambda forecast: forecast.seconds or 0)
    mark = "~" if longest.guess else ""
    return [
        *(_count(estimate.get(key)) for key in ("parameters", "kv_bytes_per_token")),
        _epochs(estimate),
        f"{longest.bytes / 1e6:,.0f} MB" if longest.bytes else "?",
        f"{mark}{duration(longest.seconds)}" if longest.seconds is not None else UNKNOWN,
    ]


def _epochs(estimate: Estimate) -> str:
    if estimate.epochs is not None:
        return values.times(estimate.epochs)
    return "drawn" if estimate.steps and estimate.data.get("train_tokens") == 0 else "?"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
