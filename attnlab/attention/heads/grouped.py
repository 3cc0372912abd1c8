"""Single-head, multi-head, grouped-query and multi-query attention.

Grouped heads need no expansion: the cache holds G heads, and kernels read them in groups.
"""

from typing import Literal, final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, SharedTensors, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import (
    FusedLinear,
    ResidualProjection,
    merge_heads,
    resolve_head_dim,
    split_heads,
)
from attnlab.attention.rotary import identity_rotation
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class GroupedHeads(BaseHeads):
    """Single-head attention, MHA, GQA and MQA (Vaswani 2017 §3.2.2; Shazeer 2019; Ainslie 2023).

    `n_kv_heads` = `n_heads` is MHA, 1 is MQA, divisors in between are GQA. State: (k, v), each [B, G, S, D].

    Args:
        head_dim: None is dim / n_heads.
        qk_norm: normalize q and k by their RMS, with a learned gain, before RoPE (Dehghani 2023 §3.1.1, with
            RMS).
        tied: use one projection for q, k and v.
        convolution: width of a short convolution over tokens, on the projected keys and values; 0 is none.
        value_residual: make values a learned mixture of the layer's own and the first layer's, half of each
            at the start (Zhou et al. 2024, arXiv 2410.17897, eq. 4, learnable).
        key_offset: take the second half of each key's features from the previous token's key, before RoPE
            (modded-nanogpt, 2025); a token without one, as at the start of a document, keeps its own. A
            query can thus find the token after one that matches it: one layer suffices for induction.
            Intended for RoPE on the first half of the features (`fraction` 0.5). Features that RoPE rotates
            get the angle of the key's own position.
        norm_over: normalize per head, or over the width of all heads together (OLMo 2, arXiv 2501.00656,
            §3.2).
        norm_eps: added to the mean square.
    """

    has_own_values = True

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        tied: bool = False,
        convolution: int = 0,
        value_residual: bool = False,
        key_offset: bool = False,
        norm_over: Literal["head", "width"] = "head",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(n_heads, n_kv_heads, resolve_head_dim(dim, n_heads, head_dim))
        if tied and n_kv_heads != n_heads:
            raise ValueError(f"heads=tied_qkv needs n_kv_heads = n_heads, got {n_kv_heads} and {n_heads}")
        q_width = n_heads * self.head_dim
        kv_width = n_kv_heads * self.head_dim
        self.tied = tied
        self.qkv = FusedLinear(
            dim, {"qkv": q_width} if tied else {"q": q_width, "k": kv_width, "v": kv_width}, bias
        )
        self.out = ResidualProjection(q_width, dim, bias=out_bias)
        self.normalizes_full_width = qk_norm and norm_over == "width"
        norm_widths = (q_width, kv_width) if self.normalizes_full_width else (self.head_dim, self.head_dim)
        self.q_norm, self.k_norm = (nn.RMSNorm(n, norm_eps) if qk_norm else None for n in norm_widths)
        if tied and self.normalizes_full_width:
            raise Unsupported("heads=tied_qkv has only one projection to normalize: use norm_over=head")
        if tied and convolution:
            raise Unsupported(
                "heads=tied_qkv has no separate keys and values to convolve: use convolution=none"
            )
        if tied and value_residual:
            raise Unsupported("heads=tied_qkv has no separate values to mix: use values=own")
        if tied and key_offset:
            raise Unsupported("heads=tied_qkv has no separate keys to shift: use keys=own")
        self.can_pool = not (convolution or value_residual or self.normalizes_full_width)
        self.shares = nn.Parameter(torch.full((2,), 0.5)) if value_residual else None
        self.reads_shared = self.writes_shared = ("values",) if value_residual else ()
        self.add_convolution(2 * kv_width, convolution)
        self.key_offset = key_offset
        self.lookback += key_offset

    def project(
        self,
        x_BTM: Tensor,
        rotate: Rotate,
        recurrent_state: RecurrentState | None = None,
        shared_tensors: SharedTensors | None = None,
    ) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens.

        Raises:
            ValueError: with `value_residual`, the first layer's values have another shape.
        """
        q, (k, v) = self._project_qkv(x_BTM, rotate, recurrent_state)
        if self.shares is None:
            return q, (k, v)
        first_values = v if shared_tensors is None else shared_tensors.setdefault("values", v)
        if first_values.shape != v.shape:
            raise ValueError(
                "values=residual needs values of the same shape in all layers: use the same heads in "
                "all layers"
            )
        own_share, first_share = self.shares
        return q, (k, own_share * v + first_share * first_values)

    def _project_qkv(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None
    ) -> tuple[Tensor, State]:
        H = self.n_heads
        G = self.n_kv_heads
        if self.tied:
            shared = split_heads(self.qkv(x_BTM), self.head_dim)
            if self.q_norm is not None and self.k_norm is not None:
                return rotate(self.q_norm(shared)), (rotate(self.k_norm(shared)), shared)
            rotated = rotate(shared)
            return rotated, (rotated, shared)
        # one rotation of q and k together halves the calls
        rotate_together = self.q_norm is None and rotate is not identity_rotation and not self.key_offset
        widths = [n * self.head_dim for n in ((H + G, G) if rotate_together else (H, G, G))]
        projected = self.qkv(x_BTM)
        if recurrent_state is not None and self.convolution.width:
            q, kv = projected.split_with_sizes((H * self.head_dim, 2 * G * self.head_dim), dim=-1)
            projected = torch.cat((q, self.convolution(kv, recurrent_state, "heads")), -1)
        parts = projected.split_with_sizes(widths, dim=-1)
        if self.normalizes_full_width and self.q_norm is not None and self.k_norm is not None:
            parts = (self.q_norm(parts[0]), self.k_norm(parts[1]), parts[2])
        *qk, v = (split_heads(part, self.head_dim) for part in parts)
        if rotate_together:
            q, k = rotate(qk[0]).split_with_sizes((H, G), dim=1)
            return q, (k, v)
        q, k = qk
        if self.q_norm is not None and self.k_norm is not None and not self.normalizes_full_width:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if recurrent_state is not None and self.key_offset:
            own, offset = k.tensor_split((self.head_dim // 2,), dim=-1)
            previous = recurrent_state.get_previous("offset keys", merge_heads(offset))
            k = torch.cat((own, split_heads(previous, offset.shape[-1])), dim=-1)
        return rotate(q), (rotate(k), v)

    def state_width(self) -> int:
        """2 G D numbers."""
        return 2 * self.n_kv_heads * self.head_dim

    def carried_size(self) -> int:
        """Bytes carried by the convolution, and by the key offset: half of a token's keys."""
        n_offset = self.n_kv_heads * (self.head_dim - self.head_dim // 2) if self.key_offset else 0
        return super().carried_size() + n_offset * self.qkv.weight.element_size()
