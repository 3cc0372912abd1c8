"""What is measured once a run has ended, and what its figures are."""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.measure import length, size
from attnlab.measure.accuracy import ACCURACY, STEPS, accuracy, recall, steps_to_solve
from attnlab.measure.heads import head_scores, probe_texts
from attnlab.model.loss import VALIDATION
from attnlab.store.schema import Metric, RunRecord, named
from attnlab.training import callbacks
from attnlab.training.module import LanguageModel

LOSSES = named(VALIDATION, Metric("val/best_loss", unit="nats"), Metric("train/loss", unit="nats"))


def expected(task: Any) -> dict[str, Metric]:
    """What a training on this task is sure to measure, declared before it starts: a report calls a loss by
    its unit where no run has ended too.
    """
    by_condition = (
        named(ACCURACY, STEPS, *map(recall, task.conditions)) if hasattr(task, "conditions") else {}
    )
    return LOSSES | by_condition


def measure(
    module: LanguageModel,
    data: Any,
    maps: callbacks.ProbeMaps,
    curves: callbacks.Curves,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The parts of the record that are measured once the run has ended; `declared` says what each figure
    is.
    """
    model, device = module.model, module.device
    memory = size.peak_memory(device)  # before the measurements below raise it
    batch = {
        key: value.to(device) for key, value in data.task.train_batch(data.seed, 0, data.batch_size).items()
    }
    cached = size.kv_bytes(model.eval(), batch["tokens"][:1])
    model.train()
    val = [value for _, _, name, value in curves.rows if name == VALIDATION.name]
    train = [value for _, _, name, value in curves.rows if name == "train/loss"]
    tokens_per_s = (
        curves.busy_steps * curves.batch_tokens / curves.busy_seconds if curves.busy_seconds else None
    )
    difference = maps.last.difference if maps.last else None
    by_position = module.validation["by_position"]
    by_length = length.losses(model, data.task, settings["lengths"], device, settings["trained"])
    memory = {
        **cached,
        "saved_for_backward_bytes": size.saved_for_backward(lambda: module.losses(batch).mean(), model),
        **memory,
    }
    return {
        "declared": expected(data.task)
        | named(*map(length.declared, by_length), size.THROUGHPUT)
        | {name: size.MEMORY[name] for name in memory},
        "metrics": {
            VALIDATION.name: module.validation["loss"],
            "val/best_loss": min(val),
            "train/loss": train[-1],
            **accuracy(module.validation, getattr(data.task, "conditions", ())),
            **{name: value for name, value in by_length.items() if value is not None},
        },
        "undefined": [name for name, value in by_length.items() if value is None],
        "censored": steps_to_solve(curves.rows, curves.rows[-1][0]),
        "by_position": {VALIDATION.name: [None if math.isnan(value) else value for value in by_position]},
        "memory": memory,
        "speed": {size.THROUGHPUT.name: tokens_per_s},
        "kernels": {
            "max_abs_eager_fused": difference,
            "note": "maps are read with the eager kernel"
            if difference is not None
            else "no other kernel to compare with",
        },
        "head_scores": head_scores(model, probe_texts(next(iter(data.val_dataloader()))), data.task.length),
    }


def summary(record: RunRecord) -> dict[str, float]:
    """The figures of a record under the names that they have in the W&B summary."""
    figures: dict[str, float] = {**record.metrics}
    groups = {"memory": record.memory, "budget": record.estimate.figures(), "speed": record.speed}
    for group, values in groups.items():
        for key, value in values.items():
            if isinstance(value, int | float):
                figures[f"{group}/{key}"] = value
    for name, table in record.head_scores.items():
        if isinstance(table, list):  # [layer][head]
            values = [value for row in table for value in row]
            figures |= {f"heads/{name}/mean": sum(values) / len(values), f"heads/{name}/max": max(values)}
    return figures
