"""What a run that only measures gives: a measurement is a class that a config names.

Its constructor's signature is its schema, and calling it with (module, data, device) gives `Measured`.
Surprising: a metric's declaration decides how it is judged. One of kind `count` has no interval, and one of
kind `time` is nothing that a test of the code may lean on.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnlab.store.schema import Metric, named


@dataclass(frozen=True)
class Measured:
    """`metrics` by name; `declared` says of them what they are called, their unit, which of two is better and
    their kind. One that is not declared is called by its name, has no unit and varies by seed. `series`: a
    curve's name to its points, a whole number (a length, a count) to a value.
    """

    metrics: Mapping[str, float]
    declared: Iterable[Metric] = ()
    series: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def declarations(self) -> dict[str, Metric]:
        """What each of its metrics is, by name."""
        known = named(*self.declared)
        return {name: known.get(name, Metric(name)) for name in self.metrics}


Measurement = Callable[[Any, Any, str], Measured]  # (LanguageModel, Data, device)


def on_paper(measurement: Measurement) -> bool:
    """Whether it only looks at shapes, so that its model may be larger than the machine."""
    return getattr(measurement, "on_paper", False)
