"""Forgetting recall (zoology, HazyResearch): some keys are bound twice, and the last value counts.

    tokens    k3 v1 k7 v4 k3 v5 | v2 v9 k7 v5 v0 v3 k3 v8
    targets    .  .  .  .  .  . |  .  . v4  .  .  . v5  .

Surprising: the second bindings stand after all first ones, as in zoology; what is not known is whose they
are.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.synthetic.pieces import drawn_slots, orders, slot_chances
from attnlab.data.task import IGNORE, Batch


class Forgetting(Drawn):
    """`pairs` keys with their values, `updates` of them again with another value, then one query of each
    key in the two-token slots that follow (see `slot_chances`). Half of the vocabulary are keys. Reported
    by how often the key was bound."""

    def __init__(
        self, length: int, vocabulary: int, pairs: int, updates: int, power: float, val_windows: int
    ) -> None:
        whole(1, pairs=pairs, updates=updates, length=length)
        whole(4, vocabulary=vocabulary)
        if vocabulary % 2 or vocabulary < 2 * pairs:
            raise ValueError(
                f"data.vocabulary={vocabulary}: half of it are keys, so it must be even, and at least twice"
                f" data.pairs={pairs}"
            )
        if updates > pairs:
            raise ValueError(f"data.updates={updates}: there are only data.pairs={pairs} keys to bind again")
        self._start = 2 * (pairs + updates)
        if length < self._start + 2 * pairs:
            raise ValueError(
                f"data.length={length}: {pairs} pairs, {updates} updates and a slot for each query take"
                f" {self._start + 2 * pairs} tokens; lower data.pairs"
            )
        self.keys = vocabulary // 2
        self.pairs = pairs
        self.updates = updates
        self._chances = slot_chances((length - self._start) // 2, power)
        super().__init__(
            [f"{kind}{i}" for kind in "kv" for i in range(self.keys)], ["bound/1", "bound/2"],
            length, val_windows, name="forgetting", vocabulary=vocabulary, pairs=pairs, updates=updates,
            power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        keys = orders(count, self.keys, random)[:, : self.pairs]
        first = torch.randint(self.keys, (count, self.pairs), generator=random)
        again = orders(count, self.pairs, random)[:, : self.updates]
        other = torch.randint(1, self.keys, (count, self.updates), generator=random)
        second = (first.gather(1, again) + other) % self.keys
        values = first.scatter(1, again, second) + self.keys
        bound = torch.zeros_like(first).scatter(1, again, 1)
        tokens = torch.randint(self.keys, (count, self.length), generator=random) + self.keys
        pairs = torch.stack((keys, first + self.keys), 2).flatten(1)
        updates = torch.stack((keys.gather(1, again), second + self.keys), 2).flatten(1)
        tokens[:, : self._start] = torch.cat((pairs, updates), 1)
        at = self._start + 2 * drawn_slots(self._chances, count, self.pairs, random)
        tokens.scatter_(1, at, keys)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, at, values)
        condition = torch.zeros_like(tokens).scatter_(1, at, bound)
        return {"tokens": tokens, "targets": targets, "condition": condition}
