"""Mano: sums and products modulo a prime, done in the weights (Physics of Language Models 4.1, 2512.17351).

    tokens    l2 + * 3 5 4 = 19   l1 - 2 9 = 16 ...          modulo 23: 3 * 5 + 4 = 19, 2 - 9 = 16
    targets    . . . . . . 19 .    . . . . 16 .

Surprising: the tables of +, - and * stand in no window; they are facts to be learnt, and then to be put
together.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.synthetic.pieces import end_to_end
from attnlab.data.task import IGNORE, Batch

SIGNS = "+-*"


class Mano(Drawn):
    """Expressions of 1 to `operations` operations in prefix order, all equally likely, each with its length
    before it and its value behind, laid end to end until the window is full. Where both may
    stand, an operation and a number are equally likely. Reported by the number of operations."""

    def __init__(self, length: int, modulus: int, operations: int, val_windows: int) -> None:
        whole(2, modulus=modulus)
        whole(1, operations=operations)
        longest = 2 * operations + 4
        if type(length) is not int or length < longest:
            raise ValueError(
                f"data.length={length}: an expression of {operations} operations takes {longest} tokens;"
                " lower data.operations"
            )
        self.modulus = modulus
        self.operations = operations
        super().__init__(
            [*map(str, range(modulus)), *SIGNS, "=", *(f"l{n + 1}" for n in range(operations))],
            [f"operations/{n + 1}" for n in range(operations)], length, val_windows,
            name="mano", modulus=modulus, operations=operations,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        pieces = -(-self.length // 6)  # the shortest has six tokens
        operations = torch.randint(1, self.operations + 1, (count, pieces), generator=random)
        prefix = self._expressions(operations.flatten(), random)
        value = self._values(prefix).view(count, pieces)
        size = 2 * operations + 4
        equals = self.modulus + len(SIGNS)
        told = self.modulus + len(SIGNS) + operations
        piece, offset = end_to_end(size, self.length)
        last = size.gather(1, piece) - 1
        inside = piece * prefix.shape[1] + (offset - 1).clamp(0, prefix.shape[1] - 1)
        tokens = prefix.view(count, -1).gather(1, inside)
        tokens = torch.where(offset == 0, told.gather(1, piece), tokens).masked_fill(
            offset == last - 1, equals
        )
        tokens = torch.where(offset == last, value.gather(1, piece), tokens)
        targets = value.gather(1, piece).masked_fill(offset != last - 1, IGNORE)
        return {"tokens": tokens, "targets": targets, "condition": operations.gather(1, piece) - 1}

    def _expressions(self, operations: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        """Expressions [n, 2 operations + 1 at most] in prefix order, with zeros behind the shorter ones."""
        n = len(operations)
        longest = 2 * self.operations + 1
        number = torch.randint(self.modulus, (n, longest), generator=random)
        sign = torch.randint(len(SIGNS), (n, longest), generator=random) + self.modulus
        heads = torch.rand(n, longest, generator=random) < 0.5
        left = operations
        open_places = torch.ones(n, dtype=torch.int64)
        placed = []
        for at in range(longest):
            operation = (left > 0) & (heads[:, at] | (open_places == 1))
            token = torch.where(operation, sign[:, at], number[:, at])
            placed.append(token.masked_fill(open_places == 0, 0))
            left = left - operation.long()
            open_places = open_places + torch.where(operation, 1, -1).masked_fill(open_places == 0, 0)
        return torch.stack(placed, 1)

    def _values(self, prefix: torch.Tensor) -> torch.Tensor:
        """What each expression [n, tokens] is, read from its end with a stack; the zeros behind it lie
        below."""
        rows = torch.arange(len(prefix))
        stack = torch.zeros(len(prefix), prefix.shape[1] + 1, dtype=torch.int64)
        height = torch.zeros(len(prefix), dtype=torch.int64)
        for token in prefix.flip(1).unbind(1):
            operation = token >= self.modulus
            left = stack[rows, (height - 1).clamp(min=0)]
            right = stack[rows, (height - 2).clamp(min=0)]
            results = torch.stack((left + right, left - right, left * right), 1) % self.modulus
            result = results[rows, (token - self.modulus).clamp(min=0)]
            height = height + torch.where(operation, -1, 1)
            stack[rows, height - 1] = torch.where(operation, result, token)
        return stack[rows, height - 1]
