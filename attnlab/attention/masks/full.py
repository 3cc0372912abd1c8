"""Every token sees every token, later ones included."""

from torch import Tensor

from attnlab.attention.contracts import declares


@declares(looks_ahead=True)
def full(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
    """Every query sees every key. A next-token model with this mask sees its targets."""
    return (q_pos == q_pos) & (kv_pos == kv_pos)
