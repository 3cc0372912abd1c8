"""Estimates of run time: a fixed part, such as start-up and measurements, plus the training steps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

UNKNOWN = "unknown"
_MAX_FACTOR = 3.0  # between an estimate and its bounds; beyond it the time is unknown


@dataclass(frozen=True)
class _Timing:
    """Measured seconds of a unit of work: a training step, or a whole run whose steps were not timed.

    `fixed_seconds` are those of the run outside its units; None if unknown.
    """

    arm: str | None
    flops: float
    seconds: float
    fixed_seconds: float | None


class TimeEstimate:
    """Estimator of run time from timed runs on one kind of device.

    A step of more FLOPs takes at least as long, and at most proportionally longer. The runs with the nearest
    FLOPs per step below and above therefore bound the time of a step; the estimate is the geometric mean of
    the bounds. If it may be off by more than a factor of three, the time is unknown. A run without a FLOP
    count is estimated from such runs.

    Of equal work the lower median counts, because a pause of the machine only lengthens a time. Running runs
    count only where no finished run does.
    """

    def __init__(self) -> None:
        self._steps: list[_Timing] = []
        self._whole_runs: list[_Timing] = []
        self._running: dict[str, _Timing] = {}  # by run

    def add_finished_run(
        self,
        arm: str | None,
        flops: float,
        seconds: float,
        steps: int | None = None,
        step_seconds: float | None = None,
    ) -> None:
        """Add a finished run: its FLOPs and seconds in all, and the seconds of a training step if timed."""
        if steps and step_seconds:
            fixed_seconds = max(0.0, seconds - steps * step_seconds)
            self._steps.append(_Timing(arm, max(1.0, flops / steps), step_seconds, fixed_seconds))
        else:
            self._whole_runs.append(_Timing(arm, max(1.0, flops), seconds, 0.0))

    def add_timed_steps(self, run: str, arm: str, flops: float, progress: Mapping[str, Any]) -> None:
        """Add the timed steps in a running run's progress.json; `flops` are those of the whole run."""
        steps, seconds, max_steps = (
            progress.get(key) for key in ("timed_steps", "timed_seconds", "max_steps")
        )
        if steps and seconds and max_steps:
            self._running[run] = _Timing(arm, max(1.0, flops / max_steps), seconds / steps, None)

    def has_finished_runs(self, arm: str) -> bool:
        """Return whether a run of the arm has finished."""
        return any(arm == timing.arm for timing in (*self._steps, *self._whole_runs))

    def estimate_seconds(self, arm: str, flops: float, steps: int | None = None) -> float | None:
        """Estimate the seconds of a whole run; None if no timed run is similar enough."""
        units: list[tuple[Sequence[_Timing], int]] = [(self._whole_runs, 1)]
        if steps:
            units = [(self._steps, steps), *units, ([*self._running.values()], steps)]
        for arms in ({arm}, None):  # its own runs, else those of all arms
            for timings, count in units:
                similar = [timing for timing in timings if arms is None or timing.arm in arms]
                if (seconds := _estimate_units(similar, max(1.0, flops / count), count)) is not None:
                    return seconds
        return None


def _estimate_units(timings: Iterable[_Timing], flops: float, count: int) -> float | None:
    """Estimate `count` units of `flops` each and the fixed part; None if it may be off by too much."""
    by_flops: dict[float, list[_Timing]] = {}
    for timing in timings:
        if (timing.flops > 1) == (flops > 1):
            by_flops.setdefault(timing.flops, []).append(timing)
    below = max((other for other in by_flops if other <= flops), default=None)
    above = min((other for other in by_flops if other >= flops), default=None)
    neighbors = [other for other in (below, above) if other is not None]
    if not neighbors:
        return None
    times = {other: median_low(timing.seconds for timing in by_flops[other]) for other in neighbors}
    low = max(seconds * min(1.0, flops / other) for other, seconds in times.items())
    high = min(seconds * max(1.0, flops / other) for other, seconds in times.items())
    if high > _MAX_FACTOR**2 * low:
        return None
    nearest = min(neighbors, key=lambda other: abs(math.log(other / flops)))
    fixed = [timing.fixed_seconds for timing in by_flops[nearest] if timing.fixed_seconds is not None]
    return count * math.sqrt(low * high) + (median_low(fixed) if fixed else 0.0)
