"""Dyck language of bounded depth (Hewitt et al. 2020, 2010.07515): close the bracket opened last.

tokens    (1 (0 )0 (1 )1 )1 (0 )0        two kinds of brackets
targets    . )0  . )1 )1  . )0  .        before each closing bracket, its kind

Only positions before a closing bracket are scored, so a model need not guess whether the next bracket opens.
"""

import torch

from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch


class Dyck(SyntheticTask):
    """A balanced string of `kinds` kinds of brackets, at most `depth` of them open, that fills the window.

    At depths where both are valid, a bracket opens or closes with equal probability, as in the paper. Strings
    have an even number of tokens; an odd window ends with padding. Results are reported by the depth of the
    closed bracket: 1 is the outermost. Chance is 1 / kinds.
    """

    def __init__(self, length: int, kinds: int, depth: int, val_windows: int) -> None:
        check_whole_numbers(2, kinds=kinds)
        check_whole_numbers(1, depth=depth)
        if type(length) is not int or length < 2 * depth:
            raise ValueError(
                f"data.length={length} is too short: a depth of {depth} takes {2 * depth} tokens;"
                " raise data.length or lower data.depth"
            )
        self.kinds = kinds
        self.depth = depth
        super().__init__(
            [*(f"({i}" for i in range(kinds)), *(f"){i}" for i in range(kinds)), "_"],
            [f"depth/{d + 1}" for d in range(depth)], length, val_windows,
            name="dyck", kinds=kinds, depth=depth,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        size = self.length // 2 * 2
        prefers_opening = torch.rand(count, size, generator=random) < 0.5
        kind = torch.randint(self.kinds, (count, size), generator=random)
        rows = torch.arange(count)
        stack = torch.zeros(count, self.depth + 1, dtype=torch.int64)  # the last entry is never closed
        depth = torch.zeros(count, dtype=torch.int64)
        tokens = torch.full((count, self.length), self.vocab_size - 1)
        targets = torch.full_like(tokens, IGNORE)
        condition = torch.zeros_like(tokens)
        for position in range(size):
            can_open = (depth < self.depth) & (depth < size - position)
            opens = can_open & (prefers_opening[:, position] | (depth == 0))
            stack[rows, depth] = torch.where(opens, kind[:, position], stack[rows, depth])
            closing = stack[rows, depth - 1] + self.kinds
            tokens[:, position] = torch.where(opens, kind[:, position], closing)
            if position:
                targets[:, position - 1] = closing.masked_fill(opens, IGNORE)
                condition[:, position - 1] = (depth - 1).clamp(min=0)
            depth = depth + torch.where(opens, 1, -1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
