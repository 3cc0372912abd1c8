"""Output of `plan` and `status`: tables of a command's runs before, during and after training."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from attnlab.errors import InvalidConfig, escape_unprintable, format_suggestions
from attnlab.store import config_groups, remote
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.progress import WorkLeft, format_duration
from attnlab.sweep.execute.work_folder import describe_workers, get_title, load_workers
from attnlab.sweep.plan.compute_calibration.compute_calibration import describe_calibration
from attnlab.sweep.plan.plan import Plan, format_head_count_warning
from attnlab.sweep.status import interim_status, run_table, work_left
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
    """
    if view not in VIEWS:
        raise InvalidConfig(
            f"sweep.show={view}{format_suggestions(str(view), VIEWS)}: use python -m attnlab plan, or status"
        )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # for untruncated lines in a file
    if view.endswith("_json"):
        is_plan = view == "plan_json"
        views = _forecast_plans(plans, root, settings) if is_plan else _load_status(plans, root, settings)
        workers = [] if is_plan else load_workers(root, get_title(plans))
        parts = [
            build_plan_json(
                each.plan, each.run_states, each.forecasts if is_plan else {}, each.work, each.lines, workers
            )
            for each in views
        ]
        print(json.dumps(parts, indent=1, ensure_ascii=False))
        return
    if view == "watch" and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while _has_unfinished_runs(plans := _extend_plans(plans, root, extend), root):
                live.update(_render_status(plans, root, settings), refresh=True)
                time.sleep(1)
            live.update(_render_status(plans, root, settings), refresh=True)
        return
    while view == "watch" and _has_unfinished_runs(plans := _extend_plans(plans, root, extend), root):
        console.print(_render_status(plans, root, settings))
        time.sleep(15)
    console.print(
        _render_plans(plans, root, settings) if view == "plan" else _render_status(plans, root, settings)
    )


def _has_unfinished_runs(plans: Sequence[Plan], root: Path) -> bool:
    """Return whether a required run has not ended; runs of untuned arms are not known yet."""
    with suppress(OSError):  # `watch` goes on without a network
        remote.refresh(root, remote.REFRESH_SECONDS)
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


@dataclass(frozen=True)
class _PlanView:
    """A plan with its runs' states and forecasts, the work left, and notes about the plan as a whole."""

    plan: Plan
    run_states: Mapping[str, RunState]
    forecasts: Mapping[str, Forecast]
    work: WorkLeft
    lines: list[str]


def _describe_total(views: Sequence[_PlanView], root: Path, settings: Mapping[str, Any]) -> list[str]:
    """Describe the work left for several plans together, which may share runs."""
    if len(views) < 2:
        return []
    plans, states = [view.plan for view in views], [view.run_states for view in views]
    forecasts = [view.forecasts for view in views]
    work = work_left.count_work_left(plans, root, settings, states, forecasts)
    return [f"total: {_describe_work(work)}"]


