"""Recurrent mixers, the baselines that attention replaced: the same contract as an attention layer, a
fixed-size state.
"""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Mask, Unsupported
from attnlab.attention.heads.projections import IntoResidual
from attnlab.attention.positions import Positions


@final
class Recurrent(nn.Module):
    """`cell` is torch.nn.LSTM or torch.nn.GRU; x [B, T, M] -> [B, T, M]. It knows order, so positions
    change nothing.

    A data mask is accepted where it leaves a real token its whole past, as padding on the right does. `dim`
    in and out, `width` features of state.
    """

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], dim: int, width: int) -> None:
        super().__init__()
        self.cell = cell(dim, width, batch_first=True)
        self.out = IntoResidual(width, dim, bias=False)

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Unsupported for a cache of keys, and for a mask that hides part of the past."""
        if cache is not None:
            raise Unsupported("a recurrent mixer has no keys to cache: use decode=none")
        if mask is not None:
            _require_whole_past(mask, x_BTM, positions)
        B, T, _ = x_BTM.shape  # torch's cells refuse no tokens
        return self.out(self.cell(x_BTM)[0] if T else x_BTM.new_empty(B, 0, self.cell.hidden_size))

    def state_size(self) -> int:
        """Nothing grows with the tokens."""
        return 0


def _require_whole_past(mask: Mask, x_BTM: Tensor, positions: Tensor | Positions | None) -> None:
    B, T, _ = x_BTM.shape
    slots = torch.arange(T, device=x_BTM.device)
    where = slots[None] if positions is None else positions if isinstance(positions, Tensor) else positions.of
    b = torch.arange(B, device=x_BTM.device)[:, None, None, None]
    h = slots[:1, None, None, None]
    visible = mask(b, h, where[:, None, :, None], where[:, None, None, :]).expand(B, 1, T, T)
    real = visible.diagonal(dim1=-2, dim2=-1)[..., None]
    past = slots[:, None] >= slots[None, :]
    if not (visible | ~past | ~real).all():
        raise Unsupported(
            "a recurrent mixer cannot forget part of its past: no packed documents, no left padding"
        )
