"""Epilogues: what happens to the attended values of each head before they are merged: (out, lse, x) -> out.
What they declare is in `contracts.Epilogue`.
"""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Unsupported
from attnlab.attention.heads.projections import merged
from attnlab.attention.past.convolution import ShortConvolution
from attnlab.attention.past.past import Past


@final
class Sinks(nn.Module):
    """A learned logit per head joins the softmax denominator and has no value: out * sigmoid(lse - sink)
    (gpt-oss).

    It equals one extra key with a value of zero, so the weights of a row sum to one minus the sink's share.
    """

    needs = ("lse",)
    reweighs = True
    per_feature = False

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(n_heads))

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor, x_BTM: Tensor) -> Tensor:
        """Shrinks each head's output by the sink's share."""
        return out_BHTV * torch.sigmoid(lse_BHT - self.logit[:, None]).unsqueeze(-1).to(out_BHTV.dtype)


@final
class Gate(nn.Module):
    """out * sigmoid(x W + b + start), a gate per feature or one per head (Qiu et al. 2025, arXiv 2505.06708,
    §2.2, position G1). With `channels` it reads so many of the input's features, the first ones.
    """

    needs = ()
    reweighs = False

    def __init__(
        self,
        dim: int,
        n_heads: int,
        head_dim: int,
        per_head: bool = False,
        channels: int | None = None,
        start: float = 0.0,
    ) -> None:
        super().__init__()
        if channels is not None and not 1 <= channels <= dim:
            raise ValueError(f"a gate reads 1 to {dim} channels (model.dim), got {channels}")
        self.n_heads = n_heads
        self.per_feature = not per_head
        self.channels = channels
        self.start = start
        self.gate = nn.Linear(channels or dim, n_heads if per_head else n_heads * head_dim)
        kind = "vector" if channels else "thin" if per_head else None
        self.kinds = {"gate.weight": kind} if kind else {}

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor) -> Tensor:
        """Scales the output by a gate computed from the layer's input. Unsupported for other widths."""
        B, T, _ = x_BTM.shape
        logits = self.gate(x_BTM if self.channels is None else x_BTM[..., : self.channels])
        gate = torch.sigmoid(logits + self.start if self.start else logits)
        gate = gate.view(B, T, self.n_heads, gate.shape[-1] // self.n_heads).transpose(1, 2)
        if gate.shape[-1] not in (1, out_BHTV.shape[-1]):
            raise Unsupported(
                f"a gate of {gate.shape[-1]} features a head does not fit heads whose values have "
                f"{out_BHTV.shape[-1]}: use epilogue=gate_per_head"
            )
        return out_BHTV * gate


@final
class Exclusive(nn.Module):
    """out - (out·v) v / |v|², v the query's own value: what is left says nothing along it (exclusive
    self-attention, arXiv 2603.09078).
    """

    needs = ("values",)

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, values: Tensor) -> Tensor:
        """The output without its part along the token's own value [B, G, T, V]; all of it where that is 0."""
        own = values.repeat_interleave(out_BHTV.shape[1] // values.shape[1], 1)
        square = own.square().sum(-1, keepdim=True)
        along = (out_BHTV * own).sum(-1, keepdim=True) / square.clamp(min=torch.finfo(square.dtype).tiny)
        return out_BHTV - along * own


@final
class Convolved(nn.Module):
    """A short convolution over tokens on the attended values of all heads (see `ShortConvolution`)."""

    def __init__(self, n_heads: int, head_dim: int, width: int = 4) -> None:
        super().__init__()
        self.channels, self.convolution = n_heads * head_dim, ShortConvolution(n_heads * head_dim, width)
        self.looks_back = self.convolution.looks_back

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, past: Past) -> Tensor:
        """Unsupported for values of another width than the channels."""
        flat = merged(out_BHTV)
        if flat.shape[-1] != self.channels:
            raise Unsupported(
                f"a convolution of {self.channels} channels does not fit heads whose values have "
                f"{flat.shape[-1]} together: use another epilogue"
            )
        B, H, T, V = out_BHTV.shape
        return self.convolution(flat, past, "epilogue").view(B, T, H, V).transpose(1, 2)

    def carried_size(self) -> int:
        """As the convolution's."""
        return self.convolution.carried_size()
