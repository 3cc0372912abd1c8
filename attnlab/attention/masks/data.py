"""Masks that the data ask for: padding and packed documents."""

from torch import Tensor

from attnlab.attention.contracts import Mask


def real(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Keys that are no padding: their position is not negative."""
    return j >= 0


def padding(lengths_B: Tensor) -> Mask:
    """Data mask: keys at positions 0 <= j < lengths[b], for sequences padded on the right."""

    def padding_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j >= 0) & (j < lengths_B[b])

    return padding_mask


def documents(ids_BS: Tensor) -> Mask:
    """Data mask for packed rows: a query sees keys of its own document. `ids[b, p]` is the document at
    position p.
    """

    def documents_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ids_BS[b, i] == ids_BS[b, j]

    return documents_mask
