"""A prefix that everything sees."""

from torch import Tensor

from attnlab.attention.contracts import Mask, declares


def prefix(n: int) -> Mask:
    """Every query sees the first `n` positions; beyond them, causal (prefix LM, Raffel et al. 2020,
    §3.2.1).
    """
    if n < 0:
        raise ValueError(f"prefix needs n >= 0, got {n}")

    @declares(looks_ahead=n > 1, prefix=n)
    def prefix_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return (kv_pos <= q_pos) | (kv_pos < n)

    return prefix_mask
