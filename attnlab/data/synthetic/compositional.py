"""Compositional recall (zoology, HazyResearch): a key is two tokens, and neither alone says the value.

tokens    a2 b5 v1 a9 b5 v4 a2 b0 v3 a9 b0 v7 | v2 v0 v8 a9 b5 v6
targets    .  .  .  .  .  .  .  .  .  .  .  . |  .  .  .  . v4  .
"""

import torch

from attnlab.data.drawn import Drawn, doubling, doublings, whole
from attnlab.data.synthetic.pieces import drawn_slots, orders, shuffled, slot_chances
from attnlab.data.task import IGNORE, Batch


class Compositional(Drawn):
    """`firsts` first and `seconds` second tokens in all combinations, each with a value of its own, in any
    order; then one query of each in the three-token slots that follow (see `slot_chances`). A third of the
    vocabulary each are first tokens, second ones, and values. Reported by the distance from a query back to
    its key."""

    def __init__(
        self, length: int, vocabulary: int, firsts: int, seconds: int, power: float, val_windows: int
    ) -> None:
        whole(1, length=length, vocabulary=vocabulary, firsts=firsts, seconds=seconds)
        self.pairs = firsts * seconds
        self.third = vocabulary // 3
        if vocabulary % 3 or self.third < self.pairs:
            raise ValueError(
                f"data.vocabulary={vocabulary}: a third of it are values, one for each of {self.pairs} pairs,"
                f" so it must be divisible by 3, and at least {3 * self.pairs}"
            )
        if length < 6 * self.pairs:
            raise ValueError(
                f"data.length={length}: {self.pairs} pairs and a slot for each query take {6 * self.pairs}"
                " tokens; lower data.firsts or data.seconds"
            )
        self.firsts = firsts
        self.seconds = seconds
        self._chances = slot_chances((length - 3 * self.pairs) // 3, power)
        super().__init__(
            [f"{kind}{i}" for kind in "abv" for i in range(self.third)], doublings(length),
            length, val_windows, name="compositional", vocabulary=vocabulary, firsts=firsts,
            seconds=seconds, power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        first = orders(count, self.third, random)[:, : self.firsts].repeat_interleave(self.seconds, 1)
        second = orders(count, self.third, random)[:, : self.seconds].repeat(1, self.firsts) + self.third
        values = orders(count, self.third, random)[:, : self.pairs] + 2 * self.third
        places = 3 * shuffled(torch.arange(self.pairs).expand(count, -1), random)
        tokens = torch.randint(self.third, (count, self.length), generator=random) + 2 * self.third
        at = 3 * self.pairs + 3 * drawn_slots(self._chances, count, self.pairs, random)
        for place in (places, at):
            tokens.scatter_(1, place, first).scatter_(1, place + 1, second)
        tokens.scatter_(1, places + 2, values)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, at + 1, values)
        condition = torch.zeros_like(tokens).scatter_(1, at + 1, doubling(at - places))
        return {"tokens": tokens, "targets": targets, "condition": condition}
