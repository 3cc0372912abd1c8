"""Invariants of packed documents."""

import torch

from attnlab.attention.masks.data_masks import make_document_mask
from attnlab.testing.invariants.variant import Variant, assert_close


@torch.no_grad()
def check_packed_documents(variant: Variant) -> None:
    """17. Documents packed into one row do not see each other: each gets the outputs it gets alone at its
    positions.
    """
    layer = variant.make_layer()
    x = variant.make_input()
    T = variant.length
    cuts = [T // 2, T // 3][: variant.batch]
    ids = (torch.arange(T)[None] >= torch.tensor(cuts)[:, None]).long()
    y = layer(x, mask=make_document_mask(ids))
    for row, cut in enumerate(cuts):
        for begin, end in ((0, cut), (cut, T)):
            if begin < end:
                document_positions = torch.arange(begin, end)[None]
                expected = layer(x[row : row + 1, begin:end], positions=document_positions)
                assert_close(y[row : row + 1, begin:end], expected, f"tokens {begin} to {end - 1}")
