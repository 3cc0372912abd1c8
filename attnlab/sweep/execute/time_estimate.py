"""How long runs take, by what finished runs and the first training steps of running ones took per FLOP."""

import math
from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"


class TimeEstimate:
    """Seconds per FLOP: of the arm's finished runs, else of the finished run with the nearest number of
    FLOPs, else of the training steps of running ones. A run whose FLOPs are not counted has the work 1, and
    is estimated from such runs alone.
    """

    def __init__(self) -> None:
        self._finished: list[tuple[str | None, float, float]] = []  # arm, FLOPs, seconds
        self._steps: dict[str, tuple[float, float]] = {}  # by run: FLOPs, seconds

    def add_finished(self, arm: str | None, flops: float, seconds: float) -> None:
        """A run that finished on the kind of device that is estimated for."""
        self._finished.append((arm, max(1.0, flops), seconds))

    def add_steps(self, run: str, flops: float, progress: Mapping[str, Any]) -> None:
        """The training steps that a run of so many FLOPs has timed by now, as its progress.json has them."""
        timed, seconds, most = (progress.get(key) for key in ("timed_steps", "timed_seconds", "max_steps"))
        if timed and seconds and most:
            self._steps[run] = max(1.0, flops) * timed / most, seconds

    def knows_arm(self, arm: str) -> bool:
        """Whether runs of the arm have finished."""
        return any(arm == other for other, _, _ in self._finished)

    def seconds(self, arm: str, flops: float) -> float | None:
        """Of a whole run; None where nothing is known yet."""
        work = max(1.0, flops)
        like = [(done, seconds) for other, done, seconds in self._finished if other == arm]
        if not like:
            others = [(done, took) for _, done, took in self._finished if (done > 1) == (work > 1)]
            like = sorted(others, key=lambda other: abs(math.log(other[0] / work)))[:1]
        like = like or list(self._steps.values())
        return work * sum(took for _, took in like) / sum(done for done, _ in like) if like else None
