"""What came before the new tokens of a pass, for parts that look back beside attention: a few earlier inputs,
or a sum over all of them. With a cache it is carried there, at a fixed size.
"""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Cache, Mask, Unsupported
from attnlab.attention.kernels.visibility import batch_and_head
from attnlab.attention.positions import Positions


@final
class Past:
    """Of one pass of one layer; `mask` is the data's, and a design mask has no say in what a part sees."""

    def __init__(self, positions: Positions, mask: Mask | None, cache: Cache | None) -> None:
        self.positions = positions
        self.mask = mask
        self.cache = cache
        if cache is not None and not hasattr(cache, "carry"):
            raise Unsupported(
                f"{type(cache).__name__} carries nothing beside the states of tokens, and a part looks back: "
                "give it `carried` and `carry` (contracts.Cache), or use decode=none"
            )

    def before(self, name: str, x_BTC: Tensor, count: int) -> Tensor:
        """x with the `count` tokens before it in front, [B, count + T, C]: zeros where there were none. The
        last `count` are carried by this name.
        """
        earlier = None if self.cache is None else self.cache.carried.get(name)
        if earlier is None:
            earlier = x_BTC.new_zeros(x_BTC.shape[0], count, x_BTC.shape[2])
        whole = torch.cat((earlier, x_BTC), dim=1)
        if self.cache is not None:
            self.cache.carry(name, whole[:, x_BTC.shape[1] :].clone())
        return whole

    def total(self, name: str, x_BHT: Tensor) -> Tensor:
        """Sums over all tokens up to each one, [B, H, T]; that up to the last is carried by this name."""
        total = x_BHT.cumsum(-1)
        if self.cache is None:
            return total
        earlier = self.cache.carried.get(name)
        if earlier is not None:
            total = total + earlier[..., None]
        if x_BHT.shape[-1]:
            self.cache.carry(name, total[..., -1].clone())
        elif earlier is None:
            self.cache.carry(name, x_BHT.new_zeros(x_BHT.shape[:2]))
        return total

    def real(self, rows: int) -> Tensor | None:
        """[rows or 1, T]: whether a token is no padding; None: all are."""
        seen = self._sees(torch.zeros(1, dtype=torch.long, device=self.positions.of.device), rows)
        return None if seen is None else seen[..., 0]

    def require_whole(self, follows: Tensor | None, real: Tensor | None, rows: int) -> None:
        """Unsupported where the data's mask hides another part of the past than padding and earlier
        documents, as `sees` and `real` told: what keeps all that it has read cannot leave it out. Of the
        tokens of this pass.
        """
        if self.mask is None or follows is None or real is None or self.positions.of.shape[1] < 2:
            return
        q_pos = self.positions.of[:, None, :, None]
        kv_pos = self.positions.of[:, None, None, :]
        b, h = batch_and_head(rows, 1, q_pos.device)
        document = (~follows[..., 0]).cumsum(-1)
        same = document[:, None, :, None] == document[:, None, None, :]
        visible = self.mask(b, h, q_pos.clamp(min=0), kv_pos.clamp(min=0)) & (kv_pos >= 0)
        whole = visible == (same & real[:, None, None, :])
        if not (whole | (kv_pos > q_pos) | ~real[:, None, :, None]).all():
            raise Unsupported("a memory cannot leave out part of its past: only padding and whole documents")

    def sees(self, count: int, rows: int) -> Tensor | None:
        """[rows or 1, T, count]: whether a token may see the one 1, 2, ... count before it: not where that is
        padding, or of another document. None: all that there are.
        """
        return self._sees(torch.arange(1, count + 1, device=self.positions.of.device), rows)

    def _sees(self, back: Tensor, rows: int) -> Tensor | None:
        if self.mask is None and self.positions.consecutive:
            return None
        q_pos = self.positions.of[:, None, :, None]
        kv_pos = q_pos - back
        there = (q_pos >= 0) & (kv_pos >= 0)
        if self.mask is not None:
            b, h = batch_and_head(rows, 1, q_pos.device)
            there = there & self.mask(b, h, q_pos.clamp(min=0), kv_pos.clamp(min=0))
        return there[:, 0]
