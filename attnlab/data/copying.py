"""Copying: a random string, a mark, and the string again, forwards or backwards. (Jelassi et al. 2024)

    tokens    4 1 7 = 4 1 7 _        reversed:   4 1 7 = 7 1 4 _
    targets   . . . 4 1 7 _ .                    . . . 7 1 4 _ .

Surprising: validation strings may be longer than any that is trained on, in windows of the same size. So
positions past the trained ones are defined for every encoding, but learned ones met only padding there.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.task import IGNORE, Batch

PARTS = 4  # classes of string lengths that validation is reported by


class Copying(Drawn):
    """Strings of 1 to `longest` symbols in training, of 1 to `val_longest` in validation, all lengths equally
    likely; the end is scored too. `backwards` reverses. Reported by the string's length, in four classes."""

    def __init__(
        self, length: int, symbols: int, longest: int, val_longest: int, backwards: bool, val_windows: int
    ) -> None:
        whole(1, symbols=symbols, longest=longest, val_longest=val_longest)
        if type(length) is not int or length < 2 * max(longest, val_longest) + 1:
            raise ValueError(
                f"data.length={length}: a string of {max(longest, val_longest)}, its mark and its copy take"
                f" {2 * max(longest, val_longest) + 1} tokens"
            )
        self.longest = longest
        self.val_longest = val_longest
        self.backwards = backwards
        self.symbols = symbols
        ends = [-(-val_longest * (n + 1) // PARTS) for n in range(PARTS)]
        self._ends = torch.tensor(sorted(set(ends)))
        super().__init__(
            [*map(str, range(symbols)), "=", "_"], [f"length/{end}" for end in self._ends.tolist()],
            length, val_windows, name="reverse" if backwards else "copy",
            symbols=symbols, longest=longest, val_longest=val_longest,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        most = self.val_longest if validation else self.longest
        size = torch.randint(1, most + 1, (count, 1), generator=random)
        string = torch.randint(self.symbols, (count, self.length + 1), generator=random)
        mark = self.symbols
        end = self.symbols + 1
        where = torch.arange(self.length + 1)
        copied = where - size - 1  # which symbol of the copy stands here
        source = (size - 1 - copied if self.backwards else copied).clamp(0, self.length)
        row = torch.where(where < size, string, string.gather(1, source))
        row = row.masked_fill(where == size, mark).masked_fill(copied >= size, end)
        scored = (copied[:, 1:] >= 0) & (copied[:, 1:] <= size)
        targets = row[:, 1:].masked_fill(~scored, IGNORE)
        condition = torch.searchsorted(self._ends, size).clamp(max=len(self._ends) - 1).expand_as(targets)
        return {"tokens": row[:, :-1].contiguous(), "targets": targets, "condition": condition.contiguous()}
