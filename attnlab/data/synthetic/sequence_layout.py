"""Layout shared by synthetic tasks: queries in slots, and pieces of several sizes end to end."""

import torch
from torch import Tensor


def compute_slot_weights(slots: int, power: float) -> Tensor:
    """Return weights (slot + 1)^(power - 1) of `slots` slots (MQAR, Arora et al. 2023, 2312.04927).

    Most queries come soon, some very late; a power of 1 is uniform.

    Raises:
        ValueError: `power` is not above 0.
    """
    if not power > 0:
        raise ValueError(f"data.power must be above 0, got {power}; 1 spreads the queries evenly")
    return torch.arange(1, slots + 1, dtype=torch.float64) ** (power - 1)


def sample_slots(slot_weights: Tensor, count: int, queries: int, random: torch.Generator) -> Tensor:
    """Return slots [count, queries] in random order, without repetition in a row."""
    slots = torch.multinomial(slot_weights.expand(count, -1), queries, generator=random)
    return shuffle_rows(slots, random)  # multinomial returns likely slots first


def shuffle_rows(rows: Tensor, random: torch.Generator) -> Tensor:
    """Permute the last axis of each row [count, n] independently."""
    return rows.gather(1, sample_permutations(len(rows), rows.shape[1], random))


def sample_permutations(count: int, size: int, random: torch.Generator) -> Tensor:
    """Return permutations of 0 to size - 1, [count, size]."""
    return torch.rand(count, size, generator=random).argsort(1)


def locate_pieces(sizes: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Locate each of `length` positions in a row of pieces laid end to end.

    Args:
        sizes: sizes of the pieces [count, pieces], which cover at least `length` positions.
        length: number of positions.

    Returns:
        The index of the piece at each position, and the offset into that piece, both [count, length].
    """
    ends = sizes.cumsum(1)
    positions = torch.arange(length).expand(len(sizes), -1).contiguous()
    piece = torch.searchsorted(ends, positions, right=True)
    return piece, positions - (ends - sizes).gather(1, piece)
