"""Mano: arithmetic modulo a prime, stored in the weights (Physics of Language Models 4.1, 2512.17351).

    tokens    l2 + * 3 5 4 = 19   l1 - 2 9 = 16 ...          modulo 23: 3 * 5 + 4 = 19, 2 - 9 = 16
    targets    . . . . . . 19 .    . . . . 16 .

No window contains the tables of +, - and *; the model must learn them as facts and then compose them.
"""

import torch

from attnlab.data.synthetic.sequence_layout import locate_pieces
from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch

OPERATORS = "+-*"


class Mano(SyntheticTask):
    """Expressions of 1 to `operations` operations in prefix order, end to end until the window is full.

    All lengths are equally likely. Each expression is preceded by its length and followed by its value. At
    positions where both are valid, an operator and a number are equally likely. Results are reported by the
    number of operations.
    """

    def __init__(self, length: int, modulus: int, operations: int, val_windows: int) -> None:
        check_whole_numbers(2, modulus=modulus)
        check_whole_numbers(1, operations=operations)
        longest = 2 * operations + 4
        if type(length) is not int or length < longest:
            raise ValueError(
                f"data.length={length} is too short: an expression of {operations} operations takes {longest}"
                " tokens; raise data.length or lower data.operations"
            )
        self.modulus = modulus
        self.operations = operations
        super().__init__(
            [*map(str, range(modulus)), *OPERATORS, "=", *(f"l{n + 1}" for n in range(operations))],
            [f"operations/{n + 1}" for n in range(operations)], length, val_windows,
            name="mano", modulus=modulus, operations=operations,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        pieces = -(-self.length // 6)  # the shortest expression has six tokens
        operations = torch.randint(1, self.operations + 1, (count, pieces), generator=random)
        prefix = self._sample_expressions(operations.flatten(), random)
        value = self._evaluate_expressions(prefix).view(count, pieces)
        size = 2 * operations + 4
        equals = self.modulus + len(OPERATORS)
        length_token = self.modulus + len(OPERATORS) + operations
        piece, offset = locate_pieces(size, self.length)
        last = size.gather(1, piece) - 1
        prefix_index = piece * prefix.shape[1] + (offset - 1).clamp(0, prefix.shape[1] - 1)
        tokens = prefix.view(count, -1).gather(1, prefix_index)
        tokens = torch.where(offset == 0, length_token.gather(1, piece), tokens).masked_fill(
            offset == last - 1, equals
        )
        tokens = torch.where(offset == last, value.gather(1, piece), tokens)
        targets = value.gather(1, piece).masked_fill(offset != last - 1, IGNORE)
        return {"tokens": tokens, "targets": targets, "condition": operations.gather(1, piece) - 1}

    def _sample_expressions(self, operations: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        """Sample expressions [n, 2 operations + 1 at most] in prefix order, right-padded with zeros."""
        n = len(operations)
        longest = 2 * self.operations + 1
        number = torch.randint(self.modulus, (n, longest), generator=random)
        operator = torch.randint(len(OPERATORS), (n, longest), generator=random) + self.modulus
        prefers_operator = torch.rand(n, longest, generator=random) < 0.5
        operations_left = operations
        open_places = torch.ones(n, dtype=torch.int64)
        columns = []
        for position in range(longest):
            operation = (operations_left > 0) & (prefers_operator[:, position] | (open_places == 1))
            token = torch.where(operation, operator[:, position], number[:, position])
            columns.append(token.masked_fill(open_places == 0, 0))
            operations_left = operations_left - operation.long()
            open_places = open_places + torch.where(operation, 1, -1).masked_fill(open_places == 0, 0)
        return torch.stack(columns, 1)

    def _evaluate_expressions(self, prefix: torch.Tensor) -> torch.Tensor:
        """Return the value of each expression [n, tokens], evaluated from its end with a stack.

        The padding zeros come first in this order, so they stay below the operands on the stack.
        """
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
