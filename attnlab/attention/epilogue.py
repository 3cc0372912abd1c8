"""Epilogues: transforms (out, lse, x) -> out of each head's attention output, before heads are merged.

`contracts.Epilogue` defines the interface, `contracts.Capabilities` their declarations.
"""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Unsupported
from attnlab.attention.heads.projections import merge_heads
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class Sinks(nn.Module):
    """Attention sinks: out * sigmoid(lse - sink), with a learned logit per head (gpt-oss).

    The logit joins the softmax denominator and has no value. This equals one extra key with a value of zero,
    so the weights of a row sum to one minus the sink's proportion.
    """

    needs = ("lse",)
    reweights = True
    per_feature = False

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(n_heads))

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor, x_BTM: Tensor) -> Tensor:
        """Scale each head's output by one minus the sink's proportion."""
        return out_BHTV * torch.sigmoid(lse_BHT - self.logit[:, None]).unsqueeze(-1).to(out_BHTV.dtype)


@final
class Gate(nn.Module):
    """Output gate out * sigmoid(x W + b + start), per feature or per head; `bias` false leaves out b.

    With `channels` it reads only the first `channels` input features. Source: Qiu et al. 2025, arXiv
    2505.06708, §2.2, position G1.
    """

    needs = ()
    reweights = False

    def __init__(
        self,
        dim: int,
        n_heads: int,
        head_dim: int,
        per_head: bool = False,
        channels: int | None = None,
        start: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if channels is not None and not 1 <= channels <= dim:
            raise ValueError(f"a gate needs 1 to {dim} channels (model.dim), got {channels}")
        self.n_heads = n_heads
        self.per_feature = not per_head
        self.channels = channels
        self.start = start
        self.gate = nn.Linear(channels or dim, n_heads if per_head else n_heads * head_dim, bias)
        kind = "vector" if channels else "thin" if per_head else None
        self.kinds = {"gate.weight": kind} if kind else {}

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor) -> Tensor:
        """Scale the output by a gate computed from the layer's input.

        Raises:
            Unsupported: the gate's width does not match the width of the values.
        """
        B, T, _ = x_BTM.shape
        logits = self.gate(x_BTM if self.channels is None else x_BTM[..., : self.channels])
        gate = torch.sigmoid(logits + self.start if self.start else logits)
        gate = gate.view(B, T, self.n_heads, gate.shape[-1] // self.n_heads).transpose(1, 2)
        if gate.shape[-1] not in (1, out_BHTV.shape[-1]):
            raise Unsupported(
                f"a gate with {gate.shape[-1]} features per head does not fit values with "
                f"{out_BHTV.shape[-1]} features per head: use epilogue=gate_per_head"
            )
        return out_BHTV * gate


@final
class ExclusiveEpilogue(nn.Module):
    """Exclusive self-attention: out - (out·v) v / |v|², with v the query's own value.

    The result has no component along v. Source: arXiv 2603.09078. Where out is nearly parallel to v, the
    result is a small difference of large numbers: a norm after attention magnifies its rounding (float32: at
    most 0.001 of the normalized output; bfloat16: all of it), and a check rejects that in bfloat16.
    """

    needs = ("values",)

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, values: Tensor) -> Tensor:
        """Remove the component along the token's own value [B, G, T, V]; if that is 0, keep the output."""
        own_values = values.repeat_interleave(out_BHTV.shape[1] // values.shape[1], 1)
        squared_norm = own_values.square().sum(-1, keepdim=True)
        coefficient = (out_BHTV * own_values).sum(-1, keepdim=True) / squared_norm.clamp(
            min=torch.finfo(squared_norm.dtype).tiny
        )
        return out_BHTV - coefficient * own_values


@final
class ExclusiveGate(nn.Module):
    """Exclusive self-attention, then an output gate per feature: `ExclusiveEpilogue` and `Gate` in one."""

    needs = ("values",)
    reweights = False

    def __init__(self, dim: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        self.exclusive = ExclusiveEpilogue()
        self.output_gate = Gate(dim, n_heads, head_dim)

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, values: Tensor) -> Tensor:
        """Remove the component along the token's own value [B, G, T, V], then scale by the gate.

        Raises:
            Unsupported: the gate's width does not match the width of the values.
        """
        return self.output_gate(self.exclusive(out_BHTV, lse_BHT, x_BTM, values), lse_BHT, x_BTM)


@final
class ConvolutionEpilogue(nn.Module):
    """Short convolution over tokens, on the attention output of all heads (see `ShortConvolution`)."""

    def __init__(self, n_heads: int, head_dim: int, width: int = 4) -> None:
        super().__init__()
        self.channels, self.convolution = n_heads * head_dim, ShortConvolution(n_heads * head_dim, width)
        self.lookback = self.convolution.lookback

    def forward(
        self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, recurrent_state: RecurrentState
    ) -> Tensor:
        """Convolve the concatenated heads.

        Raises:
            Unsupported: the values have another width than the channels.
        """
        flat = merge_heads(out_BHTV)
        if flat.shape[-1] != self.channels:
            raise Unsupported(
                f"a convolution with {self.channels} channels does not fit heads with "
                f"{flat.shape[-1]} value channels in total: use another epilogue"
            )
        B, H, T, V = out_BHTV.shape
        return self.convolution(flat, recurrent_state, "epilogue").view(B, T, H, V).transpose(1, 2)

    def carried_size(self) -> int:
        """Bytes carried by the convolution."""
        return self.convolution.carried_size()
