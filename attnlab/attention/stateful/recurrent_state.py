"""Recurrent state of a pass, for stateful parts: a few earlier inputs, or a sum over all of them.

A cache carries it, at a fixed size.
"""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Cache, Mask, Unsupported
from attnlab.attention.kernels.masking import make_batch_head_indices
from attnlab.attention.token_positions import TokenPositions


@final
class RecurrentState:
    """Recurrent state of one pass of one layer.

    `mask` is the data mask; design masks do not limit the tokens that a part sees.
    """

    def __init__(self, positions: TokenPositions, mask: Mask | None, cache: Cache | None) -> None:
        self.positions = positions
        self.mask = mask
        self.cache = cache
        if cache is not None and not hasattr(cache, "carry"):
            raise Unsupported(
                f"{type(cache).__name__} has no carried state, and a stateful module needs one: "
                "implement `carried` and `carry` (contracts.Cache), or use decode=none"
            )

    def prepend_earlier(self, name: str, x_BTC: Tensor, count: int, initial: Tensor | None = None) -> Tensor:
        """Prepend the `count` preceding tokens to x: [B, count + T, C].

        `initial` [B, count, C], by default zeros, stands for tokens before the first one. The last `count`
        are carried under `name`.
        """
        earlier = None if self.cache is None else self.cache.carried.get(name)
        if earlier is None:
            earlier = x_BTC.new_zeros(x_BTC.shape[0], count, x_BTC.shape[2]) if initial is None else initial
        extended = torch.cat((earlier, x_BTC), dim=1)
        if self.cache is not None:
            self.cache.carry(name, extended[:, x_BTC.shape[1] :].clone())
        return extended

    def get_previous(self, name: str, x_BTC: Tensor) -> Tensor:
        """Get the token before each one, [B, T, C], or the token itself if it may see none before it.

        The last token is carried under `name`.
        """
        B, T, _ = x_BTC.shape
        if not T:
            return x_BTC
        previous = self.prepend_earlier(name, x_BTC, 1, initial=x_BTC[:, :1])[:, :T]
        visible = self.find_visible_predecessors(1, B)
        return previous if visible is None else torch.where(visible, previous, x_BTC)

    def accumulate_sums(self, name: str, x_BHT: Tensor) -> Tensor:
        """Sum over all tokens up to each one, [B, H, T]; the last sum is carried under `name`."""
        sums = x_BHT.cumsum(-1)
        if self.cache is None:
            return sums
        earlier = self.cache.carried.get(name)
        if earlier is not None:
            sums = sums + earlier[..., None]
        if x_BHT.shape[-1]:
            self.cache.carry(name, sums[..., -1].clone())
        elif earlier is None:
            self.cache.carry(name, x_BHT.new_zeros(x_BHT.shape[:2]))
        return sums

    def find_real_tokens(self, rows: int) -> Tensor | None:
        """Mark tokens that are not padding, [rows or 1, T]; None if no token can be padding."""
        visible = self._find_visible(
            torch.zeros(1, dtype=torch.long, device=self.positions.position_ids.device), rows
        )
        return None if visible is None else visible[..., 0]

    def require_full_visibility(
        self, sees_previous: Tensor | None, is_real: Tensor | None, rows: int
    ) -> None:
        """Raise `Unsupported` if the data mask hides more of the past than padding and earlier documents.

        A memory of all earlier tokens cannot leave some out. Only the tokens of this pass are checked.

        Args:
            sees_previous: result of `find_visible_predecessors`.
            is_real: result of `find_real_tokens`.
            rows: B.
        """
        if (
            self.mask is None
            or sees_previous is None
            or is_real is None
            or self.positions.position_ids.shape[1] < 2
        ):
            return
        q_idx = self.positions.position_ids[:, None, :, None]
        kv_idx = self.positions.position_ids[:, None, None, :]
        b, h = make_batch_head_indices(rows, 1, q_idx.device)
        document = (~sees_previous[..., 0]).cumsum(-1)
        same_document = document[:, None, :, None] == document[:, None, None, :]
        visible = self.mask(b, h, q_idx.clamp(min=0), kv_idx.clamp(min=0)) & (kv_idx >= 0)
        is_expected = visible == (same_document & is_real[:, None, None, :])
        if not (is_expected | (kv_idx > q_idx) | ~is_real[:, None, :, None]).all():
            raise Unsupported("recurrent state supports only padding and document masks: remove other masks")

    def find_visible_predecessors(self, count: int, rows: int) -> Tensor | None:
        """Mark whether a token may see the tokens 1, 2, ... `count` before it, [rows or 1, T, count].

        Padding and tokens of other documents are not visible. None: all that exist are.
        """
        return self._find_visible(torch.arange(1, count + 1, device=self.positions.position_ids.device), rows)

    def _find_visible(self, distances: Tensor, rows: int) -> Tensor | None:
        if self.mask is None and self.positions.is_consecutive:
            return None
        q_idx = self.positions.position_ids[:, None, :, None]
        kv_idx = q_idx - distances
        visible = (q_idx >= 0) & (kv_idx >= 0)
        if self.mask is not None:
            b, h = make_batch_head_indices(rows, 1, q_idx.device)
            visible = visible & self.mask(b, h, q_idx.clamp(min=0), kv_idx.clamp(min=0))
        return visible[:, 0]
