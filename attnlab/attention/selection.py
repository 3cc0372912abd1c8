"""Which blocks of keys a query reads is chosen by the scores themselves."""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import AttentionInputs, Mask, declares
from attnlab.attention.kernels.visibility import batch_and_head


@final
class Blocks:
    """A query reads its own block of `size` positions and, of those before it, the `count` - 1 whose keys
    it likes best on the mean (MoBA, Lu et al. 2025, arXiv 2502.13189, §2.2); with `at_random` others, drawn
    by head and position: a control.

    Means are of the keys that the query may see, and come from all scores: what is measured is what is
    read, not how fast. Nothing is learned.
    """

    def __init__(self, size: int, count: int, at_random: bool = False) -> None:
        if size < 1 or count < 1:
            raise ValueError(f"blocks need size >= 1 and count >= 1, got {size} and {count}")
        self.size = size
        self.count = count
        self.at_random = at_random

    def __call__(self, inputs: AttentionInputs, end: int) -> Mask:
        """The mask of what is chosen, from what a kernel is given, its mask all that hides keys besides;
        `end` is one more than the queries' last position. Positions of a row follow one another.
        """
        q, k, _, q_pos, kv_pos = inputs[:5]
        mask = inputs.mask
        (B, H, T, D), G = q.shape, k.shape[1]
        b, h = batch_and_head(B, H, q.device)
        own = q_pos.clamp(min=0) // self.size
        of_key = kv_pos.clamp(min=0) // self.size
        blocks = self.blocks(end)
        there = (kv_pos >= 0) & (of_key < blocks)
        visible = there if mask is None else there & mask(b, h, q_pos, kv_pos)
        visible = visible.expand(B, H, T, kv_pos.shape[-1])
        member = torch.nn.functional.one_hot(of_key.clamp(max=blocks - 1), blocks).to(q.dtype)[:, 0]
        scores = (q.view(B, G, H // G, T, D) @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, -1)
        counts = visible.to(q.dtype) @ member
        means = (scores * visible) @ member / counts.clamp(min=1)
        if self.at_random:
            means = self._noise(h, q_pos, torch.arange(blocks, device=q.device)).expand_as(means)
        place = torch.arange(blocks, device=q.device)
        means = means.masked_fill((place >= own) | (counts == 0), -torch.inf)
        best = means.topk(min(self.count - 1, blocks), dim=-1)
        chosen = torch.zeros_like(means, dtype=torch.bool)
        chosen = chosen.scatter(-1, best.indices, best.values > -torch.inf) | (place == own)
        return _mask_of(chosen.detach(), q_pos[:, 0, :1, 0], self.size)

    def blocks(self, end: int) -> int:
        """That there are before position `end`, one at least."""
        return max(1, -(-end // self.size))

    def flops(self, new: int, held: int, heads: int, width: int) -> int:
        """Of matrix products, per row: all scores once more, and their sums and counts by block."""
        return 2 * heads * new * held * (width + 2 * self.blocks(held))

    @staticmethod
    def _noise(h: Tensor, q_pos: Tensor, block: Tensor) -> Tensor:
        """A number for each head, position and block, the same in any pass."""
        mixed = (h * 2654435761 + q_pos.clamp(min=0) * 40503 + block * 69069 + 12345) % 1000003
        return (mixed * mixed % 1000003).double() / 1000003


def _mask_of(chosen_BHTN: Tensor, first_B1: Tensor, size: int) -> Mask:
    T, blocks = chosen_BHTN.shape[2:]
    rows = len(first_B1)

    @declares(looks_ahead=True)
    def chosen_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        row = (q_pos - first_B1[b if rows > 1 else torch.zeros_like(b), 0]).clamp(0, max(T - 1, 0))
        block = kv_pos.clamp(min=0) // size
        return chosen_BHTN[b, h, row, block.clamp(max=blocks - 1)] & (block < blocks)

    return chosen_mask
