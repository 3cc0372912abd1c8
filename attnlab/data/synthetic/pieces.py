"""What these tasks lay out in the same way: queries in slots, and pieces of several sizes end to end."""

import torch
from torch import Tensor


def slot_chances(slots: int, power: float) -> Tensor:
    """Weights (slot + 1)^(power - 1) of so many slots (MQAR, Arora et al. 2023, 2312.04927): most queries
    come soon, some very late; 1 is even. ValueError where `power` is not above 0.
    """
    if not power > 0:
        raise ValueError(f"data.power={power}: it must be above 0; 1 spreads the queries evenly")
    return torch.arange(1, slots + 1, dtype=torch.float64) ** (power - 1)


def drawn_slots(chances: Tensor, count: int, queries: int, random: torch.Generator) -> Tensor:
    """Slots [count, queries] in any order, none twice in a row."""
    slots = torch.multinomial(chances.expand(count, -1), queries, generator=random)
    return shuffled(slots, random)  # likely ones came first


def shuffled(rows: Tensor, random: torch.Generator) -> Tensor:
    """The last axis of each row [count, n] in an order of its own."""
    return rows.gather(1, orders(len(rows), rows.shape[1], random))


def orders(count: int, size: int, random: torch.Generator) -> Tensor:
    """Permutations of 0 to size - 1, [count, size]."""
    return torch.rand(count, size, generator=random).argsort(1)


def end_to_end(sizes: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Which piece stands at each of `length` places, and which of its tokens, both [count, length], where
    pieces of `sizes` [count, pieces] follow each other; they reach as far.
    """
    ends = sizes.cumsum(1)
    where = torch.arange(length).expand(len(sizes), -1).contiguous()
    piece = torch.searchsorted(ends, where, right=True)
    return piece, where - (ends - sizes).gather(1, piece)
