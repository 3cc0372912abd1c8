"""Projections shared by heads: several inputs fused in one matrix, and the output to the residual stream."""

import torch
from torch import Tensor, nn


def resolve_head_dim(dim: int, n_heads: int, head_dim: int | None = None) -> int:
    """Return `head_dim`, or dim / n_heads if it is None.

    Raises:
        ValueError: `n_heads` does not divide `dim`, or a number is below 1.
    """
    if n_heads < 1 or (head_dim is None and dim % n_heads):
        raise ValueError(f"n_heads={n_heads} does not divide dim={dim}: change model.n_heads or model.dim")
    if head_dim is not None and head_dim < 1:
        raise ValueError(f"head_dim must be at least 1, got {head_dim}")
    return dim // n_heads if head_dim is None else head_dim


def require_divisible_heads(n_heads: int, n_kv_heads: int) -> None:
    """Raise ValueError if `n_kv_heads` does not divide `n_heads`."""
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(
            f"n_kv_heads={n_kv_heads} does not divide n_heads={n_heads}: "
            "change model.attention.heads.n_kv_heads or model.n_heads"
        )


class FusedLinear(nn.Linear):
    """Several projections of one input in one matrix; `parts` maps its output slices, in order, to widths.

    Initialization goes slice by slice, so arms that share a slice start with the same numbers in it.
    `unit_parts` names slices whose outputs start as large as the inputs: factors of other slices.
    """

    def __init__(self, dim: int, parts: dict[str, int], bias: bool, unit_parts: tuple[str, ...] = ()) -> None:
        super().__init__(dim, sum(parts.values()), bias=bias)
        self.parts, self.widths, self.unit_parts = parts, tuple(parts.values()), unit_parts


class ResidualProjection(nn.Linear):
    """Projection to the residual stream; its initialization shrinks with the depth of the model (GPT-2)."""

    def project_by_head(self, v_BGSV: Tensor, n_heads: int) -> Tensor:
        """Project the value of each head's group through the head's slice: [B, H, S, M]."""
        v_BHSV = v_BGSV.repeat_interleave(n_heads // v_BGSV.shape[1], 1)
        return torch.einsum("bhsd,mhd->bhsm", v_BHSV, self.weight.view(-1, n_heads, v_BHSV.shape[-1]))


def split_heads(x_BTW: Tensor, width: int) -> Tensor:
    """Reshape [B, T, n * width] to [B, n, T, width], as a view."""
    B, T, W = x_BTW.shape
    n = W // width  # explicit, because torch cannot infer it without tokens
    return x_BTW.view(B, n, 1, width) if T == 1 else x_BTW.view(B, T, n, width).transpose(1, 2)


def merge_heads(y_BHTV: Tensor) -> Tensor:
    """Reshape [B, H, T, V] to [B, T, H * V]."""
    B, H, T, V = y_BHTV.shape
    return y_BHTV.reshape(B, 1, H * V) if T == 1 else y_BHTV.transpose(1, 2).flatten(2)
