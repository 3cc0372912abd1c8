"""Output of `plan` and `status`: tables of a command's runs before, during and after training."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from attnlab.errors import InvalidConfig, escape_unprintable, format_suggestions
from attnlab.store import config_groups
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.progress import format_duration
from attnlab.sweep.execute.time_estimate import UNKNOWN
from attnlab.sweep.plan.compute_calibration.compute_calibration import describe_calibration
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status import interim_status, run_table
from attnlab.sweep.status.forecast import Forecast, forecast_runs
from attnlab.sweep.status.margin_seeds import describe_margin_seeds
from attnlab.sweep.status.plan_json import build_plan_json
from attnlab.sweep.status.states import UNFINISHED_STATES, RunState, load_finished_results

VIEWS = ("plan", "status", "watch", "plan_json", "status_json")


def show_plans(
    view: str,
    plans: Sequence[Plan],
    root: Path,
    settings: Mapping[str, Any],
    extend: Callable[[Sequence[Plan]], Sequence[Plan]],
) -> None:
    """Print a view of the plans.

    Args:
        view: one of VIEWS; `watch` redraws the status until all required runs have ended.
        plans: the plans of the command.
        root: the runs directory.
        settings: the config group `sweep`.
        extend: adds the runs that follow from the learning rates which tuning has selected.

    Raises:
        InvalidConfig: the view is unknown.
    """
    if view not in VIEWS:
        raise InvalidConfig(
            f"sweep.show={view}{format_suggestions(str(view), VIEWS)}: use python -m attnlab plan, or status"
        )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # for untruncated lines in a file
    if view.endswith("_json"):
        if view == "plan_json":
            parts = [build_plan_json(*forecast) for forecast in _forecast_plans(plans, root, settings)]
        else:
            parts = [
                build_plan_json(
                    plan,
                    interim_status.load_plan_states(plan, root, check_weights=True),
                    {},
                    interim_status.describe_claim_standings(plan, root),
                )
                for plan in plans
            ]
        print(json.dumps(parts, indent=1, ensure_ascii=False))
        return
    if view == "watch" and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while _has_unfinished_runs(plans := _extend_plans(plans, root, extend), root):
                live.update(_render_status(plans, root), refresh=True)
                time.sleep(1)
            live.update(_render_status(plans, root), refresh=True)
        return
    while view == "watch" and _has_unfinished_runs(plans := _extend_plans(plans, root, extend), root):
        console.print(_render_status(plans, root))
        time.sleep(15)
    console.print(_render_plans(plans, root, settings) if view == "plan" else _render_status(plans, root))


def _has_unfinished_runs(plans: Sequence[Plan], root: Path) -> bool:
    """Return whether a required run has not ended; runs of untuned arms are not known yet."""
    for plan in plans:
        known_ids = {run.id for run in plan.all_runs if run.arm not in plan.untuned_arms}
        if any(
            state.status in UNFINISHED_STATES and id in known_ids
            for id, state in interim_status.load_plan_states(plan, root).items()
        ):
            return True
    return False


def _extend_plans(
    plans: Sequence[Plan], root: Path, extend: Callable[[Sequence[Plan]], Sequence[Plan]]
) -> Sequence[Plan]:
    """Extend the plans by the runs that follow from selected learning rates, until a run is unfinished."""
    while any(plan.untuned_arms for plan in plans) and not _has_unfinished_runs(plans, root):
        previous_plans = plans
        plans = extend(plans)
        if _list_run_ids(previous_plans) == _list_run_ids(plans):
            break  # an arm whose runs failed
    return plans


def _list_run_ids(plans: Sequence[Plan]) -> list[str]:
    return [run.id for plan in plans for run in plan.all_runs]


def _render_plans(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Group:
    parts: list[Any] = []
    plan_forecasts = [*_forecast_plans(plans, root, settings)]
    for plan, run_states, forecasts, lines in plan_forecasts:
        by_arm = len(plan.all_runs) > run_table.SCREEN_ROWS
        parts += [run_table.build_run_table(plan, run_states, forecasts, by_arm=by_arm), *lines]
    if len(plan_forecasts) > 1:
        runs = {run.id: run for plan in plans for run in plan.all_runs}  # plans may share runs
        states = {id: state for _, states, _, _ in plan_forecasts for id, state in states.items()}
        times = {id: forecast for _, _, forecasts, _ in plan_forecasts for id, forecast in forecasts.items()}
        due_runs = [run for run in runs.values() if states[run.id].status in UNFINISHED_STATES]
        open_runs = [
            run
            for run in runs.values()
            if states[run.id].status in (*UNFINISHED_STATES, interim_status.LATER)
        ]
        n_slots = _count_slots([*runs.values()], settings)
        due_time, open_time = (
            _format_time_left(part, states, times, n_slots) for part in (due_runs, open_runs)
        )
        minimum = f"total: {len(due_runs)} to train now, {due_time}"
        maximum = f" ... {len(open_runs)} with all planned seeds, {open_time}"
        parts += [minimum + maximum * (len(open_runs) > len(due_runs))] if open_runs else []
    return Group(*parts)


def _forecast_plans(
    plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]
) -> Iterator[tuple[Plan, dict[str, RunState], dict[str, Forecast], list[str]]]:
    """Yield each plan with its run states, its forecasts and notes about the plan as a whole."""
    finished = load_finished_results(root)
    by_id = {record.id: record for record in finished}
    for plan in plans:
        run_states = interim_status.load_plan_states(plan, root)
        forecasts = forecast_runs(plan, run_states, finished, root)
        lines = [
            f"{arm}: the learning rate is tuned first; the run ids depend on it" for arm in plan.untuned_arms
        ]
        if warning := config_groups.format_repetition_warning(
            {arm: runs[0].estimate.epochs for arm, runs in plan.group_runs_by_arm().items()}
        ):
            lines.append(f"warning: {escape_unprintable(warning)}")
        lines += _describe_memory_warning(plan, forecasts, settings)
        lines += _describe_tuning(plan)
        lines += (
            describe_calibration(plan.experiment, plan.compute_calibration, by_id.get)
            if plan.experiment
            else []
        )
        lines += describe_margin_seeds(plan, by_id) if plan.experiment else []
        lines.append(_describe_cost(plan.all_runs, run_states, forecasts, settings))
        lines += _describe_interim_range(plan, run_states, forecasts, settings)
        yield plan, run_states, forecasts, lines


def _render_status(plans: Sequence[Plan], root: Path) -> Group:
    parts: list[Any] = []
    for plan in plans:
        run_states = interim_status.load_plan_states(plan, root, check_weights=True)
        fractions = [
            state.fraction_done
            for state in run_states.values()
            if state.status not in interim_status.IDLE_STATES
        ]
        by_now = " (runs needed now)" if len(fractions) < len(run_states) else ""
        counts = run_table.format_state_counts([*run_states.values()])
        line = f"{counts}; {sum(fractions) / len(fractions):.0%} of the work done{by_now}"
        if unfinished := [run for run in plan.all_runs if run_states[run.id].status in UNFINISHED_STATES]:
            seconds = _estimate_seconds_left(
                unfinished, run_states, forecast_runs(plan, run_states, load_finished_results(root), root)
            )
            time_left = (
                f"time left {UNKNOWN}"
                if seconds is None
                else f"about {format_duration(seconds)} of slot time left"
            )
            line = f"{line}, {time_left}"
        parts.append(line)
        by_arm = len(plan.all_runs) > run_table.SCREEN_ROWS
        parts.append(run_table.build_run_table(plan, run_states, None, by_arm=by_arm))
        parts += run_table.describe_failures(plan, run_states) if by_arm else []
        parts += [
            f"{arm}: {plan.tuning.explain_missing_rate(arm)}" for arm in plan.untuned_arms if plan.tuning
        ]
        parts += _describe_tuning(plan)
        parts += map(escape_unprintable, interim_status.describe_claim_standings(plan, root))
        if plan.compute_calibration and plan.experiment:
            parts += describe_calibration(
                plan.experiment, plan.compute_calibration, interim_status.create_result_lookup(root)
            )
    return Group(*parts)


def _describe_tuning(plan: Plan) -> list[str]:
    """Describe the runs and tokens of tuning, known so far and at most, relative to the comparison."""
    if plan.tuning is None or plan.tuning.committed:
        return plan.tuning.describe_stale_rates() if plan.tuning else []
    arms = plan.tuning.arms.values()
    n_known = len(plan.tuning_runs)
    n_max = plan.tuning.grid.max_runs * len(arms)
    line = f"tuning: {n_known} runs planned so far, at most {n_max}"
    if all_tokens := sum(arm.comparison_tokens for arm in arms):
        proportion = sum(arm.search_tokens for arm in arms) / all_tokens
        max_proportion = sum(arm.max_tokens for arm in arms) / all_tokens
        line += (
            f": {proportion:.0%}, at most {max_proportion:.0%}, of the training tokens of the "
            "comparison with all seeds"
        )
    return [line]


def _describe_cost(
    runs: Sequence[RunConfig],
    run_states: Mapping[str, RunState],
    forecasts: Mapping[str, Forecast],
    settings: Mapping[str, Any],
) -> str:
    unfinished = [run for run in runs if run_states[run.id].status in UNFINISHED_STATES]
    done = sum(state.status == "done" for state in run_states.values())
    idle = sum(state.status in interim_status.IDLE_STATES for state in run_states.values())
    n_slots = _count_slots(runs, settings)
    failed = len(run_states) - len(unfinished) - done - idle
    text = f"{len(unfinished)} to train{' now' if idle else ''}, {done} done" + (
        f", {failed} failed" if failed else ""
    )
    if unfinished:
        text += f": {_format_time_left(unfinished, run_states, forecasts, n_slots)}"
        if (seconds := _estimate_seconds_left(unfinished, run_states, forecasts)) is not None:
            text += f", {format_duration(seconds)} of slot time"
        if any(forecasts[run.id].is_guess for run in unfinished):
            text += (
                " (~ marks estimates from the FLOPs of other runs, because no run of the arm has finished)"
            )
    return text


def _describe_interim_range(
    plan: Plan,
    run_states: Mapping[str, RunState],
    forecasts: Mapping[str, Forecast],
    settings: Mapping[str, Any],
) -> list[str]:
    """Describe the remaining runs and time, from the next interim analysis to all planned seeds."""
    if not (counts := interim_status.list_analysis_seeds(plan)):
        return []
    due_runs = [run for run in plan.runs if run_states[run.id].status in UNFINISHED_STATES]
    open_runs = [
        run for run in plan.runs if run_states[run.id].status in (*UNFINISHED_STATES, interim_status.LATER)
    ]
    if not open_runs:
        return ["no claim is pending"]
    n_slots = _count_slots(plan.runs, settings)
    minimum, maximum = (
        f"{len(runs)} more runs, {_format_time_left(runs, run_states, forecasts, n_slots)}"
        for runs in (due_runs, open_runs)
    )
    return [
        f"interim analyses at {', '.join(map(str, counts))} seeds: {minimum} (next interim analysis) "
        f"... {maximum} (all planned seeds)"
    ]


def _format_time_left(
    runs: Sequence[RunConfig],
    run_states: Mapping[str, RunState],
    forecasts: Mapping[str, Forecast],
    n_slots: int,
) -> str:
    """Format the time that the rest of `runs` takes on `n_slots` slots."""
    seconds = _estimate_seconds_left(runs, run_states, forecasts)
    if seconds is None:
        return f"time {UNKNOWN}"
    busy_slots = max(1, min(n_slots, len(runs)))
    return f"about {format_duration(seconds / busy_slots)} on {n_slots} slots"


def _estimate_seconds_left(
    runs: Sequence[RunConfig], run_states: Mapping[str, RunState], forecasts: Mapping[str, Forecast]
) -> float | None:
    """Estimate the remaining slot-seconds of `runs`; None if no run's time is known.

    Runs with an unknown time count as the mean of the others.
    """
    if not runs:
        return 0.0
    seconds_left = [
        (1 - run_states[run.id].fraction_done) * seconds
        for run in runs
        if (seconds := forecasts[run.id].seconds) is not None
    ]
    return sum(seconds_left) * len(runs) / len(seconds_left) if seconds_left else None


def _count_slots(runs: Sequence[RunConfig], settings: Mapping[str, Any]) -> int:
    kind = runs[0].estimate.device_kind
    slots_per_gpu = settings.get("slots_per_gpu", 1)
    return len(worker_slots.list_worker_slots(kind, settings.get("slots"), slots_per_gpu))


def _describe_memory_warning(
    plan: Plan, forecasts: Mapping[str, Forecast], settings: Mapping[str, Any]
) -> list[str]:
    """Warn if the largest runs that share a device take more memory than it has."""
    run = max(plan.all_runs, key=lambda run: forecasts[run.id].peak_bytes or 0)
    required_bytes = forecasts[run.id].peak_bytes or 0
    device_bytes = run.estimate.device_memory_bytes
    on_cpu = run.estimate.device_kind == "cpu"
    n_sharing = _count_slots(plan.all_runs, settings) if on_cpu else int(settings.get("slots_per_gpu", 1))
    n_concurrent = min(n_sharing, len(plan.all_runs))
    if device_bytes is None or required_bytes * n_concurrent <= device_bytes:
        return []
    concurrency = f", {n_concurrent} at a time" if n_concurrent > 1 else ""
    fewer_slots = "sweep.slots=1, " if n_concurrent > 1 and required_bytes <= device_bytes else ""
    kind = escape_unprintable(run.estimate.device_kind)
    return [
        f"warning: {escape_unprintable(run.arm)} takes about {required_bytes / 1e9:,.1f} "
        f"GB of memory{concurrency}, but the device has only {device_bytes / 1e9:,.1f} GB ({kind}): "
        f"set {fewer_slots}sweep.halve_batch=true, or a smaller data.batch_size with "
        "trainer.accumulate_grad_batches"
    ]
