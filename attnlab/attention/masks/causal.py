"""Causal mask."""

from torch import Tensor

from attnlab.attention.contracts import declare_capabilities


@declare_capabilities(sees_future=False)
def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """A query sees itself and earlier positions."""
    return kv_idx <= q_idx
