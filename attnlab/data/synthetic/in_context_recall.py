"""In-context recall with noise, or with keys of several tokens (MAD, Poli et al. 2024, 2403.17844).

    noisy     k3 v1 n0 n4 k7 v4 k3 v1        fuzzy     k3 k1 v2 k5 v4 v4 k3 k1 v2
    targets    .  .  .  .  .  . v1  .                   .  .  .  .  .  .  . v2  .

Pairs recur, and each value is a target at every occurrence but the first. MAD trains on the loss of all
tokens; here, as in all synthetic tasks, only answers are scored, in training too.
"""

import torch

from attnlab.data.synthetic.sequence_layout import locate_pieces, sample_permutations
from attnlab.data.synthetic_task import (
    SyntheticTask,
    check_whole_numbers,
    classify_distances,
    name_distance_classes,
)
from attnlab.data.task import IGNORE, Batch

MAX_KEYS = 4096  # distinct keys of one size


class InContextRecall(SyntheticTask):
    """Draws uniformly from `pairs` pairs until the window is full.

    Each draw is two tokens of noise instead, with probability `noise`. Keys have 1 to `key_tokens` tokens and
    values 1 to `value_tokens`, all sizes equally likely. Keys, values and noise have equally many tokens in
    the vocabulary. Results are reported by the distance back to the pair's last occurrence.
    """

    def __init__(
        self, length: int, symbols: int, pairs: int, noise: float, key_tokens: int, value_tokens: int,
        val_windows: int,
    ) -> None:  # fmt: skip
        check_whole_numbers(1, symbols=symbols, pairs=pairs, key_tokens=key_tokens, value_tokens=value_tokens)
        if symbols < pairs:
            raise ValueError(f"data.symbols={symbols} is too small: data.pairs={pairs} need as many keys")
        if symbols**key_tokens > MAX_KEYS:
            raise ValueError(
                f"data.symbols={symbols} and data.key_tokens={key_tokens} make {symbols**key_tokens} "
                "keys, and at"
                f" most {MAX_KEYS} are supported; lower one of them"
            )
        if not 0 <= noise < 1:
            raise ValueError(f"data.noise must be a probability of at least 0 and below 1, got {noise}")
        min_length = (pairs + 1) * (key_tokens + value_tokens)
        if type(length) is not int or length < min_length:
            raise ValueError(
                f"data.length={length} is too short: {pairs} pairs of up to {key_tokens + value_tokens} "
                "tokens and"
                f" a repeat of one of them take {min_length} tokens; raise data.length or lower data.pairs"
            )
        self.symbols = symbols
        self.pairs = pairs
        self.noise = noise
        self.key_tokens = key_tokens
        self.value_tokens = value_tokens
        super().__init__(
            [f"{kind}{i}" for kind in ("kvn" if noise else "kv") for i in range(symbols)],
            name_distance_classes(length), length, val_windows,
            name="noisy_recall" if noise else "fuzzy_recall", symbols=symbols, pairs=pairs, noise=noise,
            key_tokens=key_tokens, value_tokens=value_tokens,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        sizes, words = self._sample_pairs(count, random)
        events = self.length // 2 + 1  # an event has at least two tokens
        pair = torch.randint(self.pairs, (count, events), generator=random)
        noisy = torch.rand(count, events, generator=random) < self.noise
        noisy[:, 0] = False
        key_size = sizes[..., 0].gather(1, pair).masked_fill(noisy, 2)
        value_size = sizes[..., 1].gather(1, pair).masked_fill(noisy, 0)
        size = key_size + value_size
        distance_to_last = _compute_distance_to_last(
            pair.masked_fill(noisy, self.pairs), size.cumsum(1) - size, self.pairs + 1
        )

        event, offset = locate_pieces(size, self.length + 1)
        in_key = offset - key_size.gather(1, event)  # negative within a key
        slot = torch.where(in_key < 0, offset, self.key_tokens + in_key)
        flat = pair.gather(1, event) * words.shape[2] + slot.clamp(max=words.shape[2] - 1)
        noise = torch.randint(self.symbols, flat.shape, generator=random) + 2 * self.symbols
        row = torch.where(noisy.gather(1, event), noise, words.flatten(1).gather(1, flat))
        distance = distance_to_last.gather(1, event).masked_fill(noisy.gather(1, event) | (in_key < 0), 0)[
            :, 1:
        ]
        return {
            "tokens": row[:, :-1].contiguous(),
            "targets": row[:, 1:].masked_fill(distance == 0, IGNORE),
            "condition": classify_distances(distance.clamp(min=1)),
        }

    def _sample_pairs(self, count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample the pairs of each example; keys are distinct.

        Returns:
            Sizes of key and value [count, pairs, 2], and their tokens [count, pairs, key_tokens +
            value_tokens].
        """
        keys = torch.zeros(count, self.pairs, self.key_tokens, dtype=torch.int64)
        size = torch.randint(1, self.key_tokens + 1, (count, self.pairs), generator=random)
        for tokens in range(1, self.key_tokens + 1):  # keys of equal size differ in their number
            number = sample_permutations(count, self.symbols**tokens, random)[:, : self.pairs]
            digits = [number // self.symbols**i % self.symbols for i in range(tokens)]
            of_size = torch.nn.functional.pad(torch.stack(digits, 2), (0, self.key_tokens - tokens))
            keys = torch.where((size == tokens)[..., None], of_size, keys)
        shape = (count, self.pairs, self.value_tokens)
        values = torch.randint(self.symbols, shape, generator=random) + self.symbols
        value_size = torch.randint(1, self.value_tokens + 1, size.shape, generator=random)
        return torch.stack((size, value_size), 2), torch.cat((keys, values), 2)


def _compute_distance_to_last(event_kinds: torch.Tensor, starts: torch.Tensor, n_kinds: int) -> torch.Tensor:
    """Return how far each event [B, E] begins after the last event of its kind began; 0 for the first."""
    is_kind = event_kinds[..., None] == torch.arange(n_kinds)
    last = torch.where(is_kind, starts[..., None], -1).cummax(1).values
    last_start = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), 1).gather(
        2, event_kinds[..., None]
    )[..., 0]
    return torch.where(last_start < 0, 0, starts - last_start)
