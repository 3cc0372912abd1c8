"""How often a run reads its text, and the refusal of one that reads it more often than `data.max_epochs`."""

import math
from collections.abc import Mapping
from typing import Any

from attnlab.store.values import times


def epochs(config: Mapping[str, Any], task: Any) -> float | None:
    """Tokens trained on over those of the training text, to four digits; None of a task that is drawn, and of
    a run that trains nothing.
    """
    if config.get("measurement") or not task.train_tokens:
        return None
    return float(f"{config['trainer']['max_steps'] / _steps(config, task):.4g}")


def check(config: Mapping[str, Any], data: Any) -> float | None:
    """The run's `epochs`. ValueError, one line, where they are more than it may have."""
    most = getattr(data, "max_epochs", None)
    often = epochs(config, data.task)
    if most is None or often is None or often <= most:
        return often
    fewer = math.floor(most * _steps(config, data.task))
    raise ValueError(
        f"data.max_epochs={most:g}: trainer.max_steps={config['trainer']['max_steps']} reads the text "
        f"{times(often)} times, {times(often / most)} times as often as that; it has "
        f"{data.task.train_tokens:,} training tokens ({data.task.unit}). Give a longer text (data=...), "
        + (f"at most trainer.max_steps={fewer}, " if fewer else "")
        + f"or data.max_epochs={math.ceil(often)}"
    )


def _steps(config: Mapping[str, Any], task: Any) -> float:
    """Optimiser steps that read the text once."""
    rows = config["trainer"]["accumulate_grad_batches"] * config["data"]["batch_size"]
    return float(getattr(task, "epoch_tokens", task.train_tokens) / (rows * task.length))
