"""What is measured once a run has ended, and what its figures are."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attnlab.measure import length, size
from attnlab.measure.accuracy import (
    ACCURACY,
    STEPS,
    accuracy,
    answer_loss,
    recall,
    steps_to_solve,
)
from attnlab.measure.heads import head_scores, probe_texts
from attnlab.measure.leakage import batch_of, leakage
from attnlab.measure.text.kinds import by_kind
from attnlab.measure.text.per_byte import PER_BYTE, bits_per_byte
from attnlab.measure.text.probe import is_text
from attnlab.measure.text.written import written
from attnlab.model.loss import VALIDATION
from attnlab.store.fingerprint import OBSERVERS, digest
from attnlab.store.schema import Metric, RunRecord, named
from attnlab.store.source import sources
from attnlab.training import callbacks
from attnlab.training.module import LanguageModel

Rows = Sequence[tuple[int, int, str, float]]  # of the curves: step, tokens, name, value
BEST = Metric("val/best_loss", unit="nats", scores="best")
LOSSES = named(VALIDATION, BEST, Metric("train/loss", unit="nats"))


def expected(task: Any) -> dict[str, Metric]:
    """What a training on this task is sure to measure, declared before it starts: a report calls a loss by
    its unit where no run has ended too.
    """
    losses = LOSSES | named(PER_BYTE) if is_text(task) else LOSSES
    if not hasattr(task, "conditions"):
        return losses
    return losses | named(ACCURACY, STEPS, *map(recall, task.conditions), *map(answer_loss, task.conditions))


# What is measured at a run's end, to the modules that do it: where one of them was edited, that part is taken
# again from the final weights. `OBSERVED`: the same for what only training can show.
MEASURED = {
    "accuracy": ("attnlab.measure.accuracy",),
    "length": ("attnlab.measure.length",),
    "memory": ("attnlab.measure.size",),
    "heads": ("attnlab.measure.heads",),
    "leakage": ("attnlab.measure.leakage",),
    "text": ("attnlab.measure.text.kinds", "attnlab.measure.text.per_byte", "attnlab.measure.text.written"),
}
OBSERVED = {
    "maps": ("attnlab.measure.maps", "attnlab.measure.text.probe"),
    "curves": ("attnlab.training.callbacks",),
}
_IN_THE_ID = ("attnlab.attention", "attnlab.model", "attnlab.data")


def digests(parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Part -> the digest of the code that measures it, without what a run's id knows of already."""
    without = (*OBSERVERS, *_IN_THE_ID)
    return {part: digest(sources(modules, without=without)) for part, modules in parts.items()}


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
    peak = size.peak_memory(module.device)  # before the measurements below raise it
    tokens_per_s = (
        curves.busy_steps * curves.batch_tokens / curves.busy_seconds if curves.busy_seconds else None
    )
    difference = maps.last.difference if maps.last else None
    parts = [part(module, data, curves.rows, settings) for part in PARTS.values()]
    return {
        "declared": named(size.THROUGHPUT) | _joined(parts, "declared") | _declared_memory(peak),
        "metrics": _joined(parts, "metrics"),
        "undefined": [name for part in parts for name in part.get("undefined", ())],
        "censored": _joined(parts, "censored"),
        "by_position": _joined(parts, "by_position"),
        "targets_by_position": [count for part in parts for count in part.get("targets_by_position", ())],
        "memory": _joined(parts, "memory") | peak,
        "speed": {size.THROUGHPUT.name: tokens_per_s},
        "kernels": {
            "max_abs_eager_fused": difference,
            "note": "maps are read with the eager kernel"
            if difference is not None
            else "no other kernel to compare with",
        },
        "head_scores": _joined(parts, "head_scores"),
        "leakage": _joined(parts, "leakage"),
        "by_kind": _joined(parts, "by_kind"),
        "written": _joined(parts, "written"),
    }


