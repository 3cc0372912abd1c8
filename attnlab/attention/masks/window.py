"""Sliding-window mask, with or without the first tokens."""

from torch import Tensor

from attnlab.attention.contracts import Mask, declare_capabilities


def window(size: int, keep: int = 0) -> Mask:
    """Make a causal mask over the last `size` keys, the query's own included, and the first `keep` positions.

    Sources: sliding window, Beltagy et al. 2020, §3.1; first tokens, Xiao et al. 2023 (StreamingLLM), §3.2.
    """
    if size < 1 or keep < 0:
        raise ValueError(f"window needs size >= 1 and keep >= 0, got size={size}, keep={keep}")

    @declare_capabilities(visible_window=(size, keep))
    def window_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & ((q_idx - kv_idx < size) | (kv_idx < keep))

    return window_mask
