"""Memorisation (MAD, Poli et al. 2024, 2403.17844): facts that stand in no window, only in the weights.

    tokens    k7 ? k2 ? k7 ?
    targets    . v4 . v0 . v4        k7 is v4 in every example of every run

Surprising: training and validation share their facts, which are those of no seed. What is validated is how
many of them have been learnt.
"""

import torch

from attnlab.data.drawn import Drawn, doubling, doublings, whole
from attnlab.data.task import IGNORE, Batch, generator


class Memorization(Drawn):
    """`facts` keys, each with one of `values`; the key of rank r is drawn with a weight of r^-power (0:
    evenly, as in MAD). Reported by rank."""

    def __init__(self, length: int, facts: int, values: int, power: float, val_windows: int) -> None:
        whole(1, facts=facts)
        whole(2, values=values, length=length)
        if not power >= 0:
            raise ValueError(f"data.power={power}: it must be at least 0; 0 draws all facts evenly")
        self.facts = facts
        self._chances = torch.arange(1, facts + 1, dtype=torch.float64) ** -power
        self._value = torch.randint(values, (facts,), generator=generator("facts", 0)) + facts
        super().__init__(
            [*(f"k{i}" for i in range(facts)), *(f"v{i}" for i in range(values)), "?"],
            [name.replace("distance", "rank") for name in doublings(facts)], length, val_windows,
            name="memorization", facts=facts, values=values, power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        asked = self.length // 2
        keys = torch.multinomial(self._chances, count * asked, replacement=True, generator=random)
        keys = keys.reshape(count, asked)
        tokens = torch.full((count, self.length), self.vocab_size - 1)
        tokens[:, : 2 * asked : 2] = keys
        targets = torch.full_like(tokens, IGNORE)
        targets[:, 1::2] = self._value[keys]
        condition = torch.zeros_like(tokens)
        condition[:, 1::2] = doubling(keys + 1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
