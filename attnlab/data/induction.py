"""Induction (Olsson et al. 2022): a random sequence over and over; from its second time on, all is known.

    tokens    5 2 9 5 2 9 5 2        period 3, another one in every example
    targets   . . . 2 9 5 2 9

Surprising: the period must be random. With a fixed one, a single layer that looks a fixed distance back
solves the task, and nothing is learnt about looking for the token itself.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.task import IGNORE, Batch


class Induction(Drawn):
    """Periods from `shortest` to `longest`; no token comes twice in one, so every scored target is certain.
    Reported by how often the current token has been seen before."""

    def __init__(self, length: int, vocabulary: int, shortest: int, longest: int, val_windows: int) -> None:
        whole(1, shortest=shortest, longest=longest, vocabulary=vocabulary)
        if not shortest <= longest <= vocabulary:
            raise ValueError(
                f"data.shortest={shortest}, data.longest={longest}, data.vocabulary={vocabulary}:"
                f" they must not fall in this order"
            )
        if type(length) is not int or length <= longest:
            raise ValueError(f"data.length={length}: a window must be longer than data.longest={longest}")
        self.shortest = shortest
        self.longest = longest
        super().__init__(
            [str(i) for i in range(vocabulary)], [f"seen/{n + 1}" for n in range((length - 1) // shortest)],
            length, val_windows, name="induction", vocabulary=vocabulary, shortest=shortest, longest=longest,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        period = torch.randint(self.shortest, self.longest + 1, (count, 1), generator=random)
        once = torch.rand(count, self.vocab_size, generator=random).argsort(1)
        where = torch.arange(self.length + 1)
        row = once.gather(1, where % period)
        seen = where[:-1] // period
        targets = row[:, 1:].masked_fill(seen == 0, IGNORE)
        return {"tokens": row[:, :-1].contiguous(), "targets": targets, "condition": (seen - 1).clamp(min=0)}
