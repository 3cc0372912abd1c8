"""Masks that the data ask for: padding and packed documents."""

from torch import Tensor

from attnlab.attention.contracts import Mask, declares


@declares(is_causal=False)
def real(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
    """Keys that are no padding: their position is not negative."""
    return kv_pos >= 0


def padding(lengths_B: Tensor) -> Mask:
    """Data mask: keys at positions 0 <= kv_pos < lengths[b], for sequences padded on the right."""

    @declares(is_causal=False)
    def padding_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return (kv_pos >= 0) & (kv_pos < lengths_B[b])

    return padding_mask


def documents(ids_BS: Tensor) -> Mask:
    """Data mask for packed rows: a query sees keys of its own document. `ids[b, p]` is the document at
    position p.
    """

    @declares(is_causal=False)
    def documents_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return ids_BS[b, q_pos] == ids_BS[b, kv_pos]

    return documents_mask
