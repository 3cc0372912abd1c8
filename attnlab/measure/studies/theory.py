"""Numbers from a source or a formula, as an arm.

Nothing is measured. A claim compares two arms; with the theory as one of them, "the exponent is 2" is a
difference with an interval, decided by the same rules as any other claim.
"""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.measure.measurement import MeasurementResult
from attnlab.store.run_schema import Metric


class Theory:
    """Stated values of metrics.

    Args:
        metrics: values under the metric names that the other arms measure.
    """

    shapes_only = True

    def __init__(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"measurement.metrics: {name}={value} is not a number")
        if not metrics:
            raise ValueError(
                "measurement.metrics is empty: set the theoretical values, as in {exponent/time: 2}"
            )
        self.values = {name: float(value) for name, value in metrics.items()}
        # Without an interval; the arms that measure them define their display names.
        self.metrics = [Metric(name, kind="count") for name in metrics]

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Return the stated values."""
        return MeasurementResult(self.values)
