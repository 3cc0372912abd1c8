"""Forgetting recall (zoology, HazyResearch): some keys are bound twice, and the last value counts.

    tokens    k3 v1 k7 v4 k3 v5 | v2 v9 k7 v5 v0 v3 k3 v8
    targets    .  .  .  .  .  . |  .  . v4  .  .  . v5  .

All second bindings follow all first bindings, as in zoology; only their keys are random.
"""

import torch

from attnlab.data.synthetic.sequence_layout import compute_slot_weights, sample_permutations, sample_slots
from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch


class ForgettingRecall(SyntheticTask):
    """`pairs` keys with values, `updates` of them again with another value, then one query of each key.

    Queries take the two-token slots that follow (see `compute_slot_weights`). Half of the vocabulary are
    keys. Results are reported by the number of bindings of the key.
    """

    def __init__(
        self, length: int, vocabulary: int, pairs: int, updates: int, power: float, val_windows: int
    ) -> None:
        check_whole_numbers(1, pairs=pairs, updates=updates, length=length)
        check_whole_numbers(4, vocabulary=vocabulary)
        if vocabulary % 2 or vocabulary < 2 * pairs:
            raise ValueError(
                f"data.vocabulary must be even and at least {2 * pairs} (twice data.pairs), got {vocabulary}:"
                " half of its symbols are keys"
            )
        if updates > pairs:
            raise ValueError(
                f"data.updates={updates} is too large: there are only data.pairs={pairs} keys to rebind"
            )
        self._query_start = 2 * (pairs + updates)
        if length < self._query_start + 2 * pairs:
            raise ValueError(
                f"data.length={length} is too short: {pairs} pairs, {updates} updates and a slot for "
                "each query"
                f" take {self._query_start + 2 * pairs} tokens; raise data.length or lower data.pairs"
            )
        self.n_keys = vocabulary // 2
        self.pairs = pairs
        self.updates = updates
        self._slot_weights = compute_slot_weights((length - self._query_start) // 2, power)
        super().__init__(
            [f"{kind}{i}" for kind in "kv" for i in range(self.n_keys)], ["bound/1", "bound/2"],
            length, val_windows, name="forgetting", vocabulary=vocabulary, pairs=pairs, updates=updates,
            power=power,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        keys = sample_permutations(count, self.n_keys, random)[:, : self.pairs]
        first = torch.randint(self.n_keys, (count, self.pairs), generator=random)
        updated_keys = sample_permutations(count, self.pairs, random)[:, : self.updates]
        value_shift = torch.randint(1, self.n_keys, (count, self.updates), generator=random)
        second = (first.gather(1, updated_keys) + value_shift) % self.n_keys
        values = first.scatter(1, updated_keys, second) + self.n_keys
        is_updated = torch.zeros_like(first).scatter(1, updated_keys, 1)
        tokens = torch.randint(self.n_keys, (count, self.length), generator=random) + self.n_keys
        pairs = torch.stack((keys, first + self.n_keys), 2).flatten(1)
        updates = torch.stack((keys.gather(1, updated_keys), second + self.n_keys), 2).flatten(1)
        tokens[:, : self._query_start] = torch.cat((pairs, updates), 1)
        query_positions = self._query_start + 2 * sample_slots(self._slot_weights, count, self.pairs, random)
        tokens.scatter_(1, query_positions, keys)
        targets = torch.full_like(tokens, IGNORE).scatter_(1, query_positions, values)
        condition = torch.zeros_like(tokens).scatter_(1, query_positions, is_updated)
        return {"tokens": tokens, "targets": targets, "condition": condition}
