"""`plan` and `status`: a table of a command's runs, before, while and after they are trained."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from attnlab.errors import Refused, nearest, printable
from attnlab.store import values
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.progress import duration
from attnlab.sweep.plan.checks import Context
from attnlab.sweep.plan.exchange.told import lines as exchanged
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status import costs, looks, tables
from attnlab.sweep.status.as_json import plan_as_json
from attnlab.sweep.status.forecast import Forecast, Forecaster, seeds_asked
from attnlab.sweep.status.states import OPEN, State, record, records
from attnlab.sweep.status.trials import trials

KINDS = ("plan", "status", "watch", "plan_json", "status_json")
BUSY = 1.5  # processes on a core, from which on it is told that the machine has other work


def show(
    kind: str,
    plans: Sequence[Plan],
    root: Path,
    settings: Mapping[str, Any],
    again: Callable[[], Sequence[Plan]],
    context: Context,
) -> None:
    """Prints the plan, or how it stands; `watch` draws it anew until all have ended that are needed, and
    plans `again` where what tuning has found brings new runs. `context` is where a plan takes its trials.
    """
    if kind not in KINDS:
        raise Refused(f"sweep.show={kind}{nearest(str(kind), KINDS)}: use python -m attnlab plan, or status")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a file has room for whole lines
    if kind.endswith("_json"):
        told = (
            _plan_json(plans, root, settings, context) if kind == "plan_json" else _status_json(plans, root)
        )
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    if kind == "watch" and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while _open(plans := _today(plans, root, again), root):
                live.update(_status(plans, root), refresh=True)
                time.sleep(1)
            live.update(_status(plans, root), refresh=True)
        return
    while kind == "watch" and _open(plans := _today(plans, root, again), root):
        console.print(_status(plans, root))
        time.sleep(15)
    console.print(_plan(plans, root, settings, context) if kind == "plan" else _status(plans, root))


def _open(plans: Sequence[Plan], root: Path) -> bool:
    """Whether a run that is needed by now has not ended; those of an untuned arm are not known yet."""
    for plan in plans:
        known = {run.id for run in plan.all_runs if run.arm not in plan.untuned}
        if any(state.word in OPEN and id in known for id, state in looks.states(plan, root).items()):
            return True
    return False


def _today(plans: Sequence[Plan], root: Path, again: Callable[[], Sequence[Plan]]) -> Sequence[Plan]:
    """The plans with the runs that what tuning has found by now asks for."""
    while any(plan.untuned for plan in plans) and not _open(plans, root):
        before, plans = plans, again()
        if _ids(before) == _ids(plans):
            break  # an arm whose runs failed
    return plans


def _ids(plans: Sequence[Plan]) -> list[str]:
    return [run.id for plan in plans for run in plan.all_runs]


def _plan(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any], context: Context) -> Group:
    parts: list[Any] = []
    told = [*_forecast(plans, root, settings, context)]
    for plan, run_states, forecasts, lines in told:
        many = len(plan.all_runs) > tables.SCREEN
        parts += [tables.table(plan, run_states, forecasts, by_arm=many), *lines]
    runs = [run for plan in plans for run in plan.all_runs]
    asked = {  # once, of whatever several comparisons share
        run.id: (run_states[run.id], forecasts[run.id])
        for plan, run_states, forecasts, _ in told
        for run in plan.all_runs
    }
    in_all = costs.together([*asked.values()], _slots(runs, settings)) if len(plans) > 1 else ()
    return Group(*parts, *in_all)


def _plan_json(
    plans: Sequence[Plan], root: Path, settings: Mapping[str, Any], context: Context
) -> list[dict[str, Any]]:
    return [plan_as_json(*told) for told in _forecast(plans, root, settings, context)]


def _status_json(plans: Sequence[Plan], root: Path) -> list[dict[str, Any]]:
    return [
        plan_as_json(plan, looks.states(plan, root, weights=True), {}, looks.lines(plan, root))
        for plan in plans
    ]


def _forecast(
    plans: Sequence[Plan], root: Path, settings: Mapping[str, Any], context: Context
) -> Iterator[tuple[Plan, dict[str, State], dict[str, Forecast], list[str]]]:
    """Each plan, where its runs stand, what they will take, and what is said of the whole."""
    finished = records(root)
    by_id = {record.id: record for record in finished}
    for plan in plans:
        run_states = looks.states(plan, root)
        forecaster = _forecaster(plan, run_states, finished, settings, context)
        forecasts = {run.id: forecaster.of(run) for run in plan.all_runs}
        lines = [
            f"{arm}: its learning rate is tuned first, then its runs get their ids" for arm in plan.untuned
        ]
        lines += _worn(plan) + _too_large(plan, forecasts, settings)
        lines += _tuning(plan)
        lines += exchanged(plan.experiment, plan.exchange, by_id.get) if plan.experiment else []
        lines += seeds_asked(plan, by_id) if plan.experiment else []
        lines.append(_cost(plan.all_runs, run_states, forecasts, settings))
        lines += _looks(plan, root, by_id, run_states, forecasts, settings)
        yield plan, run_states, forecasts, lines


def _forecaster(
    plan: Plan,
    run_states: Mapping[str, State],
    finished: Sequence[RunRecord],
    settings: Mapping[str, Any],
    context: Context,
) -> Forecaster:
    """It has tried what is still to be trained and no finished run tells of."""
    known = Forecaster(finished)
    open_ = [run for run in plan.all_runs if run_states[run.id].word in (*OPEN, looks.LATER)]
    unknown = [run for run in open_ if not known.knows(run)]
    together = _on_one_device(plan.all_runs, settings)
    return Forecaster(finished, trials(unknown, context, together)) if unknown else known


def _status(plans: Sequence[Plan], root: Path) -> Group:
    parts: list[Any] = []
    for plan in plans:
        run_states = looks.states(plan, root, weights=True)
        now = [state.done for state in run_states.values() if state.word not in looks.IDLE]
        by_now = " needed by now" if len(now) < len(run_states) else ""
        counts = tables.counted([*run_states.values()])
        parts.append(
            f"{counts}; {sum(now) / len(now):.0%} of the work{by_now}{_left(plan, run_states, root)}"
        )
        many = len(plan.all_runs) > tables.SCREEN
        parts.append(tables.table(plan, run_states, None, by_arm=many))
        parts += tables.failures(plan, run_states) if many else []
        parts += [f"{arm}: {plan.tuned.lack(arm)}" for arm in plan.untuned if plan.tuned]
        parts += _tuning(plan)
        parts += map(printable, looks.lines(plan, root))
        if plan.exchange and plan.experiment:
            parts += exchanged(plan.experiment, plan.exchange, looks.lookup(root))
    return Group(*parts)


def _left(plan: Plan, run_states: Mapping[str, State], root: Path) -> str:
    """How long the runs that are needed by now will take, where finished ones tell."""
    done = (record(root / run.id) for run in plan.all_runs if run_states[run.id].word == "done")
    forecaster = Forecaster([record for record in done if record])
    left = [
        (forecast.seconds, run_states[run.id].done)
        for run in plan.all_runs
        if run_states[run.id].word in OPEN and (forecast := forecaster.of(run)).seconds is not None
    ]
    if not left:
        return ""
    seconds = sum((seconds or 0) * (1 - done) for seconds, done in left)
    return f", about {duration(seconds)} of one slot left"


def _tuning(plan: Plan) -> list[str]:
    """What tuning takes: as far as its runs are known, and at most."""
    if plan.tuned is None or plan.tuned.committed:
        return plan.tuned.stale() if plan.tuned else []
    arms = plan.tuned.arms.values()
    known, most = len(plan.grid), plan.tuned.grid.most * len(arms)
    line = f"tuning takes {known} runs as far as they are known, and at most {most}"
    if all_tokens := sum(arm.comparison for arm in arms):
        spent, limit = (sum(getattr(arm, key) for arm in arms) for key in ("tokens", "most"))
        part, whole = spent / all_tokens, limit / all_tokens
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
    known = [forecast for run in left if (forecast := forecasts[run.id]).seconds is not None]
    if known:
        total = sum(forecast.seconds or 0 for forecast in known) * len(left) / len(known)
        text += (
            f": about {duration(total / min(number, len(left)))} on {number} slots, {duration(total)} in all"
        )
        if runs[0].estimate.device_kind == "cpu":
            text += _beside(min(number, len(left)))
        if any(forecast.guess for forecast in known):
            text += " (~ is a guess, scaled by its FLOPs from another arm or size)"
    elif left:
        text += ": nothing on such a device has been trained or tried here, so its time is not known"
    return text


def _beside(number: int) -> str:
    """That so many runs take longer while the machine does what it does now; nothing where it is idle."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = load + number >= BUSY * cores
    return f", and longer beside other work (the load is {load:.2g} on {cores} cores now)" if busy else ""


