"""The projections that heads share: several in one matrix, and the way back into the residual stream."""

import torch
from torch import Tensor, nn


def head_width(dim: int, n_heads: int, head_dim: int | None = None) -> int:
    """`head_dim`, or where that is None each head's share of the width. ValueError where there is none."""
    if n_heads < 1 or (head_dim is None and dim % n_heads):
        raise ValueError(f"{n_heads} heads do not divide the width {dim}: change model.n_heads or model.dim")
    if head_dim is not None and head_dim < 1:
        raise ValueError(f"head_dim must be at least 1, got {head_dim}")
    return dim // n_heads if head_dim is None else head_dim


def require_groups(n_heads: int, n_kv_heads: int) -> None:
    """ValueError where heads cannot share so many KV heads evenly."""
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(
            f"{n_kv_heads} KV heads do not divide {n_heads} heads: "
            "change model.attention.heads.n_kv_heads or model.n_heads"
        )


class Fused(nn.Linear):
    """Several projections of one input in one matrix; `parts` names the slices of its output, in order.

    Initialisation goes slice by slice, so that arms which share a slice start with the same numbers in it.
    `unit` names slices whose outputs start as large as the inputs are: factors of others.
    """

    def __init__(self, dim: int, parts: dict[str, int], bias: bool, unit: tuple[str, ...] = ()) -> None:
        super().__init__(dim, sum(parts.values()), bias=bias)
        self.parts, self.widths, self.unit = parts, tuple(parts.values()), unit


class IntoResidual(nn.Linear):
    """A projection back into the residual stream; it starts smaller, the deeper the model (GPT-2)."""

    def written(self, v_BGSV: Tensor, n_heads: int) -> Tensor:
        """[B, H, S, M]: the value of a head's group, through the head's slice of the projection."""
        v_BHSV = v_BGSV.repeat_interleave(n_heads // v_BGSV.shape[1], 1)
        return torch.einsum("bhsd,mhd->bhsm", v_BHSV, self.weight.view(-1, n_heads, v_BHSV.shape[-1]))


def by_head(x_BTW: Tensor, width: int) -> Tensor:
    """[B, T, n * width] to [B, n, T, width], as a view."""
    B, T, W = x_BTW.shape
    n = W // width  # said, since torch cannot tell it where there are no tokens
    return x_BTW.view(B, n, 1, width) if T == 1 else x_BTW.view(B, T, n, width).transpose(1, 2)


def merged(y_BHTV: Tensor) -> Tensor:
    """[B, H, T, V] to [B, T, H * V]."""
    B, H, T, V = y_BHTV.shape
    return y_BHTV.reshape(B, 1, H * V) if T == 1 else y_BHTV.transpose(1, 2).flatten(2)
