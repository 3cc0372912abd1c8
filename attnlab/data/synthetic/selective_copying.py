"""Selective copying (MAD, Poli et al. 2024; Gu and Dao 2023): scattered symbols, copied in order.

    tokens    . 4 . . 1 7 . = = =
    targets   . . . . . . . 4 1 7

From MAD, 2403.17844. Copied symbols do not appear in the input again, so the model finds the n-th answer by
counting, not by matching the symbol after the last one.
"""

import torch

from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch


class SelectiveCopying(SyntheticTask):
    """`copied` out of `symbols` symbols at uniformly random positions among blanks, and one marker for each.

    Results are reported by the index of the queried symbol.
    """

    def __init__(self, length: int, symbols: int, copied: int, val_windows: int) -> None:
        check_whole_numbers(1, copied=copied)
        check_whole_numbers(2, symbols=symbols)
        if type(length) is not int or length < 2 * copied:
            raise ValueError(
                f"data.length={length} is too short: {copied} symbols and their marks take {2 * copied} "
                "tokens;"
                " raise data.length or lower data.copied"
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
        input_length = self.length - self.copied
        symbol_positions = (
            torch.rand(count, input_length, generator=random).argsort(1)[:, : self.copied].sort(1).values
        )
        string = torch.randint(self.symbols, (count, self.copied), generator=random)
        tokens = torch.full((count, self.length), blank).scatter_(1, symbol_positions, string)
        tokens[:, input_length:] = mark
        targets = torch.full_like(tokens, IGNORE)
        targets[:, input_length:] = string
        condition = (torch.arange(self.length) - input_length).clamp(min=0).repeat(count, 1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
