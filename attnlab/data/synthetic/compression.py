"""Compression: a string into one position, which must hold all of it (after MAD, Poli et al. 2024,
2403.17844).

    tokens    2 0 1 > 1 1 0 > ...        symbols 0 to 2; the number of 201 to the base 3 is 19
    targets   . . . #19 . . . #12

Surprising: MAD decodes the position by an MLP that is told which symbol to give back. A language model has
one readout for all positions, so it is asked for the string's number, of which there are symbols^digits.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.task import IGNORE, Batch

MOST = 65536  # numbers


class Compression(Drawn):
    """Strings of `digits` symbols of `symbols`, each with its mark, as many as fit a window; what is left are
    marks without a string. Reported by whether a string begins its window."""

    def __init__(self, length: int, symbols: int, digits: int, val_windows: int) -> None:
        whole(2, symbols=symbols)
        whole(1, digits=digits)
        if symbols**digits > MOST:
            raise ValueError(
                f"data.digits={digits}: {symbols} symbols make {symbols**digits} strings, and a number of its"
                f" own each is a token; at most {MOST}"
            )
        if type(length) is not int or length <= digits:
            raise ValueError(f"data.length={length}: a string and its mark take {digits + 1} tokens")
        self.symbols = symbols
        self.digits = digits
        self.strings = length // (digits + 1)
        super().__init__(
            [*map(str, range(symbols)), ">", *(f"#{i}" for i in range(symbols**digits))],
            ["string/1", "string/2"][: self.strings], length, val_windows,
            name="compression", symbols=symbols, digits=digits,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        strings = torch.randint(self.symbols, (count, self.strings, self.digits), generator=random)
        number = (strings * self.symbols ** torch.arange(self.digits - 1, -1, -1)).sum(2)
        tokens = torch.full((count, self.length), self.symbols)
        used = self.strings * (self.digits + 1)
        tokens[:, :used] = torch.nn.functional.pad(strings, (0, 1), value=self.symbols).flatten(1)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, self.digits : used : self.digits + 1] = number + self.symbols + 1
        condition = (torch.arange(self.length) > self.digits).long().repeat(count, 1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
