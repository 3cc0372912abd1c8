"""Masks that depend on the data: padding and packed documents."""

from collections.abc import Mapping

from torch import Tensor

from attnlab.attention.contracts import Mask, declare_capabilities
from attnlab.attention.masks.conjunction import combine_masks

UNWRITTEN_POSITION = 2**30  # position of a slot without a token


@declare_capabilities(sees_future=True)
def non_padding(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """A query sees keys that are not padding: their position is not negative."""
    return kv_idx >= 0


@declare_capabilities(sees_future=True)
def written_slots(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """A query sees keys that are not padding, in slots that have been written."""
    return (kv_idx >= 0) & (kv_idx < UNWRITTEN_POSITION)


def make_padding_mask(lengths_B: Tensor) -> Mask:
    """Data mask for sequences padded on the right: keys at positions 0 <= kv_idx < lengths[b]."""

    @declare_capabilities(sees_future=True)
    def padding_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx >= 0) & (kv_idx < lengths_B[b])

    return padding_mask


def make_document_mask(ids_BS: Tensor) -> Mask:
    """Data mask for packed rows: a query sees keys of its own document.

    `ids[b, p]` is the document at position p.
    """

    @declare_capabilities(sees_future=True)
    def document_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return ids_BS[b, q_idx] == ids_BS[b, kv_idx]

    return document_mask


def make_batch_mask(batch: Mapping[str, Tensor]) -> Mask | None:
    """Data mask of a batch {tokens, lengths?, documents?}: it hides padding and other documents."""
    return combine_masks(
        make_padding_mask(batch["lengths"]) if "lengths" in batch else None,
        make_document_mask(batch["documents"]) if "documents" in batch else None,
    )
