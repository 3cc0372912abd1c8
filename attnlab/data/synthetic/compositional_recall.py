"""Compositional recall (zoology, HazyResearch): a key is two tokens, and both determine the value.

tokens    a2 b5 v1 a9 b5 v4 a2 b0 v3 a9 b0 v7 | v2 v0 v8 a9 b5 v6
targets    .  .  .  .  .  .  .  .  .  .  .  . |  .  .  .  . v4  .
"""

import torch

from attnlab.data.synthetic.sequence_layout import (
    compute_slot_weights,
    sample_permutations,
    sample_slots,
    shuffle_rows,
)
from attnlab.data.synthetic_task import (
    SyntheticTask,
    check_whole_numbers,
    classify_distances,
    name_distance_classes,
)
from attnlab.data.task import IGNORE, Batch


class CompositionalRecall(SyntheticTask):
    """All combinations of `firsts` first and `seconds` second tokens, then one query of each.

    Each combination has a value of its own; the order is random. Queries take the three-token slots that
    follow (see `compute_slot_weights`). One third of the vocabulary each are first tokens, second tokens and
    values. Results are reported by the distance from a query back to its key.
    """

    def __init__(
        self, length: int, vocabulary: int, firsts: int, seconds: int, power: float, val_windows: int
    ) -> None:
        check_whole_numbers(1, length=length, vocabulary=vocabulary, firsts=firsts, seconds=seconds)
        self.pairs = firsts * seconds
        self.role_size = vocabulary // 3
        if vocabulary % 3 or self.role_size < self.pairs:
            raise ValueError(
                f"data.vocabulary must be divisible by 3 and at least {3 * self.pairs}, got {vocabulary}:"
                f" a third of its symbols are values, one for each of {self.pairs} pairs"
            )
        if length < 6 * self.pairs:
            raise ValueError(
                f"data.length={length} is too short: {self.pairs} pairs and a slot for each query take"
                f" {6 * self.pairs} tokens; raise data.length, or lower data.firsts or data.seconds"
            )
        self.firsts = firsts
        self.seconds = seconds
        self._slot_weights = compute_slot_weights((length - 3 * self.pairs) // 3, power)
        super().__init__(
            [f"{kind}{i}" for kind in "abv" for i in range(self.role_size)], name_distance_classes(length),
            length, val_windows, name="compositional", vocabulary=vocabulary, firsts=firsts,
            seconds=seconds, power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        first = sample_permutations(count, self.role_size, random)[:, : self.firsts].repeat_interleave(
            self.seconds, 1
        )
        second = (
            sample_permutations(count, self.role_size, random)[:, : self.seconds].repeat(1, self.firsts)
            + self.role_size
        )
        values = sample_permutations(count, self.role_size, random)[:, : self.pairs] + 2 * self.role_size
        pair_positions = 3 * shuffle_rows(torch.arange(self.pairs).expand(count, -1), random)
        tokens = torch.randint(self.role_size, (count, self.length), generator=random) + 2 * self.role_size
        query_positions = 3 * self.pairs + 3 * sample_slots(self._slot_weights, count, self.pairs, random)
        for position in (pair_positions, query_positions):
            tokens.scatter_(1, position, first).scatter_(1, position + 1, second)
        tokens.scatter_(1, pair_positions + 2, values)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, query_positions + 1, values)
        condition = torch.zeros_like(tokens).scatter_(
            1, query_positions + 1, classify_distances(query_positions - pair_positions)
        )
        return {"tokens": tokens, "targets": targets, "condition": condition}
