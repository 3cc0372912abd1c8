"""Metrics measured after training, and their definitions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from attnlab.measure import length_generalization, resources
from attnlab.measure.accuracy import (
    ACCURACY,
    CONDITION_METRICS,
    STEPS_TO_90,
    compute_steps_to_threshold,
    summarize_accuracy,
)
from attnlab.measure.head_scoring import compute_head_scores, select_probe_examples
from attnlab.measure.leakage import load_first_batch, measure_leakage
from attnlab.measure.recomputed_loss import recompute_validation_loss
from attnlab.measure.text.bits_per_byte import BITS_PER_BYTE, measure_bits_per_byte
from attnlab.measure.text.category_losses import measure_category_losses
from attnlab.measure.text.probe_window import is_text
from attnlab.measure.text.text_sample import sample_continuation
from attnlab.measure.training_pass import compute_training_loss, list_device_passes, make_autocast
from attnlab.model.loss import VALIDATION_LOSS
from attnlab.model.transformer import Transformer
from attnlab.store.fingerprint import OBSERVER_MODULES, compute_digest
from attnlab.store.run_schema import Metric, RunResult, index_by_name
from attnlab.store.source_digests import hash_sources
from attnlab.training import callbacks
from attnlab.training.language_model import LanguageModel

CurveRows = Sequence[tuple[int, int, str, float]]  # step, tokens, name, value
BEST_LOSS = Metric("val/best_loss", unit="nats", evaluated_on="best")
LOSS_METRICS = index_by_name(VALIDATION_LOSS, BEST_LOSS, Metric("train/loss", unit="nats"))


OBSERVED_PARTS = {  # part of the result that only training can show -> modules that record it
    "maps": ("attnlab.measure.attention_maps", "attnlab.measure.text.probe_window"),
    "curves": ("attnlab.training.callbacks",),
}
_HASHED_PACKAGES = ("attnlab.attention", "attnlab.model", "attnlab.data")


def hash_measuring_code(parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return part -> digest of the code that measures it, without code that the run id covers."""
    without = (*OBSERVER_MODULES, *_HASHED_PACKAGES)
    return {
        part: compute_digest(hash_sources(modules, excluded_packages=without))
        for part, modules in parts.items()
    }


