"""`plan` and `status`: a table of a command's runs, before, while and after they are trained."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from attnlab.errors import Refused, nearest, printable
from attnlab.store import values
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.progress import duration
from attnlab.sweep.execute.time_estimate import UNKNOWN
from attnlab.sweep.plan.exchange.told import lines as exchanged
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status import looks, tables
from attnlab.sweep.status.as_json import plan_as_json
from attnlab.sweep.status.forecast import Forecast, forecast_runs
from attnlab.sweep.status.margin_seeds import describe_margin_seeds
from attnlab.sweep.status.states import OPEN, State, records

KINDS = ("plan", "status", "watch", "plan_json", "status_json")


def show(
    kind: str,
    plans: Sequence[Plan],
    root: Path,
    settings: Mapping[str, Any],
    extend: Callable[[Sequence[Plan]], Sequence[Plan]],
) -> None:
    """Prints the plan, or how it stands; `watch` draws it anew until all have ended that are needed, and
    extends the plans where what tuning has found brings new runs.
    """
    if kind not in KINDS:
        raise Refused(f"sweep.show={kind}{nearest(str(kind), KINDS)}: use python -m attnlab plan, or status")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a file has room for whole lines
    if kind.endswith("_json"):
        if kind == "plan_json":
            parts = [plan_as_json(*told) for told in _forecast(plans, root, settings)]
        else:
            parts = [
                plan_as_json(plan, looks.states(plan, root, weights=True), {}, looks.lines(plan, root))
                for plan in plans
            ]
        print(json.dumps(parts, indent=1, ensure_ascii=False))
        return
    if kind == "watch" and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while _open(plans := _today(plans, root, extend), root):
                live.update(_status(plans, root), refresh=True)
                time.sleep(1)
            live.update(_status(plans, root), refresh=True)
        return
    while kind == "watch" and _open(plans := _today(plans, root, extend), root):
        console.print(_status(plans, root))
        time.sleep(15)
    console.print(_plan(plans, root, settings) if kind == "plan" else _status(plans, root))


def _open(plans: Sequence[Plan], root: Path) -> bool:
    """Whether a run that is needed by now has not ended; those of an untuned arm are not known yet."""
    for plan in plans:
        known = {run.id for run in plan.all_runs if run.arm not in plan.untuned}
        if any(state.word in OPEN and id in known for id, state in looks.states(plan, root).items()):
            return True
    return False


def _today(
    plans: Sequence[Plan], root: Path, extend: Callable[[Sequence[Plan]], Sequence[Plan]]
) -> Sequence[Plan]:
    """The plans with the runs that what tuning has found by now asks for."""
    while any(plan.untuned for plan in plans) and not _open(plans, root):
        before = plans
        plans = extend(plans)
        if _ids(before) == _ids(plans):
            break  # an arm whose runs failed
    return plans


def _ids(plans: Sequence[Plan]) -> list[str]:
    return [run.id for plan in plans for run in plan.all_runs]


def _plan(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Group:
    parts: list[Any] = []
    told = [*_forecast(plans, root, settings)]
    for plan, run_states, forecasts, lines in told:
        many = len(plan.all_runs) > tables.SCREEN
        parts += [tables.table(plan, run_states, forecasts, by_arm=many), *lines]
    if len(told) > 1:
        runs = {run.id: run for plan in plans for run in plan.all_runs}  # once each, though plans share some
        states = {id: state for _, states, _, _ in told for id, state in states.items()}
        times = {id: forecast for _, _, forecasts, _ in told for id, forecast in forecasts.items()}
        now = [run for run in runs.values() if states[run.id].word in OPEN]
        most = [run for run in runs.values() if states[run.id].word in (*OPEN, looks.LATER)]
        number = _slots([*runs.values()], settings)
        near = f"together: {len(now)} to train by now, {_time(now, states, times, number)}"
        far = f" ... {len(most)} with all planned seeds, {_time(most, states, times, number)}"
        parts += [near + far * (len(most) > len(now))] if most else []
    return Group(*parts)


def _forecast(
    plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]
) -> Iterator[tuple[Plan, dict[str, State], dict[str, Forecast], list[str]]]:
    """Each plan, where its runs stand, what they will take, and what is said of the whole."""
    finished = records(root)
    by_id = {record.id: record for record in finished}
    for plan in plans:
        run_states = looks.states(plan, root)
        forecasts = forecast_runs(plan, run_states, finished, root)
        lines = [
            f"{arm}: its learning rate is tuned first, then its runs get their ids" for arm in plan.untuned
        ]
        if worn := values.worn({arm: runs[0].estimate.epochs for arm, runs in plan.arms().items()}):
            lines.append(f"warning: {printable(worn)}")
        lines += _too_large(plan, forecasts, settings)
        lines += _tuning(plan)
        lines += exchanged(plan.experiment, plan.exchange, by_id.get) if plan.experiment else []
        lines += describe_margin_seeds(plan, by_id) if plan.experiment else []
        lines.append(_cost(plan.all_runs, run_states, forecasts, settings))
        lines += _looks(plan, run_states, forecasts, settings)
        yield plan, run_states, forecasts, lines


def _status(plans: Sequence[Plan], root: Path) -> Group:
    parts: list[Any] = []
    for plan in plans:
        run_states = looks.states(plan, root, weights=True)
        now = [state.done for state in run_states.values() if state.word not in looks.IDLE]
        by_now = " needed by now" if len(now) < len(run_states) else ""
        line = f"{tables.counted([*run_states.values()])}; {sum(now) / len(now):.0%} of the work{by_now}"
        if left := [run for run in plan.all_runs if run_states[run.id].word in OPEN]:
            seconds = _seconds_left(left, run_states, forecast_runs(plan, run_states, records(root), root))
            about = (
                f"time left {UNKNOWN}" if seconds is None else f"about {duration(seconds)} of one slot left"
            )
            line = f"{line}, {about}"
        parts.append(line)
        many = len(plan.all_runs) > tables.SCREEN
        parts.append(tables.table(plan, run_states, None, by_arm=many))
        parts += tables.failures(plan, run_states) if many else []
        parts += [f"{arm}: {plan.tuned.lack(arm)}" for arm in plan.untuned if plan.tuned]
        parts += _tuning(plan)
        parts += map(printable, looks.lines(plan, root))
        if plan.exchange and plan.experiment:
            parts += exchanged(plan.experiment, plan.exchange, looks.lookup(root))
    return Group(*parts)


def _tuning(plan: Plan) -> list[str]:
    """What tuning takes: as far as its runs are known, and at most."""
    if plan.tuned is None or plan.tuned.committed:
        return plan.tuned.stale() if plan.tuned else []
    arms = plan.tuned.arms.values()
    known = len(plan.grid)
    most = plan.tuned.grid.most * len(arms)
    line = f"tuning takes {known} runs as far as they are known, and at most {most}"
    if all_tokens := sum(arm.comparison for arm in arms):
        spent, limit = (sum(getattr(arm, key) for arm in arms) for key in ("tokens", "most"))
        part = spent / all_tokens
        whole = limit / all_tokens
        line += f": {part:.0%}, and at most {whole:.0%}, of what the comparison takes with all its seeds"
    return [line]


def _cost(
    runs: Sequence[RunSpec],
    run_states: Mapping[str, State],
    forecasts: Mapping[str, Forecast],
    settings: Mapping[str, Any],
) -> str:
    left = [run for run in runs if run_states[run.id].word in OPEN]
    done = sum(state.word == "done" for state in run_states.values())
    idle = sum(state.word in looks.IDLE for state in run_states.values())
    number = _slots(runs, settings)
    failed = len(run_states) - len(left) - done - idle
    text = f"{len(left)} to train{' by now' if idle else ''}, {done} done" + (
        f", {failed} failed" if failed else ""
    )
    if left:
        text += f": {_time(left, run_states, forecasts, number)}"
        if (seconds := _seconds_left(left, run_states, forecasts)) is not None:
            text += f", {duration(seconds)} in all"
        if any(forecasts[run.id].guess for run in left):
            text += " (~ is a guess from the FLOPs of other runs: none of the arm has finished)"
    return text


def _looks(
    plan: Plan,
    run_states: Mapping[str, State],
    forecasts: Mapping[str, Forecast],
    settings: Mapping[str, Any],
) -> list[str]:
    """The range that is left, from the next interim analysis to all planned seeds, where a plan has some."""
    if not (counts := looks.counts(plan)):
        return []
    now = [run for run in plan.runs if run_states[run.id].word in OPEN]
    most = [run for run in plan.runs if run_states[run.id].word in (*OPEN, looks.LATER)]
    if not most:
        return ["no claim waits for a further interim analysis"]
    near, far = (
        f"{len(runs)} more runs, {_time(runs, run_states, forecasts, _slots(plan.runs, settings))}"
        for runs in (now, most)
    )
    return [
        f"interim analyses at {', '.join(map(str, counts))} seeds: {near} (next interim analysis) "
        f"... {far} (all planned seeds)"
    ]


def _time(
    runs: Sequence[RunSpec], run_states: Mapping[str, State], forecasts: Mapping[str, Forecast], number: int
) -> str:
    """What is left of some runs takes on so many slots."""
    seconds = _seconds_left(runs, run_states, forecasts)
    if seconds is None:
        return f"time {UNKNOWN}"
    used = max(1, min(number, len(runs)))
    return f"about {duration(seconds / used)} on {number} slots"


def _seconds_left(
    runs: Sequence[RunSpec], run_states: Mapping[str, State], forecasts: Mapping[str, Forecast]
) -> float | None:
    """Of all runs, of which those with an unknown time take as long as the others; None if none is known."""
    if not runs:
        return 0.0
    known = [
        (1 - run_states[run.id].done) * seconds
        for run in runs
        if (seconds := forecasts[run.id].seconds) is not None
    ]
    return sum(known) * len(runs) / len(known) if known else None


def _slots(runs: Sequence[RunSpec], settings: Mapping[str, Any]) -> int:
    kind = runs[0].estimate.device_kind
    shared = settings.get("slots_per_gpu", 1)
    return len(slots.slots(kind, settings.get("slots"), shared))


def _too_large(plan: Plan, forecasts: Mapping[str, Forecast], settings: Mapping[str, Any]) -> list[str]:
    """The warning that runs take more memory than their device has."""
    run = max(plan.all_runs, key=lambda run: forecasts[run.id].bytes or 0)
    takes = forecasts[run.id].bytes or 0
    room = run.estimate.room_bytes
    on_cpu = run.estimate.device_kind == "cpu"
    sharing = _slots(plan.all_runs, settings) if on_cpu else int(settings.get("slots_per_gpu", 1))
    number = min(sharing, len(plan.all_runs))
    if room is None or takes * number <= room:
        return []
    times = f", {number} at a time" if number > 1 else ""
    fewer = "sweep.slots=1, " if number > 1 and takes <= room else ""
    kind = printable(run.estimate.device_kind)
    return [
        f"warning: {printable(run.arm)} takes about {takes / 1e9:,.1f} GB of memory{times}, and there are "
        f"{room / 1e9:,.1f} GB ({kind}): set {fewer}sweep.halve_batch=true, or a smaller data.batch_size "
        "with trainer.accumulate_grad_batches"
    ]
