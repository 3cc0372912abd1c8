"""Prefix mask: a prefix that all queries see."""

from torch import Tensor

from attnlab.attention.contracts import Mask, declare_capabilities


def prefix(n: int) -> Mask:
    """Make a mask by which every query sees the first `n` positions; beyond them it is causal (prefix LM).

    Source: Raffel et al. 2020, §3.2.1.
    """
    if n < 0:
        raise ValueError(f"prefix needs n >= 0, got {n}")

    @declare_capabilities(sees_future=n > 1, prefix=n)
    def prefix_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) | (kv_idx < n)

    return prefix_mask
