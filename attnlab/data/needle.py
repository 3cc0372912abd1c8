"""Needle at a distance: one value among filler tokens, and later the query for that value.

    tokens    c1 c4 v2 c0 ? c3 c1 ? c2       distances 2 and 5
    targets    .  .  .  . v2 .  .  v2 .

Every example queries every distance. A window of W keys reaches W - 1 tokens back, so k such layers reach k
(W - 1) tokens through the tokens in between; beyond that, accuracy is at chance.
"""

from collections.abc import Sequence

import torch

from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch


class Needle(SyntheticTask):
    """A needle at a random position from `earliest` on, as far as the longest of `distances` allows.

    There are as many kinds of filler tokens as `values`. Results are reported by distance; chance is 1 /
    values.
    """

    def __init__(
        self, length: int, values: int, distances: Sequence[int], earliest: int, val_windows: int
    ) -> None:
        check_whole_numbers(2, values=values)
        check_whole_numbers(0, earliest=earliest)
        distances = list(distances)
        if not distances or any(type(d) is not int or d < 1 for d in distances):
            raise ValueError(
                f"data.distances must be integers of at least 1, as in [2,8,32], got {distances}"
            )
        if distances != sorted(set(distances)):
            raise ValueError(f"data.distances must be in increasing order without repeats, got {distances}")
        if type(length) is not int or earliest + distances[-1] >= length:
            raise ValueError(
                f"data.length={length} is too short: a needle at position {earliest} and a distance of"
                f" {distances[-1]} take {earliest + distances[-1] + 1} tokens; raise data.length"
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
        position_limit = self.length - int(self._distances[-1])
        needle_position = torch.randint(self.earliest, position_limit, (count, 1), generator=random)
        value = torch.randint(self.values, (count, 1), generator=random)
        tokens = torch.randint(self.values, (count, self.length), generator=random) + self.values
        tokens.scatter_(1, needle_position, value)
        query_positions = needle_position + self._distances
        tokens.scatter_(1, query_positions, 2 * self.values)
        targets = torch.full_like(tokens, IGNORE).scatter_(
            1, query_positions, value.expand_as(query_positions)
        )
        condition = torch.zeros_like(tokens).scatter_(
            1, query_positions, torch.arange(query_positions.shape[1]).expand_as(query_positions)
        )
        return {"tokens": tokens, "targets": targets, "condition": condition}
