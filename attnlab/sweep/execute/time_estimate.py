"""Estimates of training time from the seconds per FLOP of finished runs and of running runs' first steps."""

import math
from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"


class TimeEstimate:
    """Estimator by seconds per FLOP.

    It uses the arm's finished runs, else the finished run with the nearest number of FLOPs, else the timed
    training steps of running runs. A run without a FLOP count has work 1 and is estimated from such runs.
    """

    def __init__(self) -> None:
        self._finished_runs: list[tuple[str | None, float, float]] = []  # arm, FLOPs, seconds
        self._timed_steps: dict[str, tuple[float, float]] = {}  # by run: FLOPs, seconds

    def add_finished_run(self, arm: str | None, flops: float, seconds: float) -> None:
        """Add a run that finished on the kind of device that the estimate is for."""
        self._finished_runs.append((arm, max(1.0, flops), seconds))

    def add_timed_steps(self, run: str, flops: float, progress: Mapping[str, Any]) -> None:
        """Add the timed steps in a running run's progress.json; `flops` are those of the whole run."""
        steps, seconds, max_steps = (
            progress.get(key) for key in ("timed_steps", "timed_seconds", "max_steps")
        )
        if steps and seconds and max_steps:
            self._timed_steps[run] = max(1.0, flops) * steps / max_steps, seconds

    def has_finished_runs(self, arm: str) -> bool:
        """Return whether a run of the arm has finished."""
        return any(arm == other for other, _, _ in self._finished_runs)

    def estimate_seconds(self, arm: str, flops: float) -> float | None:
        """Estimate the seconds of a whole run; None if nothing was timed yet."""
        work = max(1.0, flops)
        timings = [(flops_, seconds) for other, flops_, seconds in self._finished_runs if other == arm]
        if not timings:
            others = [
                (flops_, seconds) for _, flops_, seconds in self._finished_runs if (flops_ > 1) == (work > 1)
            ]
            timings = sorted(others, key=lambda other: abs(math.log(other[0] / work)))[:1]
        timings = timings or list(self._timed_steps.values())
        if not timings:
            return None
        return work * sum(seconds for _, seconds in timings) / sum(flops_ for flops_, _ in timings)