def measure_final_metrics(
    module: LanguageModel,
    data: Any,
    maps: callbacks.MapRecorder,
    curves: callbacks.CurveRecorder,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of the run result that are measured after training."""
    peak = resources.read_peak_memory(module.device)  # before the measurements below raise it
    tokens_per_s = (
        curves.training_steps * curves.batch_tokens / curves.training_seconds
        if curves.training_seconds
        else None
    )
    difference = maps.last_maps.kernel_difference if maps.last_maps else None
    trainer = module.trainer
    config = {
        "measure": settings,
        "trainer": {"precision": trainer.precision, "devices": trainer.world_size},
    }
    parts = [part.measure(module, data, curves.rows, config) for part in MEASURED_PARTS.values()]
    return {
        "metrics": _merge_parts(parts, "metrics"),
        "undefined": [name for part in parts for name in part.get("undefined", ())],
        "censored": _merge_parts(parts, "censored"),
        "by_position": _merge_parts(parts, "by_position"),
        "targets_by_position": [count for part in parts for count in part.get("targets_by_position", ())],
        "memory": _merge_parts(parts, "memory") | peak,
        "speed": {resources.THROUGHPUT.name: tokens_per_s},
        "kernels": {
            "max_abs_eager_fused": difference,
            "note": "maps are computed with the eager kernel"
            if difference is not None
            else "there is no other kernel to compare with",
        },
        "head_scores": _merge_parts(parts, "head_scores"),
        "leakage": _merge_parts(parts, "leakage"),
        "by_token_category": _merge_parts(parts, "by_token_category"),
        "generated_text": _merge_parts(parts, "generated_text"),
        "recomputed": {VALIDATION_LOSS.name: _recompute_loss(module, data, config)},
        "interference": curves.interference,
    }


def _recompute_loss(module: LanguageModel, data: Any, config: Mapping[str, Any]) -> float:
    with make_autocast(config, module.device.type):
        return recompute_validation_loss(module.model, data, module.device)


def _merge_parts(parts: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.get(key, {}).items()}


def _measure_accuracy(
    module: LanguageModel, data: Any, rows: CurveRows, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return losses from the run's curves, and the results of its last validation."""
    values = {name: [value for _, _, key, value in rows if key == name] for name in LOSS_METRICS}
    conditions = getattr(data.task, "conditions", ())
    by_position = module.validation_results["by_position"]
    auxiliary = {f"val/{name}": value for name, value in module.validation_results["auxiliary"].items()}
    return {
        "metrics": {
            VALIDATION_LOSS.name: module.validation_results["loss"],
            BEST_LOSS.name: min(values[VALIDATION_LOSS.name]),
            "train/loss": values["train/loss"][-1],
            **auxiliary,
            **summarize_accuracy(module.validation_results, conditions),
        },
        "censored": compute_steps_to_threshold(rows, rows[-1][0]),
        "by_position": {
            VALIDATION_LOSS.name: [None if math.isnan(value) else value for value in by_position]
        },
        "targets_by_position": module.validation_results["targets_by_position"],
    }


def _measure_length(
    module: LanguageModel, data: Any, rows: CurveRows, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return losses at multiples of the trained length."""
    settings = config["measure"]
    with make_autocast(config, module.device.type):
        losses = length_generalization.measure_length_losses(
            module.model, data.task, settings["lengths"], module.device, settings["trained"]
        )
    return {
        "metrics": {name: value for name, value in losses.items() if value is not None},
        "undefined": [name for name, value in losses.items() if value is None],
    }


def _measure_memory(
    module: LanguageModel, data: Any, rows: CurveRows, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return bytes cached per token, and bytes that one training pass on one device saves for backward."""
    step_batch = data.task.train_batch(data.seed, 0, data.batch_size)
    rows_of_pass = list_device_passes(step_batch, data.micro_batches, config["trainer"]["devices"])[0]
    batch = {key: value.to(module.device) for key, value in rows_of_pass.items()}
    memory = resources.count_kv_bytes(module.model.eval(), batch["tokens"][:1])
    module.model.train()
    with make_autocast(config, module.device.type):
        saved_bytes = resources.count_saved_bytes(lambda: compute_training_loss(module, batch), module.model)
    return {"memory": {**memory, "saved_for_backward_bytes": saved_bytes}}


def _measure_heads(
    module: LanguageModel, data: Any, rows: CurveRows, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return scores of the attention heads."""
    examples = select_probe_examples(next(iter(data.val_dataloader())))
    with make_autocast(config, module.device.type):
        return {"head_scores": compute_head_scores(module.model, examples, data.task.length)}


def _measure_leakage(
    module: LanguageModel, data: Any, rows: CurveRows, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return future leakage of predictions, up to the longest text at which a loss is measured."""
    settings = config["measure"]
    trained = settings["trained"] or data.task.length
    longest = int(max((trained * multiple for multiple in settings["lengths"]), default=0))
    return {"leakage": measure_leakage(module.model, load_first_batch(data, module.device), longest)}


def _measure_text(
    module: LanguageModel, data: Any, rows: CurveRows, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return losses of a corpus per byte and by token category, and a generated sample."""
    with make_autocast(config, module.device.type):
        return {
            "metrics": measure_bits_per_byte(module.model, data.task, module.device),
            "by_token_category": measure_category_losses(module.model, data.task, module.device),
            "generated_text": sample_continuation(module.model, data),
        }


class MeasuredPart(NamedTuple):
    """A part of the result, measured after training, and again from the weights if a module is edited.

    `measure` reads `measure` and `trainer` of the run's config. `define` maps a task, a model and `measure`
    of the config to all metrics that the part may have.
    """

    measure: Callable[[LanguageModel, Any, CurveRows, Mapping[str, Any]], dict[str, Any]]
    modules: tuple[str, ...]
    define: Callable[[Any, Transformer, Mapping[str, Any]], Iterable[Metric]] = lambda *_: ()


def _define_losses(task: Any, model: Transformer, settings: Mapping[str, Any]) -> Iterable[Metric]:
    """Return losses, auxiliary ones in nats, and results by condition of a task that has conditions."""
    yield from LOSS_METRICS.values()
    yield from (Metric(f"val/{name}", unit="nats") for name in model.auxiliary_weights)
    if hasattr(task, "conditions"):
        yield from (ACCURACY, STEPS_TO_90)
        yield from (define(condition) for define in CONDITION_METRICS for condition in task.conditions)


_PASS = "attnlab.measure.training_pass"
MEASURED_PARTS = {
    "accuracy": MeasuredPart(_measure_accuracy, ("attnlab.measure.accuracy",), _define_losses),
    "length": MeasuredPart(
        _measure_length,
        ("attnlab.measure.length_generalization", _PASS),
        lambda task, model, settings: length_generalization.list_length_metrics(settings["lengths"]),
    ),
    "memory": MeasuredPart(
        _measure_memory, ("attnlab.measure.resources", _PASS), lambda *_: resources.MEMORY_METRICS.values()
    ),
    "heads": MeasuredPart(_measure_heads, ("attnlab.measure.head_scoring", _PASS)),
    "leakage": MeasuredPart(_measure_leakage, ("attnlab.measure.leakage",)),
    "text": MeasuredPart(
        _measure_text,
        (
            "attnlab.measure.text.category_losses",
            "attnlab.measure.text.bits_per_byte",
            "attnlab.measure.text.text_sample",
            _PASS,
        ),
        lambda task, model, settings: [BITS_PER_BYTE] if is_text(task) else [],
    ),
}


def define_metrics(task: Any, model: Transformer, settings: Mapping[str, Any]) -> dict[str, Metric]:
    """Return all metrics that training this model on this task may measure, known before training."""
    parts = (part.define(task, model, settings) for part in MEASURED_PARTS.values())
    return index_by_name(*chain(*parts), resources.THROUGHPUT)


def summarize_metrics(result: RunResult) -> dict[str, float]:
    """Return the numbers of a run result under their names in the W&B summary."""
    summary: dict[str, float] = {**result.metrics}
    groups: dict[str, Mapping[str, Any]] = {
        "memory": result.memory,
        "budget": result.estimate.get_known_values(),
        "speed": result.speed,
    }
    for group, values in groups.items():
        for key, value in values.items():
            if isinstance(value, int | float):
                summary[f"{group}/{key}"] = value
    for name, table in result.head_scores.items():
        if isinstance(table, list):  # [layer][head]
            scores = [score for row in table for score in row]
            summary |= {f"heads/{name}/mean": sum(scores) / len(scores), f"heads/{name}/max": max(scores)}
    return summary
