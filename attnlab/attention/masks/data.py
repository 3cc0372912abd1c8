"""Masks that the data ask for: padding and packed documents."""

from collections.abc import Mapping

from torch import Tensor

from attnlab.attention.contracts import Mask, declares
from attnlab.attention.masks.combine import every

UNREACHED = 2**30  # the position of a slot that no token has been written to


@declares(looks_ahead=True)
def real(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
    """Keys that are no padding: their position is not negative."""
    return kv_pos >= 0


@declares(looks_ahead=True)
def reached(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
    """Keys that are no padding, in slots that have been written."""
    return (kv_pos >= 0) & (kv_pos < UNREACHED)


def padding(lengths_B: Tensor) -> Mask:
    """Data mask: keys at positions 0 <= kv_pos < lengths[b], for sequences padded on the right."""

    @declares(looks_ahead=True)
    def padding_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return (kv_pos >= 0) & (kv_pos < lengths_B[b])

    return padding_mask


def documents(ids_BS: Tensor) -> Mask:
    """Data mask for packed rows: a query sees keys of its own document. `ids[b, p]` is the document at
    position p.
    """

    @declares(looks_ahead=True)
    def documents_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return ids_BS[b, q_pos] == ids_BS[b, kv_pos]

    return documents_mask


def of_batch(batch: Mapping[str, Tensor]) -> Mask | None:
    """What a batch {tokens, lengths?, documents?} hides: padding, and other documents."""
    return every(
        padding(batch["lengths"]) if "lengths" in batch else None,
        documents(batch["documents"]) if "documents" in batch else None,
    )
