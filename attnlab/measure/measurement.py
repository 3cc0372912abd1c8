"""What a run that only measures gives: a measurement is a class that a config names.

Its constructor's signature is its schema, and calling it with (module, data, device) gives `Measured`.
Surprising: `exact` and `timed` say what kind of number a metric is. A counted one has no interval, and a time
is nothing that a test of the code may lean on.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measured:
    """`metrics` by name; those in `exact` are counted, those in `timed` are times or made of times. `series`:
    a curve's name to its points, a whole number (a length, a count) to a value.
    """

    metrics: Mapping[str, float]
    exact: Collection[str] = ()
    timed: Collection[str] = ()
    series: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


Measurement = Callable[[Any, Any, str], Measured]  # (LanguageModel, Data, device)


def on_paper(measurement: Measurement) -> bool:
    """Whether it only looks at shapes, so that its model may be larger than the machine."""
    return getattr(measurement, "on_paper", False)
