"""Tasks whose examples are drawn, not read: what they share.

Surprising: validation examples come from a stream of their own, drawn at once and then cut, so they are the
same for every seed and every validation batch size, and no training seed can meet that stream.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from attnlab.data.task import Batch, fingerprint, generator
from attnlab.data.tokenizers import WordCodec
from attnlab.data.vocabulary import Vocabulary

VALIDATION = "validation"  # where a training batch has its seed


class Drawn(ABC):
    """Vocabulary `words`, windows of `length` tokens, `val_windows` validation examples. `conditions` name
    the classes under which targets are reported; a batch's `condition` holds their indices. `settings` go
    into the fingerprint; raise `version` when the same ones give other batches."""

    unit = "symbol"
    version: ClassVar[int] = 1

    def __init__(
        self,
        words: Sequence[str],
        conditions: Sequence[str],
        length: int,
        val_windows: int,
        **settings: object,
    ) -> None:
        if not isinstance(val_windows, int) or val_windows < 1:
            raise ValueError(f"data.val_windows={val_windows}: it must be a whole number, at least 1")
        self.name = str(settings.pop("name"))
        self.words = tuple(words)
        self.conditions = tuple(conditions)
        self.vocab_size = len(words)
        self.length = length
        self.val_windows = val_windows
        self.train_tokens = 0  # none are stored: every batch is new
        self.val_tokens = val_windows * length
        self._codec = WordCodec()
        self._codec.load(self.vocabulary().state)
        self.fingerprint = fingerprint(
            task=self.name, version=self.version, length=length, val_windows=val_windows, **settings
        )

    @abstractmethod
    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        """So many examples, with their `condition`."""

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        batch = self.draw(batch_size, generator(seed, step), False)
        del batch["condition"]
        return batch

    def val_batches(self, batch_size: int) -> list[Batch]:
        whole = self.draw(self.val_windows, generator(VALIDATION, 0), True)
        return [
            {key: value[i : i + batch_size] for key, value in whole.items()}
            for i in range(0, self.val_windows, batch_size)
        ]

    def vocabulary(self) -> Vocabulary:
        return Vocabulary("words", json.dumps(self.words))

    def encode(self, text: str) -> list[int]:
        """Words, with spaces between them."""
        return self._codec.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> list[str]:
        return self._codec.decode(ids)


def whole(least: int, **options: object) -> None:
    """ValueError where an option is no whole number of at least `least`."""
    for key, value in options.items():
        if type(value) is not int or value < least:
            raise ValueError(f"data.{key}={value}: it must be a whole number, at least {least}")


def doublings(most: int) -> list[str]:
    """Names of the classes of distances up to `most`: class n holds distances from 2^n to 2^(n+1) - 1."""
    return [f"distance/{1 << n}" for n in range(most.bit_length())]


def doubling(distance: torch.Tensor) -> torch.Tensor:
    """The class of each distance of at least 1, exactly."""
    return torch.frexp(distance.double()).exponent.long() - 1
