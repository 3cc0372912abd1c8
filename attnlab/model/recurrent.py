"""Recurrent mixers, which attention replaced: an attention layer's contract with a fixed-size state."""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Mask, Unsupported
from attnlab.attention.heads.projections import ResidualProjection
from attnlab.attention.token_positions import TokenPositions


@final
class RecurrentMixer(nn.Module):
    """LSTM or GRU layer (`cell`) with an output projection: x [B, T, M] -> [B, T, M].

    `dim` is the input and output size, `width` the size of the state. Positions are ignored, because
    recurrence encodes order. A data mask is accepted if every real token still sees its full past, as with
    padding on the right.
    """

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], dim: int, width: int) -> None:
        super().__init__()
        self.cell = cell(dim, width, batch_first=True)
        self.out = ResidualProjection(width, dim, bias=False)

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Raise Unsupported for a cache of keys, and for a mask that hides part of the past."""
        if cache is not None:
            raise Unsupported("a recurrent mixer has no keys to cache: use decode=none")
        if mask is not None:
            _require_full_past(mask, x_BTM, positions)
        B, T, _ = x_BTM.shape  # torch's cells reject an empty sequence
        return self.out(self.cell(x_BTM)[0] if T else x_BTM.new_empty(B, 0, self.cell.hidden_size))

    def state_size(self) -> int:
        """Return 0: the state does not grow with the tokens."""
        return 0


def _require_full_past(mask: Mask, x_BTM: Tensor, positions: Tensor | TokenPositions | None) -> None:
    B, T, _ = x_BTM.shape
    slots = torch.arange(T, device=x_BTM.device)
    position_ids = (
        slots[None]
        if positions is None
        else positions
        if isinstance(positions, Tensor)
        else positions.position_ids
    )
    b = torch.arange(B, device=x_BTM.device)[:, None, None, None]
    h = slots[:1, None, None, None]
    visible = mask(b, h, position_ids[:, None, :, None], position_ids[:, None, None, :]).expand(B, 1, T, T)
    is_real = visible.diagonal(dim1=-2, dim2=-1)[..., None]
    past = slots[:, None] >= slots[None, :]
    if not (visible | ~past | ~is_real).all():
        raise Unsupported(
            "a recurrent mixer does not support packed documents or left padding: it cannot mask part "
            "of its past"
        )
