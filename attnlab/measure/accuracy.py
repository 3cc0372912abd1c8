"""Accuracy at the end, by condition, and the steps until 90 %, censored at the budget.

Surprising: the step is that of the first validation that reached it, so it is known to `measure.every` steps
only, and null, which is no number of steps, where no validation did.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnlab.store.schema import Metric

SOLVED = 0.9
ACCURACY = Metric("val/accuracy", direction="higher", kind="share")
STEPS = Metric("steps_to_90", "steps to 90 % accuracy", "steps", kind="censored")


def recall(condition: str) -> Metric:
    """The accuracy under one of the task's conditions."""
    return Metric(
        f"recall/{condition}", direction="higher", kind="share",
        table="Accuracy by condition", axis="distance",
    )  # fmt: skip


def accuracy(validation: Mapping[str, Any], conditions: Sequence[str]) -> dict[str, float]:
    """Metrics of the last validation: `val/accuracy` and `recall/<condition>`. None for a task without."""
    if "accuracy" not in validation:
        return {}
    by_condition = zip(
        conditions, validation["by_condition"], strict=False
    )  # the last ones may have no target
    return {
        ACCURACY.name: validation["accuracy"],
        **{recall(name).name: value for name, value in by_condition if not math.isnan(value)},
    }


def steps_to_solve(
    rows: Iterable[tuple[int, int, str, float]], steps: int
) -> dict[str, dict[str, float | None]]:
    """`steps_to_90` from a run's curves, for a record's `censored`; empty where no accuracy was taken."""
    taken = [(step, value) for step, _, name, value in rows if name == ACCURACY.name]
    if not taken:
        return {}
    reached = [step for step, value in taken if value >= SOLVED]
    return {STEPS.name: {"value": min(reached, default=None), "budget": steps}}
