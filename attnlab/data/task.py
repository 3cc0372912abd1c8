"""What every task offers, and the few things that all tasks share."""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from attnlab.store.seeds import seed_of

Batch = dict[str, Tensor]
IGNORE = -100  # target of a position that is not scored
_SHORT = partial(hashlib.blake2b, digest_size=4)  # what the batches of all stored runs were drawn with


class Task(Protocol):
    """A source of batches. Batches are dicts of tensors of the CPU:

    tokens     int64 [B, T]
    targets    int64 [B, T], `IGNORE` where nothing is scored
    lengths    int64 [B]     optional: how many positions from the left are real, the rest is padding
    documents  int64 [B, T]  optional: packed documents; positions of two numbers do not see each other
    condition  int64 [B, T]  optional, in validation: the class that a target is reported under, an index into
                             the task's `conditions`, which name them (kind/number, as in distance/8)
    scored     float []      in a part of a batch only: what its summed loss is divided by
    """

    name: str
    unit: str  # what a loss is an average over: char, byte, bpe, ...
    vocab_size: int
    length: int  # T
    fingerprint: str  # sha256 of all that decides the batches of a given seed and batch size
    train_tokens: int  # tokens of the whole part, however often or seldom they are visited
    # epoch_tokens: int  optional: what batches hold that visit each once, where padding makes that more
    val_tokens: int
    val_windows: int  # validation examples in all

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        """A pure function of its arguments."""
        ...

    def val_batches(self, batch_size: int) -> list[Batch]:
        """The same examples for every seed; the last batch may be smaller."""
        ...

    # vocabulary() -> Vocabulary  optional (data/vocabulary.py): a run keeps it, to encode and decode without
    # its data. A stored run of a task without it needs the same data again.
    # A text has `byte_batches(batch_size)` too: they score each byte of `val_text` once, for losses per byte.

    def encode(self, text: str) -> list[int]:
        """What the model reads for a prompt. ValueError names the first character or word without a token."""
        ...

    def decode(self, ids: Sequence[int]) -> list[str]:
        """One string a token."""
        ...


def generator(seed: int | str, step: int) -> torch.Generator:
    """The random numbers of one training batch."""
    return torch.Generator().manual_seed(seed_of(seed, step, algorithm=_SHORT))


def fingerprint(**parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def check_split(length: int, val_fraction: float, val_windows: int | None) -> None:
    """The checks that need no data, so that they come before any is read."""
    if not isinstance(length, int) or length < 2:
        raise ValueError(f"data.length={length}: a window has at least 2 tokens")
    if not 0 < val_fraction <= 0.5:
        raise ValueError(f"data.val_fraction={val_fraction}: it must be above 0 and at most 0.5")
    if val_windows is not None and (not isinstance(val_windows, int) or val_windows < 1):
        raise ValueError(f"data.val_windows={val_windows}: it must be at least 1, or null for all of them")
