"""Positions of the tokens of one forward pass, made once: layers with equal rotations share their tables."""

from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.contracts import Cache, Rotary, Rotate
from attnlab.attention.rotary import Rotation, identity_rotation


@final
class TokenPositions:
    """Absolute positions `position_ids` [B or 1, T], negative for padding.

    `is_consecutive`: they continue from the cache, so keys are the past followed by the queries' own, in
    order.
    """

    def __init__(self, position_ids: Tensor, is_consecutive: bool = False, end: int | None = None) -> None:
        self.position_ids = position_ids
        self.is_consecutive = is_consecutive
        self._end = end
        self.q_idx = position_ids[:, None, :, None]  # the shape that kernels expect
        self._rotations: dict[Any, Rotate] = {}
        self._parent: tuple[TokenPositions, int] | None = None

    @classmethod
    def continue_from(cls, n_past: int, count: int, device: torch.device) -> "TokenPositions":
        """Make the `count` positions after `n_past` tokens."""
        return cls(
            torch.arange(n_past, n_past + count, device=device)[None], is_consecutive=True, end=n_past + count
        )

    @classmethod
    def resolve_positions(
        cls, positions: "Tensor | TokenPositions | None", cache: Cache | None, x_BTM: Tensor
    ) -> "TokenPositions":
        """Return the given positions, or those that continue from the cache."""
        if positions is None:
            n_past = len(cache) if cache is not None else 0
            return cls.continue_from(n_past, x_BTM.shape[1], x_BTM.device)
        return cls(positions) if isinstance(positions, Tensor) else positions

    def get_rotation(self, rotary: Rotary | None) -> Rotate:
        """Rotation that `rotary` makes for these positions; layers with equal rotaries share it."""
        if rotary is None:
            return identity_rotation
        key: Any = rotary
        try:
            rotate = self._rotations.get(key)
        except TypeError:  # unhashable, as with a list as a field: only layers with the same object share it
            key = id(rotary)
            rotate = self._rotations.get(key)
        if rotate is None:
            rotate = self._rotations[key] = self._compute_rotation(rotary)
        return rotate

    @property
    def end(self) -> int:
        """One more than the last position."""
        if self._end is None:
            self._end = int(self.position_ids.max()) + 1 if self.position_ids.numel() else 0
        return self._end

    def select_position(self, n: int) -> "TokenPositions":
        """Select the n-th position; its rotations are sliced from these, so a step computes none."""
        selected = TokenPositions(self.position_ids.narrow(1, n, 1), self.is_consecutive)
        selected._parent = self, n
        return selected

    def _compute_rotation(self, rotary: Rotary) -> Rotate:
        if self._parent is None:
            return rotary(self.position_ids)
        parent, n = self._parent
        rotation = parent.get_rotation(rotary)
        return rotation.select_position(n) if isinstance(rotation, Rotation) else rotary(self.position_ids)