def _joined(parts: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.get(key, {}).items()}


def _declared_memory(figures: Iterable[str]) -> dict[str, Metric]:
    return {name: size.MEMORY[name] for name in figures}


def _accuracy(module: LanguageModel, data: Any, rows: Rows, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Losses of the run's curves, and what its last validation says."""
    values = {name: [value for _, _, key, value in rows if key == name] for name in LOSSES}
    conditions = getattr(data.task, "conditions", ())
    by_position = module.validation["by_position"]
    return {
        "declared": expected(data.task),
        "metrics": {
            VALIDATION.name: module.validation["loss"],
            BEST.name: min(values[VALIDATION.name]),
            "train/loss": values["train/loss"][-1],
            **accuracy(module.validation, conditions),
        },
        "censored": steps_to_solve(rows, rows[-1][0]),
        "by_position": {VALIDATION.name: [None if math.isnan(value) else value for value in by_position]},
        "targets_by_position": module.validation["targets_by_position"],
    }


def _length(module: LanguageModel, data: Any, rows: Rows, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Losses at multiples of the trained length."""
    losses = length.losses(module.model, data.task, settings["lengths"], module.device, settings["trained"])
    return {
        "declared": named(*map(length.declared, losses)),
        "metrics": {name: value for name, value in losses.items() if value is not None},
        "undefined": [name for name, value in losses.items() if value is None],
    }


def _memory(module: LanguageModel, data: Any, rows: Rows, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes cached per token, and bytes kept for the backward pass."""
    batch = {
        key: value.to(module.device)
        for key, value in data.task.train_batch(data.seed, 0, data.batch_size).items()
    }
    memory = size.kv_bytes(module.model.eval(), batch["tokens"][:1])
    module.model.train()
    saved = size.saved_for_backward(lambda: module.losses(batch).mean(), module.model)
    memory = {**memory, "saved_for_backward_bytes": saved}
    return {"declared": _declared_memory(memory), "memory": memory}


def _heads(module: LanguageModel, data: Any, rows: Rows, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the attention heads."""
    texts = probe_texts(next(iter(data.val_dataloader())))
    return {"head_scores": head_scores(module.model, texts, data.task.length)}


def _leakage(module: LanguageModel, data: Any, rows: Rows, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Whether predictions depend on later tokens, up to the longest text at which a loss is measured."""
    trained = settings["trained"] or data.task.length
    longest = int(max((trained * multiple for multiple in settings["lengths"]), default=0))
    return {"leakage": leakage(module.model, batch_of(data, module.device), longest)}


def _text(module: LanguageModel, data: Any, rows: Rows, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a running text: losses per byte and by kind of token, and what the model writes."""
    return {
        "metrics": bits_per_byte(module.model, data.task, module.device),
        "by_kind": by_kind(module.model, data.task, module.device),
        "written": written(module.model, data),
    }


PARTS: Mapping[str, Callable[[LanguageModel, Any, Rows, Mapping[str, Any]], dict[str, Any]]] = {
    "accuracy": _accuracy,
    "length": _length,
    "memory": _memory,
    "heads": _heads,
    "leakage": _leakage,
    "text": _text,
}


def summary(record: RunRecord) -> dict[str, float]:
    """The figures of a record under the names that they have in the W&B summary."""
    figures: dict[str, float] = {**record.metrics}
    groups: dict[str, Mapping[str, Any]] = {
        "memory": record.memory,
        "budget": record.estimate.known(),
        "speed": record.speed,
    }
    for group, values in groups.items():
        for key, value in values.items():
            if isinstance(value, int | float):
                figures[f"{group}/{key}"] = value
    for name, table in record.head_scores.items():
        if isinstance(table, list):  # [layer][head]
            scores = [score for row in table for score in row]
            figures |= {f"heads/{name}/mean": sum(scores) / len(scores), f"heads/{name}/max": max(scores)}
    return figures
