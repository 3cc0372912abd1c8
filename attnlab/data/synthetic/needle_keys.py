"""Needles with keys (RULER, Hsieh et al. 2024, 2404.06654): pairs among filler tokens, then one query.

tokens    c1 k7 v2 c0 c4 k3 v5 c2 c1 k7
targets    .  .  .  .  .  .  .  .  . v2

Unlike `needle`, the values alone do not determine the answer: the model has to match the key.
"""

from collections.abc import Sequence

import torch

from attnlab.data.synthetic.sequence_layout import sample_permutations
from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch


class NeedleKeys(SyntheticTask):
    """One of the numbers `needles` of pairs at random places, and the query of one of their keys at the end.

    All numbers are equally likely, and no key occurs twice before the query. There are `symbols` keys,
    values and filler tokens each. Results are reported by the number of pairs. Chance is 1 / symbols, and 1 /
    pairs for a model that knows the values of its window.
    """

    def __init__(self, length: int, symbols: int, needles: Sequence[int], val_windows: int) -> None:
        check_whole_numbers(2, symbols=symbols)
        needles = list(needles)
        if not needles or any(type(n) is not int or n < 1 for n in needles):
            raise ValueError(f"data.needles must be integers of at least 1, as in [1,2,4], got {needles}")
        if needles != sorted(set(needles)):
            raise ValueError(f"data.needles must be in increasing order without repeats, got {needles}")
        most = needles[-1]
        if symbols < most:
            raise ValueError(f"data.symbols={symbols} is too small: {most} needles take as many keys")
        if type(length) is not int or length < 2 * most + 1:
            raise ValueError(
                f"data.length={length} is too short: {most} pairs and a query take {2 * most + 1} tokens;"
                " raise data.length or lower data.needles"
            )
        self.symbols = symbols
        self._needles = torch.tensor(needles)
        super().__init__(
            [f"{kind}{i}" for kind in "kvc" for i in range(symbols)], [f"needles/{n}" for n in needles],
            length, val_windows, name="needle_keys", symbols=symbols, needles=needles,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        most = int(self._needles[-1])
        kind = torch.randint(len(self._needles), (count, 1), generator=random)
        n_needles = self._needles[kind]
        # A row is n pairs and length - 1 - 2n filler tokens in random order, then the query.
        n_pieces = self.length - 1 - n_needles
        order = torch.rand(count, self.length - 1, generator=random)
        pieces = order.masked_fill(torch.arange(self.length - 1) >= n_pieces, 2).argsort(1)[:, :most]
        is_needle = torch.arange(most) < n_needles
        pieces = pieces.masked_fill(~is_needle, self.length).sort(1).values
        starts = (pieces + torch.arange(most)).clamp(max=self.length)  # past the window: no needle
        keys = sample_permutations(count, self.symbols, random)[:, :most]
        values = torch.randint(self.symbols, (count, most), generator=random) + self.symbols
        tokens = torch.randint(self.symbols, (count, self.length + 2), generator=random) + 2 * self.symbols
        tokens = tokens.scatter_(1, starts, keys).scatter_(1, starts + 1, values)[:, : self.length]
        queried = (torch.rand(count, 1, generator=random) * n_needles).long()
        tokens[:, -1:] = keys.gather(1, queried)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, -1:] = values.gather(1, queried)
        return {
            "tokens": tokens.contiguous(),
            "targets": targets,
            "condition": kind.expand_as(tokens).contiguous(),
        }
