"""A prefix that everything sees."""

from torch import Tensor

from attnlab.attention.contracts import Mask


def prefix(n: int) -> Mask:
    """Every query sees the first `n` positions; beyond them, causal (prefix LM, Raffel et al. 2020,
    §3.2.1).
    """
    if n < 0:
        raise ValueError(f"prefix needs n >= 0, got {n}")

    def prefix_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (j < n)

    return prefix_mask
