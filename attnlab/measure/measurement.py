"""Interface of measurements: classes that a config names, run without training.

The constructor's signature is the schema of its config. Calling the instance with (module, data, device)
returns a `MeasurementResult`. `measures()` may list the names of all possible metrics in advance; a claim
about another metric is then a validation error. A metric's definition determines its statistics: one of kind
`count` has no interval, and tests of the code must not depend on one of kind `time`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.store.run_schema import Metric, index_by_name


@dataclass(frozen=True)
class MeasurementResult:
    """Metrics and series of a measurement.

    Attributes:
        metrics: values by name.
        definitions: display name, unit, direction and kind of metrics. A metric without definition is
            displayed by its name, has no unit and varies by seed.
        series: name of a curve -> whole number (a length, a count) -> value.
    """

    metrics: Mapping[str, float]
    definitions: Iterable[Metric] = ()
    series: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def definitions_by_name(self) -> dict[str, Metric]:
        """Return the definition of each metric, by name."""
        definitions = index_by_name(*self.definitions)
        return {name: definitions.get(name, Metric(name)) for name in self.metrics}


Measurement = Callable[[Any, Any, str], MeasurementResult]  # (LanguageModel, DataModule, device)


def list_length_metrics(lengths: Sequence[float]) -> list[str]:
    """Return the metric names of `length_generalization` for these multiples of the trained length."""
    names = [f"length/{part}{multiple:g}" for multiple in lengths for part in ("", "last/")]
    excess = [multiple for multiple in lengths if multiple != 1] if 1 in lengths else []
    return [*names, *(f"length/excess/{multiple:g}" for multiple in excess)]


def is_shapes_only(measurement: Measurement) -> bool:
    """Return whether the measurement uses only shapes, so that its model may exceed the machine's memory."""
    return getattr(measurement, "shapes_only", False)
