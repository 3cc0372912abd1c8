"""Full mask: every token sees every token, later ones included."""

from torch import Tensor

from attnlab.attention.contracts import declare_capabilities


@declare_capabilities(sees_future=True)
def full(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Every query sees every key. A next-token model with this mask leaks its targets."""
    return (q_idx == q_idx) & (kv_idx == kv_idx)
