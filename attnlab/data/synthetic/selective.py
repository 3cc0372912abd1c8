"""Selective copying (MAD, Poli et al. 2024, 2403.17844; Gu and Dao 2023): what is scattered is copied in
order.

    tokens    . 4 . . 1 7 . = = =
    targets   . . . . . . . 4 1 7

Surprising: what has been copied is not shown again, so the n-th answer is found by counting, not by looking
for the symbol after the last one.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.task import IGNORE, Batch


class SelectiveCopying(Drawn):
    """`copied` symbols of `symbols`, at places drawn evenly among blanks, and one mark for each. Reported by
    which of them is asked for."""

    def __init__(self, length: int, symbols: int, copied: int, val_windows: int) -> None:
        whole(1, copied=copied)
        whole(2, symbols=symbols)
        if type(length) is not int or length < 2 * copied:
            raise ValueError(
                f"data.length={length}: {copied} symbols and their marks take {2 * copied} tokens;"
                " lower data.copied"
            )
        self.symbols = symbols
        self.copied = copied
        super().__init__(
            [*map(str, range(symbols)), ".", "="], [f"place/{n + 1}" for n in range(copied)],
            length, val_windows, name="selective_copying", symbols=symbols, copied=copied,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        blank = self.symbols
        mark = self.symbols + 1
        before = self.length - self.copied
        places = torch.rand(count, before, generator=random).argsort(1)[:, : self.copied].sort(1).values
        string = torch.randint(self.symbols, (count, self.copied), generator=random)
        tokens = torch.full((count, self.length), blank).scatter_(1, places, string)
        tokens[:, before:] = mark
        targets = torch.full_like(tokens, IGNORE)
        targets[:, before:] = string
        condition = (torch.arange(self.length) - before).clamp(min=0).repeat(count, 1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
