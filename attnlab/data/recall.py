"""Associative recall (MQAR, Arora et al. 2023): pairs of key and value, then each key again: its value?

    tokens    k3 v1 k7 v4 | v2 v9 k7 v5 v0 v3 k3 v8
    targets    .  .  .  . |  .  . v4  .  .  . v1  .

Surprising: what stands between the queries are values, never keys. Random keys there would answer some
queries a second time, and differently; with a small vocabulary often enough to keep any model from 100 %.
"""

import torch

from attnlab.data.drawn import Drawn, doubling, doublings, whole
from attnlab.data.task import IGNORE, Batch


class Recall(Drawn):
    """`pairs` pairs, then one query of each key, in the two-token slots that follow. Slots are chosen without
    repetition, with weights (slot + 1)^(power - 1): most soon after the pairs, some very late. Half of the
    vocabulary are keys. Reported by the distance from a key's query back to its pair."""

    def __init__(self, length: int, vocabulary: int, pairs: int, power: float, val_windows: int) -> None:
        whole(1, pairs=pairs, length=length)
        whole(4, vocabulary=vocabulary)
        if vocabulary % 2 or vocabulary < 2 * pairs:
            raise ValueError(
                f"data.vocabulary={vocabulary}: half of it are keys, so it must be even, and at least twice"
                f" data.pairs={pairs}"
            )
        if length < 4 * pairs:
            raise ValueError(
                f"data.length={length}: {pairs} pairs and a slot for each query take {4 * pairs} tokens;"
                " lower data.pairs"
            )
        if not power > 0:
            raise ValueError(f"data.power={power}: it must be above 0; 1 spreads the queries evenly")
        self.keys = vocabulary // 2
        self.pairs = pairs
        slots = torch.arange(1, (length - 2 * pairs) // 2 + 1, dtype=torch.float64)
        self._chances = slots ** (power - 1)
        super().__init__(
            [f"{kind}{i}" for kind in "kv" for i in range(self.keys)], doublings(length), length, val_windows,
            name="recall", vocabulary=vocabulary, pairs=pairs, power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        keys = torch.rand(count, self.keys, generator=random).argsort(1)[:, : self.pairs]
        values = torch.randint(self.keys, (count, self.pairs), generator=random) + self.keys
        slots = torch.multinomial(self._chances.expand(count, -1), self.pairs, generator=random)
        slots = slots.gather(
            1, torch.rand(slots.shape, generator=random).argsort(1)
        )  # likely ones came first
        tokens = torch.randint(self.keys, (count, self.length), generator=random) + self.keys
        tokens[:, : 2 * self.pairs] = torch.stack((keys, values), 2).flatten(1)
        at = 2 * self.pairs + 2 * slots
        tokens.scatter_(1, at, keys)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, at, values)
        distance = at - 2 * torch.arange(self.pairs)
        condition = torch.zeros_like(tokens).scatter_(1, at, doubling(distance))
        return {"tokens": tokens, "targets": targets, "condition": condition}
