"""`plan` and `status`: a table of a command's runs, before, while and after they are trained."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from attnlab.errors import Refused, nearest, printable
from attnlab.store.runs import record
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.progress import duration
from attnlab.sweep.plan.exchange.told import lines as exchanged
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast, Forecaster, seeds_asked
from attnlab.sweep.status.states import State, records, states

KINDS = ("plan", "status", "watch")
_OPEN = ("to train", "running", "stopped")


def show(kind: str, plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> None:
    """Prints the plan, or how it stands; `watch` draws it anew until every run has ended."""
    if kind not in KINDS:
        raise Refused(f"sweep.show={kind}{nearest(str(kind), KINDS)}: use python -m attnlab plan, or status")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a file has room for whole lines
    if kind == "watch" and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while _open(plans, root):
                live.update(_status(plans, root), refresh=True)
                time.sleep(1)
            live.update(_status(plans, root), refresh=True)
        return
    while kind == "watch" and _open(plans, root):
        console.print(_status(plans, root))
        time.sleep(15)
    console.print(_plan(plans, root, settings) if kind == "plan" else _status(plans, root))


def _open(plans: Sequence[Plan], root: Path) -> bool:
    run_states = [state for plan in plans for state in states(plan.all_runs, root).values()]
    return any(state.word in _OPEN for state in run_states)


def _plan(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Group:
    finished = records(root)
    by_id, forecaster = {record.id: record for record in finished}, Forecaster(finished)
    parts: list[Any] = []
    for plan in plans:
        forecasts = {run.id: forecaster.of(run) for run in plan.all_runs}
        parts.append(_table(plan, states(plan.all_runs, root), forecasts))
        parts += [
            f"{arm}: its learning rate is tuned first, then its runs get their ids" for arm in plan.untuned
        ]
        parts += exchanged(plan.experiment, plan.exchange, by_id.get) if plan.experiment else []
        parts += seeds_asked(plan, by_id) if plan.experiment else []
        parts.append(_cost(plan.all_runs, states(plan.all_runs, root), forecasts, settings))
    return Group(*parts)


def _status(plans: Sequence[Plan], root: Path) -> Group:
    parts: list[Any] = []
    for plan in plans:
        run_states = states(plan.all_runs, root, weights=True)
        parts.append(_table(plan, run_states, None))
        words = [state.word for state in run_states.values()]
        counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        parts.append(
            f"{counts}; {sum(state.done for state in run_states.values()) / len(run_states):.0%} of the work"
        )
        if plan.exchange and plan.experiment:
            parts += exchanged(plan.experiment, plan.exchange, lambda id: record(root / id))
    return Group(*parts)


def _table(plan: Plan, run_states: Mapping[str, State], forecasts: Mapping[str, Forecast] | None) -> Table:
    table = Table(
        title=f"{printable(plan.title)}: {len(plan.all_runs)} runs",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    figures = ("parameters", "KV B/token", "memory", "time") if forecasts is not None else ()
    for heading in ("arm", "seed", "id", *figures, "state"):
        right = heading == "seed" or heading in figures
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for run in plan.all_runs:
        cells = []
        if forecasts is not None:
            forecast = forecasts[run.id]
            mark = "~" if forecast.guess else ""
            cells = [
                *(_count(run.estimate.get(key)) for key in ("parameters", "kv_bytes_per_token")),
                f"{forecast.bytes / 1e6:,.0f} MB" if forecast.bytes else "?",
                f"{mark}{duration(forecast.seconds)}" if forecast.seconds is not None else "?",
            ]
        table.add_row(printable(run.arm), str(run.seed), run.id, *cells, printable(str(run_states[run.id])))
    return table


def _cost(
    runs: Sequence[RunSpec],
    run_states: Mapping[str, State],
    forecasts: Mapping[str, Forecast],
    settings: Mapping[str, Any],
) -> str:
    left = [run for run in runs if run_states[run.id].word in _OPEN]
    done = sum(state.word == "done" for state in run_states.values())
    kind, shared = runs[0].estimate.device_kind, settings.get("slots_per_gpu", 1)
    number = len(slots.slots(kind, settings.get("slots"), shared))
    failed = len(run_states) - len(left) - done
    text = f"{len(left)} to train, {done} done" + (f", {failed} failed" if failed else "")
    known = [forecast for run in left if (forecast := forecasts[run.id]).seconds is not None]
    if known:
        total = sum(forecast.seconds or 0 for forecast in known) * len(left) / len(known)
        text += (
            f": about {duration(total / min(number, len(left)))} on {number} slots, {duration(total)} in all"
        )
        if any(forecast.guess for forecast in known):
            text += " (~ is scaled from another arm or size by its FLOPs)"
    elif left:
        text += ": nothing like it has been trained here, so its time is not known"
    return text


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
