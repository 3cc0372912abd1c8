"""Numbers that a source or a formula states, as an arm of their own.

Surprising: nothing is measured. A claim compares two arms; with the theory as one of them, "the exponent is
2" becomes a difference with an interval, decided by the same rules as any other.
"""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.measure.measurement import Measured
from attnlab.store.schema import Metric


class Stated:
    """`metrics`: what is stated, by the names under which the other arms measure it."""

    on_paper = True

    def __init__(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"measurement.metrics: {name}={value} is no number")
        if not metrics:
            raise ValueError("measurement.metrics is empty: name what is stated, as in {exponent/time: 2}")
        self.metrics = {name: float(value) for name, value in metrics.items()}

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return list(self.metrics)

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """The numbers, without an interval; what they are called, the arms say that measure them."""
        return Measured(self.metrics, declared=[Metric(name, kind="count") for name in self.metrics])
