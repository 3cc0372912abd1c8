"""Forecasts of the training time and peak memory of a plan's runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab.store import run_directories
from attnlab.store.run_schema import Budget, RunResult, Trunk
from attnlab.sweep.execute.time_estimate import TimeEstimate
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.states import RunState

_THROUGHPUT = "train_tokens_per_s"  # attnlab.measure.resources.THROUGHPUT, which would import torch


@dataclass(frozen=True)
class Forecast:
    """Training seconds and peak bytes of a run, None if unknown.

    `is_guess`: no run of the arm has finished, so the seconds come from other runs.
    """

    seconds: float | None = None
    peak_bytes: int | None = None
    is_guess: bool = False


def forecast_runs(
    plan: Plan, run_states: Mapping[str, RunState], finished: Sequence[RunResult], root: Path
) -> dict[str, Forecast]:
    """Forecast each run of a plan from finished runs on its kind of device and the plan's running runs.

    Tuning and calibration runs are runs of their arm.

    Returns:
        Run id -> forecast.
    """
    arms = {run.id: run.base_arm for run in plan.all_runs}
    kind = plan.runs[0].estimate.device_kind
    estimate = TimeEstimate()
    peaks = dict[str, int]()
    for record in finished:
        if record.seconds is None or record.estimate.device_kind != kind:
            continue
        arm = arms.get(record.id)
        flops, steps = _count_own_work(record.estimate, record.trunk)
        estimate.add_finished_run(arm, flops, record.seconds, steps, _compute_step_seconds(record))
        peak = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
        if arm and peak:
            peaks[arm] = max(peaks.get(arm, 0), int(peak))
    for run in plan.all_runs:
        if run_states[run.id].status == "running":
            progress = run_directories.read_progress(root / run.id)
            estimate.add_timed_steps(run.id, run.base_arm, run.estimate.training_flops, progress)
    forecasts = {}
    for run in plan.all_runs:
        flops, steps = _count_own_work(run.estimate, run.use.trunk)
        seconds = estimate.estimate_seconds(run.base_arm, flops, steps)
        is_guess = seconds is not None and not estimate.has_finished_runs(run.base_arm)
        forecasts[run.id] = Forecast(seconds, peaks.get(run.base_arm, run.estimate.memory_bytes), is_guess)
    return forecasts


def _count_own_work(budget: Budget, trunk: Trunk | None) -> tuple[float, int | None]:
    """Count the FLOPs and steps of a run without those of the trunk that it continues."""
    if trunk is None or not budget.steps:
        return budget.training_flops, budget.steps
    own_steps = budget.steps - trunk.step
    return budget.training_flops * own_steps / budget.steps, own_steps


def _compute_step_seconds(record: RunResult) -> float | None:
    """Compute the seconds of a training step from the training throughput; None if it was not measured."""
    tokens_per_s = record.speed.get(_THROUGHPUT)
    steps, tokens = record.estimate.steps, record.estimate.tokens
    return tokens / steps / tokens_per_s if steps and tokens and tokens_per_s else None
