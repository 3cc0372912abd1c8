"""Block selection: the scores themselves choose the blocks of keys that a query reads."""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import AttentionInputs, Mask, declare_capabilities
from attnlab.attention.kernels.masking import make_batch_head_indices


@final
class BlockSelection:
    """MoBA: a query reads its own block and the `count` - 1 earlier blocks of highest mean score.

    A block is `size` positions. With `at_random`, the earlier blocks are drawn by head and position instead:
    a control. Means are over the keys that the query may see, and come from all scores: this measures which
    keys are read, not speed. Nothing is learned. Source: Lu et al. 2025, arXiv 2502.13189, §2.2.
    """

    def __init__(self, size: int, count: int, at_random: bool = False) -> None:
        if size < 1 or count < 1:
            raise ValueError(f"blocks need size >= 1 and count >= 1, got {size} and {count}")
        self.size = size
        self.count = count
        self.at_random = at_random

    def __call__(self, inputs: AttentionInputs, end: int) -> Mask:
        """Make the mask of the selected blocks.

        Args:
            inputs: inputs of the kernel; their mask is the only other one that hides keys. Positions of a row
                are consecutive.
            end: one more than the last position of the queries.
        """
        q, k, _, q_idx, kv_idx = inputs[:5]
        mask = inputs.mask
        (B, H, T, D), G = q.shape, k.shape[1]
        b, h = make_batch_head_indices(B, H, q.device)
        query_block = q_idx.clamp(min=0) // self.size
        key_block = kv_idx.clamp(min=0) // self.size
        blocks = self.count_blocks(end)
        exists = (kv_idx >= 0) & (key_block < blocks)
        visible = exists if mask is None else exists & mask(b, h, q_idx, kv_idx)
        visible = visible.expand(B, H, T, kv_idx.shape[-1])
        member = torch.nn.functional.one_hot(key_block.clamp(max=blocks - 1), blocks).to(q.dtype)[:, 0]
        scores = (q.view(B, G, H // G, T, D) @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, -1)
        counts = visible.to(q.dtype) @ member
        mean_scores = (scores * visible) @ member / counts.clamp(min=1)
        if self.at_random:
            mean_scores = self._draw_noise(h, q_idx, torch.arange(blocks, device=q.device)).expand_as(
                mean_scores
            )
        block_ids = torch.arange(blocks, device=q.device)
        mean_scores = mean_scores.masked_fill((block_ids >= query_block) | (counts == 0), -torch.inf)
        best = mean_scores.topk(min(self.count - 1, blocks), dim=-1)
        chosen = torch.zeros_like(mean_scores, dtype=torch.bool)
        chosen = chosen.scatter(-1, best.indices, best.values > -torch.inf) | (block_ids == query_block)
        return _make_block_mask(chosen.detach(), q_idx[:, 0, :1, 0], self.size)

    def count_blocks(self, end: int) -> int:
        """Number of blocks before position `end`, at least one."""
        return max(1, -(-end // self.size))

    def flops(self, n_queries: int, n_keys: int, heads: int, width: int) -> int:
        """FLOPs of matrix products, per row: all scores once more, and their sums and counts by block."""
        return 2 * heads * n_queries * n_keys * (width + 2 * self.count_blocks(n_keys))

    @staticmethod
    def _draw_noise(h: Tensor, q_idx: Tensor, block: Tensor) -> Tensor:
        """Pseudorandom number for each head, position and block, the same in every pass."""
        mixed = (h * 2654435761 + q_idx.clamp(min=0) * 40503 + block * 69069 + 12345) % 1000003
        return (mixed * mixed % 1000003).double() / 1000003


def _make_block_mask(chosen_BHTN: Tensor, first_position_B1: Tensor, size: int) -> Mask:
    T, blocks = chosen_BHTN.shape[2:]
    rows = len(first_position_B1)

    @declare_capabilities(sees_future=True)
    def chosen_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        row = (q_idx - first_position_B1[b if rows > 1 else torch.zeros_like(b), 0]).clamp(0, max(T - 1, 0))
        block = kv_idx.clamp(min=0) // size
        return chosen_BHTN[b, h, row, block.clamp(max=blocks - 1)] & (block < blocks)

    return chosen_mask
