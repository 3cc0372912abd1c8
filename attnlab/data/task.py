"""The `Task` protocol, and the helpers that all tasks share."""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from attnlab.store.seeds import derive_seed

Batch = dict[str, Tensor]
IGNORE = -100  # target of an unscored position
_SEED_HASH = partial(hashlib.blake2b, digest_size=4)  # changing it changes the batches of all stored runs


class Task(Protocol):
    """A source of batches.

    A batch is a dict of CPU tensors:

        tokens     int64 [B, T]
        targets    int64 [B, T], `IGNORE` at unscored positions
        lengths    int64 [B]     optional: real positions of each row, from the left; the rest is padding
        documents  int64 [B, T]  optional: document numbers of packed rows; positions of different documents
                                 do not attend to each other
        condition  int64 [B, T]  optional, validation only: the class under which a target is reported, an
                                 index into the task's `conditions`, their names (category/number, as in
                                 distance/8)
        scored     float []      only in a micro-batch: the divisor of its summed loss
    """

    name: str
    unit: str  # token unit that losses are averaged over: char, byte, bpe, ...
    vocab_size: int
    length: int  # T
    fingerprint: str  # sha256 of everything that determines the batches of a given seed and batch size
    train_tokens: int  # tokens of the training split, regardless of how often training reads them
    # epoch_tokens: int  optional: tokens of batches that read each example once, if padding makes them more
    val_tokens: int
    val_windows: int  # total number of validation examples

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        """Return the training batch of one step, a pure function of the arguments."""
        ...

    def val_batches(self, batch_size: int) -> list[Batch]:
        """Return the validation batches: the same examples for every seed; the last batch may be smaller."""
        ...

    # vocabulary() -> Vocabulary  optional (data/vocabulary.py): stored with a run, so that the run can encode
    # and decode without its data. A stored run of a task without it needs the same data again.
    # Text tasks also have `byte_batches(batch_size)`, which score each byte of `val_text` once, for losses
    # per byte.

    def encode(self, text: str) -> list[int]:
        """Return the model's input ids for a prompt.

        Raises:
            ValueError: a character or word has no token; the message names the first one.
        """
        ...

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Return one string per token."""
        ...


def make_generator(seed: int | str, step: int) -> torch.Generator:
    """Return the random generator of one training batch."""
    return torch.Generator().manual_seed(derive_seed(seed, step, hash_function=_SEED_HASH))


def compute_fingerprint(**parts: Any) -> str:
    """Return the sha256 of the parts, serialized as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def validate_split(length: int, val_fraction: float, val_windows: int | None) -> None:
    """Validate the settings that can be checked before any data is read."""
    if not isinstance(length, int) or length < 2:
        raise ValueError(f"data.length must be at least 2 tokens, got {length}")
    if not 0 < val_fraction <= 0.5:
        raise ValueError(f"data.val_fraction must be above 0 and at most 0.5, got {val_fraction}")
    if val_windows is not None and (not isinstance(val_windows, int) or val_windows < 1):
        raise ValueError(f"data.val_windows must be at least 1, or null for all windows, got {val_windows}")
