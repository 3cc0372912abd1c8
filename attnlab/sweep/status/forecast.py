"""The time and the memory that the runs of a plan take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab.store import runs as store
from attnlab.store.schema import RunRecord
from attnlab.sweep.execute.time_estimate import TimeEstimate
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.states import State


@dataclass(frozen=True)
class Forecast:
    """Seconds and peak bytes, None where they are unknown. `guess`: no run of the arm has finished, so the
    seconds come from other runs.
    """

    seconds: float | None = None
    bytes: int | None = None
    guess: bool = False


def forecast_runs(
    plan: Plan, run_states: Mapping[str, State], finished: Sequence[RunRecord], root: Path
) -> dict[str, Forecast]:
    """A forecast per run id, from the finished runs of a store and the running runs of the plan."""
    arms = {run.id: run.arm for run in plan.all_runs}
    kind = plan.runs[0].estimate.device_kind
    time = TimeEstimate()
    peaks = dict[str, int]()
    for record in finished:
        if record.seconds is None or record.estimate.device_kind != kind:
            continue
        arm = arms.get(record.id)
        time.add_finished(arm, record.estimate.training_flops, record.seconds)
        peak = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
        if arm and peak:
            peaks[arm] = max(peaks.get(arm, 0), int(peak))
    for run in plan.all_runs:
        if run_states[run.id].word == "running":
            time.add_steps(run.id, run.estimate.training_flops, store.progress(root / run.id))
    forecasts = {}
    for run in plan.all_runs:
        seconds = time.seconds(run.arm, run.estimate.training_flops)
        guess = seconds is not None and not time.knows_arm(run.arm)
        forecasts[run.id] = Forecast(seconds, peaks.get(run.arm, run.estimate.memory_bytes), guess)
    return forecasts