def _looks(
    plan: Plan,
    root: Path,
    records: Mapping[str, RunRecord],
    run_states: Mapping[str, State],
    forecasts: Mapping[str, Forecast],
    settings: Mapping[str, Any],
) -> list[str]:
    """What the looks of a plan take, where it has some."""
    counts = looks.counts(plan)
    if not counts:
        return []
    open_ = [run for run in plan.runs if run_states[run.id].word in (*OPEN, looks.LATER)]
    claims, number = looks.waiting(plan, root), _slots(plan.runs, settings)
    return [costs.line(plan, counts, claims, records, open_, forecasts, number)]


def _slots(runs: Sequence[RunSpec], settings: Mapping[str, Any]) -> int:
    kind, shared = runs[0].estimate.device_kind, settings.get("slots_per_gpu", 1)
    return len(slots.slots(kind, settings.get("slots"), shared))


def _worn(plan: Plan) -> list[str]:
    """The warning that arms read their text too often."""
    sentence = values.worn({arm: runs[0].estimate.epochs for arm, runs in plan.arms().items()})
    return [f"warning: {printable(sentence)}"] if sentence else []


def _too_large(plan: Plan, forecasts: Mapping[str, Forecast], settings: Mapping[str, Any]) -> list[str]:
    """The warning that runs take more memory than their device has."""
    run = max(plan.all_runs, key=lambda run: forecasts[run.id].bytes or 0)
    takes, room = forecasts[run.id].bytes or 0, run.estimate.room_bytes
    number = min(_on_one_device(plan.all_runs, settings), len(plan.all_runs))
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


def _on_one_device(runs: Sequence[RunSpec], settings: Mapping[str, Any]) -> int:
    """How many runs share a device, and its memory."""
    on_cpu = runs[0].estimate.device_kind == "cpu"
    return _slots(runs, settings) if on_cpu else int(settings.get("slots_per_gpu", 1))
