"""Word problems of groups (Merrill et al. 2024, 2404.08819): the product of all elements so far.

tokens    213 132 213 231 _ _       permutations of three points: 213 exchanges the first two
targets   213 312 321 132 . .       213, then 132 make 312

A model that carries the product from token to token needs a state with one value per element. Sums modulo a
number are in `modular_addition`.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch

from attnlab.data.synthetic.sequence_layout import LengthRange
from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch

DEGREES = range(2, 7)  # 720 permutations of six points


class WordProblem(SyntheticTask):
    """Products of `shortest` to `longest` elements in training and up to `val_longest` in validation.

    Every position is scored, or with `last_only` the end of the example only; the rest of the window is
    padding. The first products are easy, and training on them leads to longer ones. Results are reported by
    the number of elements up to the scored position.

    Args:
        elements: names of the group's elements.
        product: index of the product of two elements [n, n]: the row's element first, then the column's.
        inputs: indices of the elements that examples are made of.
    """

    def __init__(
        self,
        elements: Sequence[str],
        product: torch.Tensor,
        inputs: Sequence[int],
        length: int,
        shortest: int,
        longest: int,
        val_longest: int,
        last_only: bool,
        val_windows: int,
        **settings: object,
    ) -> None:
        self._lengths = LengthRange(length, shortest, longest, val_longest)
        if type(last_only) is not bool:
            raise ValueError(f"data.last_only must be true or false, got {last_only}")
        self.last_only = last_only
        self._product = product
        self._inputs = torch.tensor(inputs)
        super().__init__(
            [*elements, "_"], self._lengths.conditions, length, val_windows, shortest=shortest,
            longest=longest, val_longest=val_longest, last_only=last_only, **settings,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        size = self._lengths.sample(count, random, validation)
        tokens = self._inputs[torch.randint(len(self._inputs), (count, self.length), generator=random)]
        products = [tokens[:, 0]]
        for element in tokens[:, 1:].unbind(1):
            products.append(self._product[products[-1], element])
        n_elements = torch.arange(1, self.length + 1)
        is_scored = n_elements == size if self.last_only else n_elements <= size
        return {
            "tokens": tokens.masked_fill(n_elements > size, self.vocab_size - 1),
            "targets": torch.stack(products, 1).masked_fill(~is_scored, IGNORE),
            "condition": self._lengths.classify(n_elements).repeat(count, 1),
        }


class PermutationProduct(WordProblem):
    """The symmetric group of `degree` points, on examples of permutations that move at most `moved` points.

    The digits of a permutation's name are the new places of points 1, 2, ... `moved` of 2 leaves the
    identity and the exchanges of two points, whose products are all permutations (DeltaProduct, Siems et al.
    2025, 2502.10297). Chance is 1 / degree!.
    """

    def __init__(self, length: int, degree: int, moved: int, **options: Any) -> None:
        if type(degree) is not int or degree not in DEGREES:
            raise ValueError(
                f"data.degree must be an integer from {DEGREES[0]} to {DEGREES[-1]}, got {degree}"
            )
        check_whole_numbers(2, moved=moved)
        if moved > degree:
            raise ValueError(f"data.moved={moved} is too large: there are only data.degree={degree} points")
        elements = list(permutations(range(degree)))
        index = {element: i for i, element in enumerate(elements)}
        product = [[index[tuple(second[i] for i in first)] for second in elements] for first in elements]
        inputs = [
            n for n, element in enumerate(elements)
            if sum(place != i for i, place in enumerate(element)) <= moved
        ]  # fmt: skip
        names = ["".join(str(place + 1) for place in element) for element in elements]
        super().__init__(
            names, torch.tensor(product), inputs, length,
            name=f"s{degree}", degree=degree, moved=moved, **options,
        )  # fmt: skip
