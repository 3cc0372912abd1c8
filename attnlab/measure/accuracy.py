"""What the last validation says: accuracy and loss of answers, by condition, and the steps until 90 %,
censored at the budget.

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


def answer_loss(condition: str) -> Metric:
    """The loss of the answers under one of the task's conditions. It tells two arms that solve a task apart,
    and two that do not, and scatters evenly, where a share is stuck at 0 or 1.
    """
    return Metric(f"loss/{condition}", f"loss at {condition}", "nats", "lower")


def accuracy(validation: Mapping[str, Any], conditions: Sequence[str]) -> dict[str, float]:
    """Metrics of the last validation: `val/accuracy`, `recall/<condition>` and `loss/<condition>`. None for a
    task without conditions.
    """
    if "accuracy" not in validation:
        return {}
    kept = {ACCURACY.name: validation["accuracy"]}
    for metric, key in ((recall, "by_condition"), (answer_loss, "loss_by_condition")):
        values = zip(conditions, validation[key], strict=False)  # the last ones may have no target
        kept |= {metric(name).name: value for name, value in values if not math.isnan(value)}
    return kept


def steps_to_solve(
    rows: Iterable[tuple[int, int, str, float]], steps: int
) -> dict[str, dict[str, float | None]]:
    """`steps_to_90` from a run's curves, for a record's `censored`; empty where no accuracy was taken."""
    taken = [(step, value) for step, _, name, value in rows if name == ACCURACY.name]
    if not taken:
        return {}
    reached = [step for step, value in taken if value >= SOLVED]
    return {STEPS.name: {"value": min(reached, default=None), "budget": steps}}
