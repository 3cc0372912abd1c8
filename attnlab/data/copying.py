"""Copying (Jelassi et al. 2024): a random string, a marker, and the string again, forward or reversed.

    tokens    4 1 7 = 4 1 7 _        reversed:   4 1 7 = 7 1 4 _
    targets   . . . 4 1 7 _ .                    . . . 7 1 4 _ .

Validation strings may be longer than any training string, in windows of the same size. Every position
encoding is therefore defined at those positions, but learned encodings saw only padding there.
"""

import torch

from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch

N_LENGTH_CLASSES = 4  # classes of string lengths in the validation report


class Copying(SyntheticTask):
    """Strings of 1 to `longest` symbols in training and 1 to `val_longest` in validation.

    All lengths are equally likely, and the end token is scored too. `backwards` reverses the copy. Results
    are reported by string length, in four classes.
    """

    def __init__(
        self, length: int, symbols: int, longest: int, val_longest: int, backwards: bool, val_windows: int
    ) -> None:
        check_whole_numbers(1, symbols=symbols, longest=longest, val_longest=val_longest)
        if type(length) is not int or length < 2 * max(longest, val_longest) + 1:
            raise ValueError(
                f"data.length={length} is too short: a string of {max(longest, val_longest)}, its mark "
                "and its copy"
                f" take {2 * max(longest, val_longest) + 1} tokens; raise data.length"
            )
        self.longest = longest
        self.val_longest = val_longest
        self.backwards = backwards
        self.symbols = symbols
        ends = [-(-val_longest * (n + 1) // N_LENGTH_CLASSES) for n in range(N_LENGTH_CLASSES)]
        self._length_bounds = torch.tensor(sorted(set(ends)))
        super().__init__(
            [*map(str, range(symbols)), "=", "_"], [f"length/{end}" for end in self._length_bounds.tolist()],
            length, val_windows, name="reverse" if backwards else "copy",
            symbols=symbols, longest=longest, val_longest=val_longest,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        max_size = self.val_longest if validation else self.longest
        size = torch.randint(1, max_size + 1, (count, 1), generator=random)
        string = torch.randint(self.symbols, (count, self.length + 1), generator=random)
        mark = self.symbols
        end = self.symbols + 1
        positions = torch.arange(self.length + 1)
        copy_offset = positions - size - 1  # index into the copy, negative before it
        source = (size - 1 - copy_offset if self.backwards else copy_offset).clamp(0, self.length)
        row = torch.where(positions < size, string, string.gather(1, source))
        row = row.masked_fill(positions == size, mark).masked_fill(copy_offset >= size, end)
        scored = (copy_offset[:, 1:] >= 0) & (copy_offset[:, 1:] <= size)
        targets = row[:, 1:].masked_fill(~scored, IGNORE)
        condition = (
            torch.searchsorted(self._length_bounds, size)
            .clamp(max=len(self._length_bounds) - 1)
            .expand_as(targets)
        )
        return {"tokens": row[:, :-1].contiguous(), "targets": targets, "condition": condition.contiguous()}
