"""Layout shared by synthetic tasks: queries in slots, pieces end to end, sizes past the trained ones."""

import torch
from torch import Tensor

from attnlab.data.synthetic_task import check_whole_numbers


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


class LengthRange:
    """Sizes from `shortest` to `longest` in training and to `val_longest` in validation, equally likely.

    A size counts units of `unit_tokens` tokens each. Classes of sizes end at half of `longest`, at `longest`,
    at twice that, and so on up to `val_longest`.

    Raises:
        ValueError: the sizes decrease, or the longest does not fit a window of `length` tokens.
    """

    def __init__(
        self, length: int, shortest: int, longest: int, val_longest: int, unit_tokens: int = 1
    ) -> None:
        check_whole_numbers(1, shortest=shortest, longest=longest, val_longest=val_longest)
        if not shortest <= longest <= val_longest:
            raise ValueError(
                f"data.shortest={shortest}, data.longest={longest}, data.val_longest={val_longest}:"
                " each must be at least as large as the one before it"
            )
        if type(length) is not int or length < val_longest * unit_tokens:
            raise ValueError(
                f"data.length={length} is too short: data.val_longest={val_longest} takes"
                f" {val_longest * unit_tokens} tokens; raise data.length or lower data.val_longest"
            )
        self._shortest = shortest
        self._longest = longest
        self._val_longest = val_longest
        ends = {-(-longest // 2), longest, val_longest}
        while longest < val_longest:
            ends.add(longest)
            longest *= 2
        self._class_ends = torch.tensor(sorted(end for end in ends if end >= shortest))
        self.conditions = [f"length/{end}" for end in self._class_ends.tolist()]

    def sample(self, count: int, random: torch.Generator, validation: bool) -> Tensor:
        """Return sizes [count, 1]."""
        end = self._val_longest if validation else self._longest
        return torch.randint(self._shortest, end + 1, (count, 1), generator=random)

    def classify(self, sizes: Tensor) -> Tensor:
        """Return the index of each size's class; sizes past `val_longest` get that of `val_longest`."""
        return torch.searchsorted(self._class_ends, sizes).clamp(max=len(self._class_ends) - 1)