def _render_plans(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Group:
    parts: list[Any] = []
    views = [*_forecast_plans(plans, root, settings)]
    for view in views:
        by_arm = len(view.plan.all_runs) > run_table.SCREEN_ROWS
        table = run_table.build_run_table(view.plan, view.run_states, view.forecasts, by_arm=by_arm)
        parts += [table, *view.lines, _describe_cost(view.work, view.forecasts.values())]
        parts.append(_describe_work(view.work))
    return Group(*parts, *_describe_total(views, root, settings))


def _forecast_plans(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Iterator[_PlanView]:
    """Yield the view of each plan for `plan`."""
    finished = load_finished_results(root)
    by_id = {record.id: record for record in finished}
    head_count_warning = format_head_count_warning(plans)
    for plan in plans:
        run_states = interim_status.load_plan_states(plan, root)
        forecasts = forecast_runs(plan, run_states, finished, root)
        lines = [
            f"{arm}: the learning rate is tuned first; the run ids depend on it" for arm in plan.untuned_arms
        ]
        lines += plan.describe_limits()
        lines += map(escape_unprintable, plan.grid.describe_rejections() if plan.grid else ())
        if head_count_warning and plan is plans[-1]:  # about all plans together
            lines.append(escape_unprintable(head_count_warning))
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
        work = work_left.count_work_left([plan], root, settings, [run_states], [forecasts])
        yield _PlanView(plan, run_states, forecasts, work, lines)


def _load_status(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Iterator[_PlanView]:
    """Yield the view of each plan for `status`, whose states include the weights."""
    finished = load_finished_results(root)
    for plan in plans:
        run_states = interim_status.load_plan_states(plan, root, check_weights=True)
        forecasts = forecast_runs(plan, run_states, finished, root)
        work = work_left.count_work_left([plan], root, settings, [run_states], [forecasts])
        lines = interim_status.describe_claim_standings(plan, root)
        yield _PlanView(plan, run_states, forecasts, work, lines)


def _render_status(plans: Sequence[Plan], root: Path, settings: Mapping[str, Any]) -> Group:
    parts: list[Any] = []
    views = [*_load_status(plans, root, settings)]
    for view in views:
        plan, run_states = view.plan, view.run_states
        parts += [_describe_work(view.work), run_table.format_state_counts([*run_states.values()])]
        by_arm = len(plan.all_runs) > run_table.SCREEN_ROWS
        parts.append(run_table.build_run_table(plan, run_states, None, by_arm=by_arm))
        parts += run_table.describe_failures(plan, run_states) if by_arm else []
        parts += [
            f"{arm}: {plan.tuning.explain_missing_rate(arm)}" for arm in plan.untuned_arms if plan.tuning
        ]
        parts += _describe_tuning(plan)
        parts += map(escape_unprintable, view.lines)
        if plan.compute_calibration and plan.experiment:
            parts += describe_calibration(
                plan.experiment, plan.compute_calibration, interim_status.create_result_lookup(root)
            )
    return Group(*parts, *_describe_total(views, root, settings), *_describe_workers(views, root))


def _describe_workers(views: Sequence[_PlanView], root: Path) -> list[str]:
    """Describe the workers that share the runs, each with its current ones."""
    labels = {
        run.id: f"{run.arm} seed={run.seed} {view.run_states[run.id].detail}".rstrip()
        for view in views
        for run in view.plan.all_runs
    }
    title = get_title([view.plan for view in views])
    return [*map(escape_unprintable, describe_workers(root, title, labels))]


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


def _describe_work(work: WorkLeft) -> str:
    """Describe the work left, and the slots that its times assume."""
    text = work.describe_with_time()
    return f"{text} on {work.n_slots} slot{'s' if work.n_slots > 1 else ''}" if work.seconds else text


def _describe_cost(work: WorkLeft, forecasts: Collection[Forecast]) -> str:
    """Describe how all runs of a plan add up, and the slot time of those to train now."""
    n_done = work.n_ended - work.n_failed
    text = f"{work.n_left} to train{' now' if work.may_grow else ''}, {n_done} done"
    text += f", {work.n_failed} failed" if work.n_failed else ""
    text += f", {work.n_possible} later" if work.n_possible else ""
    n_unneeded = len(forecasts) - work.n_required - work.n_possible
    text += f", {n_unneeded} not needed" if n_unneeded else ""
    if work.n_left and work.slot_seconds is not None:
        text += f": {format_duration(work.slot_seconds)} of slot time"
        if any(forecast.is_guess for forecast in forecasts):
            text += (
                " (~ marks estimates from the FLOPs of other runs, because no run of the arm has finished)"
            )
    return text


def _describe_memory_warning(
    plan: Plan, forecasts: Mapping[str, Forecast], settings: Mapping[str, Any]
) -> list[str]:
    """Warn if the largest runs that share a device take more memory than it has."""
    run = max(plan.all_runs, key=lambda run: forecasts[run.id].peak_bytes or 0)
    required_bytes = forecasts[run.id].peak_bytes or 0
    device_bytes = run.estimate.device_memory_bytes
    on_cpu = run.estimate.device_kind == "cpu"
    n_sharing = (
        len(worker_slots.list_configured_slots("cpu", settings))
        if on_cpu
        else int(settings.get("slots_per_gpu", 1))
    )
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
