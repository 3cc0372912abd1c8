"""Interface of measurements: classes that a config names, run without training.

The constructor's signature is the schema of its config. Calling the instance with (module, data, device)
returns a `MeasurementResult`. The attribute `metrics` may define all possible metrics; a claim about
another metric is then a validation error. A metric's definition determines its statistics: one of kind
`count` has no interval, and tests of the code must not depend on one of kind `time`. A metric without
definition is displayed by its name, has no unit and varies by seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MeasurementResult:
    """Metrics and series of a measurement.

    Attributes:
        metrics: values by name.
        series: name of a curve -> whole number (a length, a count) -> value.
    """

    metrics: Mapping[str, float]
    series: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


Measurement = Callable[[Any, Any, str], MeasurementResult]  # (LanguageModel, DataModule, device)


def is_shapes_only(measurement: Measurement) -> bool:
    """Return whether the measurement uses only shapes, so that its model may exceed the machine's memory."""
    return getattr(measurement, "shapes_only", False)
