"""Modular addition: the sum of all numbers so far; modulo 2, parity (Grazzi et al. 2024, 2411.12537).

tokens    2 4 1 3 0 _ _        modulo 5
targets   2 1 2 0 0 . .        2 + 4 is 1

The paper scores the end of an example only (`last_only`), trains on 3 to 40 numbers and tests on up to 256.
It proves that a linear recurrence of finite precision whose transitions have only positive eigenvalues cannot
compute parity at every length.
"""

from typing import Any

import torch

from attnlab.data.synthetic.word_problem import WordProblem
from attnlab.data.synthetic_task import check_whole_numbers


class ModularAddition(WordProblem):
    """The word problem of the cyclic group of `modulus` elements; chance is 1 / modulus."""

    def __init__(self, length: int, modulus: int, **options: Any) -> None:
        check_whole_numbers(2, modulus=modulus)
        numbers = torch.arange(modulus)
        super().__init__(
            [*map(str, range(modulus))], (numbers[:, None] + numbers) % modulus, range(modulus), length,
            name="parity" if modulus == 2 else "modular_addition", modulus=modulus, **options,
        )  # fmt: skip
