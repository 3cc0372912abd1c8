"""`python -m attnlab bench NAME`: speed and memory side by side in one run, as ratios, with the raw samples.

Each subject is one file with `ROUNDS`, `prepare(overrides, threads)`, which makes of a line's words what is
to be measured, and `measure(prepared, bench, say, rounds)`, which adds each row to the Bench once it is
measured: a bench that fails or is ended prints those. `size=debug` is the smallest setting of every subject.
Beside every time of a kernel or a model stands its roofline:
what this machine's own copy bandwidth and matrix products, measured in the same
run, would allow. What does not fit into memory, or is not supported, is a row that says so. Times are never
tested: machines are noisy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One thing measured: its samples in `unit`, their median and interval, the ratio to the first row of its
    group with its interval. `roofline`, in the same unit, is what the machine would allow; `facts` are exact
    figures beside it (bytes, FLOPs); `note` says why there are no samples.
    """

    group: str
    name: str
    unit: str
    samples: list[float]
    median: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    roofline: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass
class Bench:
    """The subject, its conditions and the rows measured so far; in a group the first row is the reference of
    the others. `failure` is the one line that explains why rows are missing, or None.
    """

    subject: str
    conditions: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    failure: str | None = None
