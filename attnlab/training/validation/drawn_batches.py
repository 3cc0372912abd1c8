"""Validation of a task's batches before training, which would crash or record wrong numbers."""

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnlab.data.data_module import DataModule
from attnlab.data.task import IGNORE, Batch

BATCH_KEYS = ("tokens", "targets", "lengths", "documents", "condition", "scored")
MAX_REDRAWN_TOKENS = 1 << 24  # of validation batches that are drawn twice, to bound time and memory


def validate_batches(data: DataModule) -> None:
    """Check the first training batch and all validation batches of a data module against the `Task` protocol.

    Raises:
        ValueError: One line with the task, the batch, and the row and value where there is one.
    """
    task = data.task
    val_batches = data.val_batches
    rows = 0
    for n, batch in enumerate(val_batches):
        _validate_batch(batch, task, f"validation batch {n}")
        rows += len(batch["tokens"])
    if rows != task.val_windows:
        _reject(task, "validation", f"{rows} rows, but val_windows is {task.val_windows}: draw as many")
    if not any((batch["targets"] != IGNORE).any() for batch in val_batches):
        _reject(task, "validation", "no position is scored: set the targets to predict")
    train_batch = task.train_batch(data.seed, 0, data.batch_size)
    name = "training batch 0"
    _validate_batch(train_batch, task, name)
    if (rows := len(train_batch["tokens"])) != data.batch_size:
        _reject(task, name, f"{rows} rows, but data.batch_size is {data.batch_size}: draw as many")
    if not (train_batch["targets"] != IGNORE).any():
        _reject(task, name, "no position is scored: set the targets to predict")
    remedy = "take all randomness from the generator of the seed"
    if not _are_equal(train_batch, task.train_batch(data.seed, 0, data.batch_size)):
        _reject(task, name, f"two draws with seed {data.seed} differ: {remedy}")
    if sum(batch["tokens"].numel() for batch in val_batches) <= MAX_REDRAWN_TOKENS:
        redrawn = task.val_batches(data.val_batch_size)
        if len(redrawn) != len(val_batches) or not all(map(_are_equal, val_batches, redrawn)):
            _reject(task, "validation", f"two draws differ: {remedy}")


def _validate_batch(batch: Batch, task: Any, name: str) -> None:
    if not isinstance(batch, Mapping):
        _reject(task, name, f"it is a {type(batch).__name__}: return a dict of tensors")
    for key in ("tokens", "targets"):
        if key not in batch:
            _reject(task, name, f"it has no {key} (its keys: {', '.join(map(str, batch))}): add {key}")
    for key, value in batch.items():
        if key not in BATCH_KEYS:
            _reject(task, name, f"unknown key {key!r}: use only {', '.join(BATCH_KEYS)}")
        if not isinstance(value, Tensor) or (key != "scored" and value.dtype != torch.int64):
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            _reject(task, name, f"{key} is {kind}: return an int64 tensor")
    tokens, targets = batch["tokens"], batch["targets"]
    if tokens.dim() != 2 or tokens.shape[1] != task.length:
        _reject(
            task,
            name,
            f"tokens has shape {tuple(tokens.shape)}: return rows of data.length={task.length} tokens",
        )
    for key in ("targets", "documents", "condition", "lengths"):
        expected = tokens.shape[:1] if key == "lengths" else tokens.shape
        if key in batch and batch[key].shape != expected:
            shapes = f"{tuple(batch[key].shape)}, not {tuple(expected)}"
            _reject(task, name, f"{key} has shape {shapes}: return one value per {_get_unit(key)}")
    vocabulary = f"the vocabulary of {task.vocab_size} (0 to {task.vocab_size - 1})"
    _require(
        task, name, tokens, (tokens >= 0) & (tokens < task.vocab_size), "token", f"is outside {vocabulary}"
    )
    scored = targets != IGNORE
    _require(
        task, name, targets, ~scored | ((targets >= 0) & (targets < task.vocab_size)), "target",
        f"is outside {vocabulary}; a position that is not scored has the target {IGNORE} (IGNORE)",
    )  # fmt: skip
    if "lengths" in batch:
        lengths = batch["lengths"]
        _require(
            task, name, lengths, (lengths >= 0) & (lengths <= task.length), "length", "is no number of tokens"
        )
        is_padding = torch.arange(task.length) >= lengths[:, None]
        _require(
            task, name, targets, ~(is_padding & scored), "target", f"is padding: set it to {IGNORE} (IGNORE)"
        )
    if "condition" in batch:
        condition = batch["condition"]
        names = tuple(getattr(task, "conditions", ()))
        is_known = (condition >= 0) & (condition < len(names))
        _require(
            task, name, condition, ~scored | is_known, "condition",
            f"is no index into the {len(names)} conditions of the task ({', '.join(names) or 'none'})",
        )  # fmt: skip


def _get_unit(key: str) -> str:
    return "row" if key == "lengths" else "token"


def _require(task: Any, name: str, values: Tensor, is_valid: Tensor, noun: str, problem: str) -> None:
    """Reject the first value that is not valid, with its row and position."""
    if not is_valid.all():
        row, *position = (~is_valid).nonzero()[0].tolist()
        where = f"row {row}" + "".join(f", position {n}" for n in position)
        value = values[(row, *position)].item()
        _reject(task, name, f"{where}: {noun} {value} {problem}")


def _reject(task: Any, name: str, problem: str) -> NoReturn:
    raise ValueError(f"data ({task.name}), {name}: {problem}")


def _are_equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())
