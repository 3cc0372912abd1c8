"""Base class of tasks whose examples are generated.

Validation examples come from a random stream of their own, which no training seed can produce. They are
generated in one batch and then split, so they are the same for every seed and every validation batch size.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from attnlab.data.task import Batch, compute_fingerprint, make_generator
from attnlab.data.tokenizers import WordCodec
from attnlab.data.vocabulary import Vocabulary

VALIDATION_SEED = "validation"  # takes the place of a training batch's seed


class SyntheticTask(ABC):
    """A task with vocabulary `words`, windows of `length` tokens and `val_windows` validation examples.

    `conditions` are the names of the classes under which targets are reported; a batch's `condition` holds
    indices into them. `settings` enter the fingerprint; raise `version` when the same settings give other
    batches.
    """

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
            raise ValueError(f"data.val_windows must be an integer of at least 1, got {val_windows}")
        self.name = str(settings.pop("name"))
        self.words = tuple(words)
        self.conditions = tuple(conditions)
        self.vocab_size = len(words)
        self.length = length
        self.val_windows = val_windows
        self.train_tokens = 0  # no stored tokens: every batch is generated
        self.val_tokens = val_windows * length
        self._codec = WordCodec()
        self._codec.load(self.vocabulary().state)
        self.fingerprint = compute_fingerprint(
            task=self.name, version=self.version, length=length, val_windows=val_windows, **settings
        )

    @abstractmethod
    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        """Generate `count` examples, including their `condition`."""

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        batch = self.draw(batch_size, make_generator(seed, step), False)
        del batch["condition"]
        return batch

    def val_batches(self, batch_size: int) -> list[Batch]:
        examples = self.draw(self.val_windows, make_generator(VALIDATION_SEED, 0), True)
        return [
            {key: value[i : i + batch_size] for key, value in examples.items()}
            for i in range(0, self.val_windows, batch_size)
        ]

    def vocabulary(self) -> Vocabulary:
        return Vocabulary("words", json.dumps(self.words))

    def encode(self, text: str) -> list[int]:
        """Encode space-separated words."""
        return self._codec.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> list[str]:
        return self._codec.decode(ids)


def check_whole_numbers(minimum: int, **options: object) -> None:
    """Validate options of a task.

    Raises:
        ValueError: an option is not a whole number of at least `minimum`.
    """
    for key, value in options.items():
        if type(value) is not int or value < minimum:
            raise ValueError(f"data.{key} must be an integer of at least {minimum}, got {value}")


def name_distance_classes(max_distance: int) -> list[str]:
    """Return the names of the distance classes up to `max_distance`; class n covers 2^n to 2^(n+1) - 1."""
    return [f"distance/{1 << n}" for n in range(max_distance.bit_length())]


def classify_distances(distance: torch.Tensor) -> torch.Tensor:
    """Return the class index of each distance (at least 1), exact for every integer."""
    return torch.frexp(distance.double()).exponent.long() - 1
