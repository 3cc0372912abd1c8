"""Memorization (MAD, Poli et al. 2024, 2403.17844): facts in no window, only in the weights.

    tokens    k7 ? k2 ? k7 ?
    targets    . v4 . v0 . v4        k7 is v4 in every example of every run

Training and validation share their facts, which are independent of the seed. Validation measures how many
facts were learned.
"""

import torch

from attnlab.data.synthetic_task import (
    SyntheticTask,
    check_whole_numbers,
    classify_distances,
    name_distance_classes,
)
from attnlab.data.task import IGNORE, Batch, make_generator


class Memorization(SyntheticTask):
    """`facts` keys, each with one of `values`.

    The key of rank r is sampled with weight r^-power (0: uniformly, as in MAD). Results are reported by rank.
    """

    def __init__(self, length: int, facts: int, values: int, power: float, val_windows: int) -> None:
        check_whole_numbers(1, facts=facts)
        check_whole_numbers(2, values=values, length=length)
        if not power >= 0:
            raise ValueError(f"data.power must be at least 0, got {power}; 0 draws all facts evenly")
        self.facts = facts
        self._key_weights = torch.arange(1, facts + 1, dtype=torch.float64) ** -power
        self._fact_values = torch.randint(values, (facts,), generator=make_generator("facts", 0)) + facts
        super().__init__(
            [*(f"k{i}" for i in range(facts)), *(f"v{i}" for i in range(values)), "?"],
            [name.replace("distance", "rank") for name in name_distance_classes(facts)], length, val_windows,
            name="memorization", facts=facts, values=values, power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        n_queries = self.length // 2
        keys = torch.multinomial(self._key_weights, count * n_queries, replacement=True, generator=random)
        keys = keys.reshape(count, n_queries)
        tokens = torch.full((count, self.length), self.vocab_size - 1)
        tokens[:, : 2 * n_queries : 2] = keys
        targets = torch.full_like(tokens, IGNORE)
        targets[:, 1::2] = self._fact_values[keys]
        condition = torch.zeros_like(tokens)
        condition[:, 1::2] = classify_distances(keys + 1)
        return {"tokens": tokens, "targets": targets, "condition": condition}
