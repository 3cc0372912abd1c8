"""What a run that only measures gives: a measurement is a class that a config names.

Its constructor's signature is its schema, and calling it with (module, data, device) gives `Measured`. It may
say before, with `measures()`, the names of all metrics that it can give: a claim about another is refused.
Surprising: a metric's declaration decides how it is judged. One of kind `count` has no interval, and one of
kind `time` is nothing that a test of the code may lean on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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


def length_names(lengths: Sequence[float]) -> list[str]:
    """What `measure.length` gives for these multiples of the trained length."""
    found = [f"length/{part}{multiple:g}" for multiple in lengths for part in ("", "last/")]
    others = [multiple for multiple in lengths if multiple != 1] if 1 in lengths else []
    return [*found, *(f"length/excess/{multiple:g}" for multiple in others)]


def on_paper(measurement: Measurement) -> bool:
    """Whether it only looks at shapes, so that its model may be larger than the machine."""
    return getattr(measurement, "on_paper", False)
