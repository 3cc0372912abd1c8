"""Number of epochs over a corpus, and the limit `data.max_epochs`."""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.store.config_groups import format_epochs


def count_epochs(config: Mapping[str, Any], task: Any) -> float | None:
    """Return passes over the corpus, to four digits; None for generated data and measurement runs."""
    if config.get("measurement") or not task.train_tokens:
        return None
    return float(f"{config['trainer']['max_steps'] / _count_steps_per_epoch(config, task):.4g}")


def validate_epochs(config: Mapping[str, Any], data: Any) -> float | None:
    """Return the epochs of the run.

    Raises:
        ValueError: One line, if they exceed `data.max_epochs`.
    """
    limit = getattr(data, "max_epochs", None)
    epochs = count_epochs(config, data.task)
    if limit is None or epochs is None or epochs <= limit:
        return epochs
    max_steps = math.floor(limit * _count_steps_per_epoch(config, data.task))
    raise ValueError(
        f"data.max_epochs={limit:g}: trainer.max_steps={config['trainer']['max_steps']} reads the text "
        f"{format_epochs(epochs)} times, {format_epochs(epochs / limit)} times that limit; it has "
        f"{data.task.train_tokens:,} training tokens ({data.task.unit}). Give a longer text (data=...), "
        + (f"at most trainer.max_steps={max_steps}, " if max_steps else "")
        + f"or data.max_epochs={math.ceil(epochs)}"
    )


def _count_steps_per_epoch(config: Mapping[str, Any], task: Any) -> float:
    """Return the optimizer steps of one epoch."""
    rows = config["trainer"]["accumulate_grad_batches"] * config["data"]["batch_size"]
    return float(getattr(task, "epoch_tokens", task.train_tokens) / (rows * task.length))
