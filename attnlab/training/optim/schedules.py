"""Learning-rate schedules: linear warm-up to the peak, then a decay whose start and shape differ.

Step s, counted from 0, uses (s + 1) / (warmup + 1) of the peak during warm-up and all of it at s = warmup.
The last step uses `floor`. If warm-up leaves no step after its peak (max_steps <= warmup + 1), nothing
decays.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final


class Schedule(ABC):
    """Learning rate as a fraction of its peak, by step."""

    def compute_factor(self, step: int, *, warmup: int, max_steps: int, floor: float) -> float:
        """Return the fraction of the peak at a step; `floor` is that of step max_steps - 1."""
        if step < warmup:
            return (step + 1) / (warmup + 1)
        start = self.find_decay_start(warmup, max_steps)
        progress = (step - start) / max(1, max_steps - 1 - start)
        return floor + (1 - floor) * self.interpolate(min(1.0, max(0.0, progress)))

    def find_decay_start(self, warmup: int, max_steps: int) -> int:
        """Return the last step at the peak. Up to it, no rate depends on `max_steps`."""
        return warmup

    @abstractmethod
    def interpolate(self, progress: float) -> float:
        """Return the part of the decay that is left, from 1 at progress 0 to 0 at progress 1."""


@final
class Cosine(Schedule):
    """Half a cosine from the end of warm-up to the last step (Loshchilov and Hutter 2016, 1608.03983)."""

    def interpolate(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


@final
class Linear(Schedule):
    """A straight line from the end of warm-up to the last step."""

    def interpolate(self, progress: float) -> float:
        return 1 - progress


@final
@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """The peak until the last `decay` of all steps, then a straight line (Hu et al. 2024, 2404.06395).

    Runs of several budgets are equal until the first of them decays, so they can share those steps.

    Args:
        decay: Fraction of all steps that decay, above 0 and at most 1.
    """

    decay: float

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"optim.schedule.decay={self.decay}: give a fraction above 0 and at most 1")

    def find_decay_start(self, warmup: int, max_steps: int) -> int:
        return max(warmup, max_steps - 1 - math.ceil(self.decay * max_steps))

    def interpolate(self, progress: float) -> float:
        return 1 - progress
