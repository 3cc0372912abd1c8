"""In-context recall with noise, or with keys of several tokens (MAD, Poli et al. 2024, 2403.17844).

    noisy     k3 v1 n0 n4 k7 v4 k3 v1        fuzzy     k3 k1 v2 k5 v4 v4 k3 k1 v2
    targets    .  .  .  .  .  . v1  .                   .  .  .  .  .  .  . v2  .

Surprising: here pairs come again and again, and a value is asked for each time but the first. MAD trains on
the loss of all tokens; here, as in all drawn tasks, only answers count, in training too.
"""

import torch

from attnlab.data.drawn import Drawn, doubling, doublings, whole
from attnlab.data.synthetic.pieces import end_to_end, orders
from attnlab.data.task import IGNORE, Batch

MOST = 4096  # keys of one size


class InContextRecall(Drawn):
    """An example has `pairs` pairs, which it draws from evenly until the window is full; each draw is, with
    the chance `noise`, two tokens of noise instead. Keys have 1 to `key_tokens` tokens and values 1 to
    `value_tokens`, all sizes equally likely. There are as many tokens for keys as for values, and for
    noise. Reported by the distance back to where the pair stood last."""

    def __init__(
        self, length: int, symbols: int, pairs: int, noise: float, key_tokens: int, value_tokens: int,
        val_windows: int,
    ) -> None:  # fmt: skip
        whole(1, symbols=symbols, pairs=pairs, key_tokens=key_tokens, value_tokens=value_tokens)
        if symbols < pairs:
            raise ValueError(f"data.symbols={symbols}: a key each for data.pairs={pairs} takes as many")
        if symbols**key_tokens > MOST:
            raise ValueError(
                f"data.symbols={symbols}, data.key_tokens={key_tokens}: they make {symbols**key_tokens} keys;"
                f" at most {MOST}"
            )
        if not 0 <= noise < 1:
            raise ValueError(f"data.noise={noise}: it is a chance, from 0 to below 1")
        least = (pairs + 1) * (key_tokens + value_tokens)
        if type(length) is not int or length < least:
            raise ValueError(
                f"data.length={length}: {pairs} pairs of up to {key_tokens + value_tokens} tokens and one of"
                f" them again take {least} tokens"
            )
        self.symbols = symbols
        self.pairs = pairs
        self.noise = noise
        self.key_tokens = key_tokens
        self.value_tokens = value_tokens
        super().__init__(
            [f"{kind}{i}" for kind in ("kvn" if noise else "kv") for i in range(symbols)],
            doublings(length), length, val_windows, name="noisy_recall" if noise else "fuzzy_recall",
            symbols=symbols, pairs=pairs, noise=noise, key_tokens=key_tokens, value_tokens=value_tokens,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        sizes, words = self._pairs(count, random)
        events = self.length // 2 + 1  # each has at least two tokens
        pair = torch.randint(self.pairs, (count, events), generator=random)
        noisy = torch.rand(count, events, generator=random) < self.noise
        noisy[:, 0] = False
        key_size = sizes[..., 0].gather(1, pair).masked_fill(noisy, 2)
        value_size = sizes[..., 1].gather(1, pair).masked_fill(noisy, 0)
        size = key_size + value_size
        back = _since(pair.masked_fill(noisy, self.pairs), size.cumsum(1) - size, self.pairs + 1)

        event, offset = end_to_end(size, self.length + 1)
        in_key = offset - key_size.gather(1, event)  # below 0 within a key
        slot = torch.where(in_key < 0, offset, self.key_tokens + in_key)
        flat = pair.gather(1, event) * words.shape[2] + slot.clamp(max=words.shape[2] - 1)
        noise = torch.randint(self.symbols, flat.shape, generator=random) + 2 * self.symbols
        row = torch.where(noisy.gather(1, event), noise, words.flatten(1).gather(1, flat))
        distance = back.gather(1, event).masked_fill(noisy.gather(1, event) | (in_key < 0), 0)[:, 1:]
        return {
            "tokens": row[:, :-1].contiguous(),
            "targets": row[:, 1:].masked_fill(distance == 0, IGNORE),
            "condition": doubling(distance.clamp(min=1)),
        }

    def _pairs(self, count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Sizes of key and value [count, pairs, 2], and their tokens [count, pairs, key_tokens +
        value_tokens]; keys are different.
        """
        keys = torch.zeros(count, self.pairs, self.key_tokens, dtype=torch.int64)
        size = torch.randint(1, self.key_tokens + 1, (count, self.pairs), generator=random)
        for tokens in range(1, self.key_tokens + 1):  # of one size, by their number; of two, by their size
            number = orders(count, self.symbols**tokens, random)[:, : self.pairs]
            digits = [number // self.symbols**i % self.symbols for i in range(tokens)]
            of_size = torch.nn.functional.pad(torch.stack(digits, 2), (0, self.key_tokens - tokens))
            keys = torch.where((size == tokens)[..., None], of_size, keys)
        shape = (count, self.pairs, self.value_tokens)
        values = torch.randint(self.symbols, shape, generator=random) + self.symbols
        value_size = torch.randint(1, self.value_tokens + 1, size.shape, generator=random)
        return torch.stack((size, value_size), 2), torch.cat((keys, values), 2)


def _since(kinds: torch.Tensor, starts: torch.Tensor, count: int) -> torch.Tensor:
    """How far each event [B, E] begins after the last of its kind began; 0 for the first."""
    is_kind = kinds[..., None] == torch.arange(count)
    last = torch.where(is_kind, starts[..., None], -1).cummax(1).values
    before = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), 1).gather(2, kinds[..., None])[
        ..., 0
    ]
    return torch.where(before < 0, 0, starts - before)
