"""`python -m attnlab bench NAME`: speed and memory side by side in one run, as ratios, with the raw samples.

Each subject is one module with `ROUNDS`, `prepare(overrides, threads)` and `measure(setup, bench, log,
rounds)`. `prepare` composes the setup from a line's words. `measure` adds each row to the BenchResult as soon
as it is measured, so an interrupted bench prints the rows so far. `size=debug` is the smallest setting of
every subject.

Each time of a kernel or a model has a roofline: the limit set by this machine's copy bandwidth and matrix
products, measured in the same run. A workload that is unsupported or does not fit into memory is a row with a
note. No test depends on times: machines are noisy. Progress is a line per step, because a live bar would run
beside what is timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BenchRow:
    """One measurement: samples in `unit`, median and ratio to the first row of its group, with intervals.

    Attributes:
        roofline: limit of the machine, in the same unit.
        facts: exact numbers of the workload (bytes, FLOPs).
        note: reason why there are no samples.
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
class BenchResult:
    """The subject, its conditions and the rows measured so far.

    The first row of a group is the reference of the others. `failure` is a line that explains missing rows.
    """

    subject: str
    conditions: dict[str, Any] = field(default_factory=dict)
    rows: list[BenchRow] = field(default_factory=list)
    failure: str | None = None
