"""Epilogues: what happens to the attended values of each head before they are merged: (out, lse, x) -> out.
What they declare is in `contracts.Epilogue`.
"""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Unsupported


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
    """out * sigmoid(x W + b), a gate per feature or one per head (Qiu et al. 2025, arXiv 2505.06708, §2.2,
    position G1).
    """

    needs = ()
    reweighs = False

    def __init__(self, dim: int, n_heads: int, head_dim: int, per_head: bool = False) -> None:
        super().__init__()
        self.n_heads, self.per_feature = n_heads, not per_head
        self.gate = nn.Linear(dim, n_heads if per_head else n_heads * head_dim)
        self.kinds = {"gate.weight": "thin"} if per_head else {}

    def forward(self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor) -> Tensor:
        """Scales the output by a gate computed from the layer's input. Unsupported for other widths."""
        B, T, _ = x_BTM.shape
        gate = torch.sigmoid(self.gate(x_BTM))
        gate = gate.view(B, T, self.n_heads, gate.shape[-1] // self.n_heads).transpose(1, 2)
        if gate.shape[-1] not in (1, out_BHTV.shape[-1]):
            raise Unsupported(
                f"a gate of {gate.shape[-1]} features a head does not fit heads whose values have "
                f"{out_BHTV.shape[-1]}: use epilogue=gate_per_head"
            )
        return out_BHTV * gate
