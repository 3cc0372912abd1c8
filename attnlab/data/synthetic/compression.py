"""Compression: a string into one position, which must encode all of it (after MAD, Poli et al. 2024).

    tokens    2 0 1 > 1 1 0 > ...        symbols 0 to 2; the number of 201 in base 3 is 19
    targets   . . . #19 . . . #12

MAD (2403.17844) decodes the position by an MLP that receives the index of the requested symbol. A language
model has one readout for all positions, so its target is the string's number, one of symbols^digits.
"""

import torch

from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch

MAX_STRINGS = 65536  # limit of symbols^digits


class Compression(SyntheticTask):
    """Strings of `digits` out of `symbols` symbols, each with its marker, as many as fit a window.

    Markers without a string fill the rest. Results are reported by whether a string begins its window.
    """

    def __init__(self, length: int, symbols: int, digits: int, val_windows: int) -> None:
        check_whole_numbers(2, symbols=symbols)
        check_whole_numbers(1, digits=digits)
        if symbols**digits > MAX_STRINGS:
            raise ValueError(
                f"data.digits={digits} is too large: {symbols} symbols make {symbols**digits} strings, "
                "each with"
                f" its own token, and at most {MAX_STRINGS} are supported; lower data.digits or data.symbols"
            )
        if type(length) is not int or length <= digits:
            raise ValueError(
                f"data.length={length} is too short: a string and its mark take {digits + 1} tokens; "
                "raise data.length"
            )
        self.symbols = symbols
        self.digits = digits
        self.n_strings = length // (digits + 1)
        super().__init__(
            [*map(str, range(symbols)), ">", *(f"#{i}" for i in range(symbols**digits))],
            ["string/1", "string/2"][: self.n_strings], length, val_windows,
            name="compression", symbols=symbols, digits=digits,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        strings = torch.randint(self.symbols, (count, self.n_strings, self.digits), generator=random)
        number = (strings * self.symbols ** torch.arange(self.digits - 1, -1, -1)).sum(2)
        tokens = torch.full((count, self.length), self.symbols)
        used = self.n_strings * (self.digits + 1)
        tokens[:, :used] = torch.nn.functional.pad(strings, (0, 1), value=self.symbols).flatten(1)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, self.digits : used : self.digits + 1] = number + self.symbols + 1
        condition = (torch.arange(self.length) > self.digits).long().repeat(count, 1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
