"""A needle at a distance: one value in a lot of chaff, and later the question which value it was.

    tokens    c1 c4 v2 c0 ? c3 c1 ? c2       distances 2 and 5
    targets    .  .  .  . v2 .  .  v2 .

Surprising: every distance is asked in every example. A window of W keys sees W - 1 tokens back, so k layers
of it reach k (W - 1) tokens, by way of tokens in between; beyond that, only chance is left.
"""

from collections.abc import Sequence

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.task import IGNORE, Batch


class Needle(Drawn):
    """The needle's place is drawn from `earliest` on, as far as the longest of `distances` allows; there are
    as many kinds of chaff as `values`. Reported by distance; chance is 1 / values."""

    def __init__(
        self, length: int, values: int, distances: Sequence[int], earliest: int, val_windows: int
    ) -> None:
        whole(2, values=values)
        whole(0, earliest=earliest)
        distances = list(distances)
        if not distances or any(type(d) is not int or d < 1 for d in distances):
            raise ValueError(f"data.distances={distances}: give whole numbers of at least 1, as in [2,8,32]")
        if distances != sorted(set(distances)):
            raise ValueError(f"data.distances={distances}: name each once, the shortest first")
        if type(length) is not int or earliest + distances[-1] >= length:
            raise ValueError(
                f"data.length={length}: a needle at {earliest} and a distance of {distances[-1]} take"
                f" {earliest + distances[-1] + 1} tokens"
            )
        self.values = values
        self.earliest = earliest
        self._distances = torch.tensor(distances)
        words = [f"{kind}{i}" for kind in "vc" for i in range(values)]
        super().__init__(
            [*words, "?"], [f"distance/{d}" for d in distances], length, val_windows,
            name="needle", values=values, distances=distances, earliest=earliest,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        last = self.length - int(self._distances[-1])
        place = torch.randint(self.earliest, last, (count, 1), generator=random)
        value = torch.randint(self.values, (count, 1), generator=random)
        tokens = torch.randint(self.values, (count, self.length), generator=random) + self.values
        tokens.scatter_(1, place, value)
        at = place + self._distances
        tokens.scatter_(1, at, 2 * self.values)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, at, value.expand_as(at))
        condition = torch.zeros_like(tokens).scatter_(1, at, torch.arange(at.shape[1]).expand_as(at))
        return {"tokens": tokens, "targets": targets, "condition": condition}
