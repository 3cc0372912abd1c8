"""Block selection: a query reads the blocks of keys of highest score."""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import AttentionInputs, Mask, declare_capabilities
from attnlab.attention.indexer import Indexer
from attnlab.attention.kernels.masking import make_batch_head_indices


@final
class BlockSelection(nn.Module):
    """MoBA: a query reads its own block and the `count` - 1 earlier blocks of highest mean score.

    A block is `size` positions; blocks of one position select tokens. Means are over the keys that the query
    may see. Scores are q·k alone, each head's own, or those of `indexer`, the same for all heads (DeepSeek
    Sparse Attention selects tokens by them). With `at_random`, the earlier blocks are drawn by head and
    position instead: a control. All scores are computed: this measures which keys are read, not speed.
    Source: Lu et al. 2025, arXiv 2502.13189, §2.2.
    """

    def __init__(
        self, size: int, count: int, at_random: bool = False, indexer: Indexer | None = None
    ) -> None:
        super().__init__()
        if size < 1 or count < 1:
            raise ValueError(f"blocks need size >= 1 and count >= 1, got {size} and {count}")
        if at_random and indexer is not None:
            raise ValueError("a random selection has no use for an indexer: set at_random: false")
        if count < 2 and indexer is not None:
            raise ValueError(
                "a query's own block is always read, and count: 1 leaves an indexer none to choose"
            )
        self.size = size
        self.count = count
        self.at_random = at_random
        self.indexer = indexer

    @torch.no_grad()
    def forward(self, inputs: AttentionInputs, end: int, index_scores: Tensor | None = None) -> Mask:
        """Make the mask of the selected blocks.

        Args:
            inputs: inputs of the kernel; their mask is the only other one that hides keys. Positions of a row
                are consecutive.
            end: one more than the last position of the queries.
            index_scores: those of the indexer, [B, 1, T, S].
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
        if index_scores is None:
            scores = (q.view(B, G, H // G, T, D) @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, -1)
        else:
            scores = index_scores.to(q.dtype)
            visible = visible.any(1, keepdim=True)  # all heads read the same keys
        mean_scores, counts = self._average_blocks(scores, visible, key_block, blocks)
        if self.at_random:
            mean_scores = self._draw_noise(h, q_idx, torch.arange(blocks, device=q.device)).expand_as(
                mean_scores
            )
        block_ids = torch.arange(blocks, device=q.device)
        mean_scores = mean_scores.masked_fill((block_ids >= query_block) | (counts == 0), -torch.inf)
        # of equal scores the later block wins, however many there are: a stable sort from the last one
        best_first = mean_scores.flip(-1).sort(dim=-1, descending=True, stable=True)
        values, indices = (part[..., : self.count - 1] for part in best_first)
        chosen = torch.zeros_like(mean_scores, dtype=torch.bool)
        chosen = chosen.scatter(-1, blocks - 1 - indices, values > -torch.inf) | (block_ids == query_block)
        return _make_block_mask(chosen.expand(B, H, T, blocks), q_idx[:, 0, :1, 0], self.size)

    def _average_blocks(
        self, scores: Tensor, visible: Tensor, key_block: Tensor, blocks: int
    ) -> tuple[Tensor, Tensor]:
        """Mean score and number of the visible keys of every block, each [B, heads, T, blocks]."""
        if self.size == 1:  # each block is one key: the product below would be with a permutation
            index = key_block.where(visible, blocks).expand_as(visible)
            ordered = scores.new_zeros(2, *visible.shape[:-1], blocks + 1)
            ordered[0].scatter_(-1, index, scores.expand_as(visible))
            ordered[1].scatter_(-1, index, 1.0)
            return ordered[0, ..., :blocks], ordered[1, ..., :blocks]
        member = torch.nn.functional.one_hot(key_block.clamp(max=blocks - 1), blocks).to(scores.dtype)[:, 0]
        counts = visible.to(scores.dtype) @ member
        return (scores * visible) @ member / counts.clamp(min=1), counts

    def count_blocks(self, end: int) -> int:
        """Number of blocks before position `end`, at least one."""
        return max(1, -(-end // self.size))

    def flops(self, n_queries: int, n_keys: int, heads: int, width: int) -> int:
        """FLOPs of matrix products, per row: all scores once more, and their sums and counts by block."""
        n_pairs = n_queries * n_keys
        sums = 0 if self.size == 1 else 4 * n_pairs * self.count_blocks(n_keys)
        if self.indexer is None:
            return heads * (sums + 2 * n_pairs * width)
        return sums + self.indexer.flops(n_queries, n_keys)

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
