"""A query sees itself and the past."""

from torch import Tensor

from attnlab.attention.contracts import declares


@declares(looks_ahead=False)
def causal(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
    """A query sees itself and the past."""
    return kv_pos <= q_pos
