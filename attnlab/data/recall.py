"""Associative recall (MQAR, Arora et al. 2023): key-value pairs, then a query of each key for its value.

    tokens    k3 v1 k7 v4 | v2 v9 k7 v5 v0 v3 k3 v8
    targets    .  .  .  . |  .  . v4  .  .  . v1  .

Only values stand between the queries, never keys. Random keys there would repeat some queries with another
answer; with a small vocabulary that happens often enough to keep any model from 100%.
"""

import torch

from attnlab.data.synthetic_task import (
    SyntheticTask,
    check_whole_numbers,
    classify_distances,
    name_distance_classes,
)
from attnlab.data.task import IGNORE, Batch


class AssociativeRecall(SyntheticTask):
    """`pairs` pairs, then one query of each key in the two-token slots that follow.

    Slots are sampled without replacement, with weights (slot + 1)^(power - 1): most queries come soon after
    the pairs, some very late. Half of the vocabulary are keys. Results are reported by the distance from a
    key's query back to its pair.
    """

    def __init__(self, length: int, vocabulary: int, pairs: int, power: float, val_windows: int) -> None:
        check_whole_numbers(1, pairs=pairs, length=length)
        check_whole_numbers(4, vocabulary=vocabulary)
        if vocabulary % 2 or vocabulary < 2 * pairs:
            raise ValueError(
                f"data.vocabulary must be even and at least {2 * pairs} (twice data.pairs), got {vocabulary}:"
                " half of its symbols are keys"
            )
        if length < 4 * pairs:
            raise ValueError(
                f"data.length={length} is too short: {pairs} pairs and a slot for each query take {4 * pairs}"
                " tokens; raise data.length or lower data.pairs"
            )
        if not power > 0:
            raise ValueError(f"data.power must be above 0, got {power}; 1 spreads the queries evenly")
        self.n_keys = vocabulary // 2
        self.pairs = pairs
        slots = torch.arange(1, (length - 2 * pairs) // 2 + 1, dtype=torch.float64)
        self._slot_weights = slots ** (power - 1)
        super().__init__(
            [f"{kind}{i}" for kind in "kv" for i in range(self.n_keys)],
            name_distance_classes(length), length, val_windows,
            name="recall", vocabulary=vocabulary, pairs=pairs, power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        keys = torch.rand(count, self.n_keys, generator=random).argsort(1)[:, : self.pairs]
        values = torch.randint(self.n_keys, (count, self.pairs), generator=random) + self.n_keys
        slots = torch.multinomial(self._slot_weights.expand(count, -1), self.pairs, generator=random)
        # multinomial returns likely slots first
        slots = slots.gather(1, torch.rand(slots.shape, generator=random).argsort(1))
        tokens = torch.randint(self.n_keys, (count, self.length), generator=random) + self.n_keys
        tokens[:, : 2 * self.pairs] = torch.stack((keys, values), 2).flatten(1)
        query_positions = 2 * self.pairs + 2 * slots
        tokens.scatter_(1, query_positions, keys)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, query_positions, values)
        distance = query_positions - 2 * torch.arange(self.pairs)
        condition = torch.zeros_like(tokens).scatter_(1, query_positions, classify_distances(distance))
        return {"tokens": tokens, "targets": targets, "condition": condition}
