"""Accuracy and loss of answers by condition at the last validation, and steps to 90% accuracy.

The number of steps is censored at the budget. It is that of the first validation that reached 90%, so its
resolution is `measure.every` steps; it is null, not a number of steps, if no validation did.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnlab.store.run_schema import Metric

SOLVED_ACCURACY = 0.9
ACCURACY = Metric("val/accuracy", direction="higher", kind="share")
STEPS_TO_90 = Metric("steps_to_90", "steps to 90% accuracy", "steps", kind="censored")


def recall_metric(condition: str) -> Metric:
    """Return the metric of accuracy under one of the task's conditions."""
    return Metric(
        f"recall/{condition}", direction="higher", kind="share",
        table="Accuracy by condition", axis="distance",
    )  # fmt: skip


def answer_loss_metric(condition: str) -> Metric:
    """Return the metric of answer loss under one of the task's conditions.

    Unlike an accuracy, which saturates at 0 or 1, the loss distinguishes two arms that both solve a task, and
    two that both do not. Its noise is also more even.
    """
    return Metric(f"loss/{condition}", f"loss at {condition}", "nats", "lower")


CONDITION_METRICS = {recall_metric: "by_condition", answer_loss_metric: "loss_by_condition"}


def summarize_accuracy(validation: Mapping[str, Any], conditions: Sequence[str]) -> dict[str, float]:
    """Return the metrics of the last validation: `val/accuracy`, `recall/<condition>`, `loss/<condition>`.

    Returns {} for a task without conditions.
    """
    if "accuracy" not in validation:
        return {}
    metrics = {ACCURACY.name: validation["accuracy"]}
    for metric, key in CONDITION_METRICS.items():
        values = zip(conditions, validation[key], strict=False)  # the last conditions may have no target
        metrics |= {metric(name).name: value for name, value in values if not math.isnan(value)}
    return metrics


def compute_steps_to_threshold(
    curve_rows: Iterable[tuple[int, int, str, float]], budget_steps: int
) -> dict[str, dict[str, float | None]]:
    """Return `steps_to_90` of a run's curves for the `censored` field of its result.

    Returns {} if the curves have no accuracy.
    """
    accuracies = [(step, value) for step, _, name, value in curve_rows if name == ACCURACY.name]
    if not accuracies:
        return {}
    steps_above = [step for step, value in accuracies if value >= SOLVED_ACCURACY]
    return {STEPS_TO_90.name: {"value": min(steps_above, default=None), "budget": budget_steps}}
