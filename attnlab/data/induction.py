"""Induction (Olsson et al. 2022): a repeated random sequence, predictable from its second period on.

    tokens    5 2 9 5 2 9 5 2        period 3, another one in every example
    targets   . . . 2 9 5 2 9

The period must be random. With a fixed period, a single layer that attends a fixed distance back solves the
task without learning to match the token itself.
"""

import torch

from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch


class Induction(SyntheticTask):
    """Periods from `shortest` to `longest`, without repeated tokens, so every scored target is certain.

    Results are reported by the number of earlier occurrences of the current token.
    """

    def __init__(self, length: int, vocabulary: int, shortest: int, longest: int, val_windows: int) -> None:
        check_whole_numbers(1, shortest=shortest, longest=longest, vocabulary=vocabulary)
        if not shortest <= longest <= vocabulary:
            raise ValueError(
                f"data.shortest={shortest}, data.longest={longest}, data.vocabulary={vocabulary}:"
                " each must be at least as large as the one before it"
            )
        if type(length) is not int or length <= longest:
            raise ValueError(f"data.length={length} is too short: it must exceed data.longest={longest}")
        self.shortest = shortest
        self.longest = longest
        super().__init__(
            [str(i) for i in range(vocabulary)], [f"seen/{n + 1}" for n in range((length - 1) // shortest)],
            length, val_windows, name="induction", vocabulary=vocabulary, shortest=shortest, longest=longest,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        period = torch.randint(self.shortest, self.longest + 1, (count, 1), generator=random)
        permutations = torch.rand(count, self.vocab_size, generator=random).argsort(1)
        positions = torch.arange(self.length + 1)
        row = permutations.gather(1, positions % period)
        occurrences = positions[:-1] // period
        targets = row[:, 1:].masked_fill(occurrences == 0, IGNORE)
        return {
            "tokens": row[:, :-1].contiguous(),
            "targets": targets,
            "condition": (occurrences - 1).clamp(min=0),
        }
