"""The architecture of nanoGPT in plain modules, as the reference of a single model without a harness.

LayerNorm without bias, learned positions, one qkv matrix, torch's fused attention, GELU, tied embedding.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NanoGptBlock(nn.Module):
    """Attention, then an MLP of 4x width, each on a normalized residual stream."""

    def __init__(self, dim: int, n_heads: int, n_layers: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
        for weight in (self.qkv.weight, self.up.weight):
            nn.init.normal_(weight, std=0.02)
        for weight in (self.out.weight, self.down.weight):
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * n_layers))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, dim = x.shape
        parts = self.qkv(self.attention_norm(x)).split(dim, dim=2)
        q, k, v = (part.view(rows, length, self.n_heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, dim))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class NanoGpt(nn.Module):
    """nanoGPT that maps tokens [B, T] and targets [B, T] to the mean loss."""

    def __init__(self, vocab_size: int, length: int, dim: int, n_heads: int, n_layers: int) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = (
            nn.Embedding(vocab_size, dim),
            nn.Embedding(length, dim),
        )
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.layers = nn.ModuleList(NanoGptBlock(dim, n_heads, n_layers) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(dim, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.position_embedding(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.final_norm(x), self.token_embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
