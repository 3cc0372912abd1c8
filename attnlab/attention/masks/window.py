"""A sliding window, with or without kept first tokens."""

from torch import Tensor

from attnlab.attention.contracts import Mask, declares


def window(size: int, keep: int = 0) -> Mask:
    """Causal, and only the last `size` keys, the query's own included; plus the first `keep` positions.

    Sliding window: Beltagy et al. 2020, §3.1. Kept first tokens: Xiao et al. 2023 (StreamingLLM), §3.2.
    """
    if size < 1 or keep < 0:
        raise ValueError(f"window needs size >= 1 and keep >= 0, got size={size}, keep={keep}")

    @declares(within=(size, keep))
    def window_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return (kv_pos <= q_pos) & ((q_pos - kv_pos < size) | (kv_pos < keep))

    return window_mask
