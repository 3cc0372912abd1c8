"""The architecture of nanoGPT in plain modules and a plain loop: what a person would write who has one model
and no harness. LayerNorm without bias, learned positions, one qkv matrix, torch's fused attention, GELU, tied
embedding.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """Attention, then an MLP four times as wide, each on a normalised residual stream."""

    def __init__(self, dim: int, n_heads: int, n_layers: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.first, self.second = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
        for weight in (self.qkv.weight, self.up.weight):
            nn.init.normal_(weight, std=0.02)
        for weight in (self.out.weight, self.down.weight):
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * n_layers))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, dim = x.shape
        parts = self.qkv(self.first(x)).split(dim, dim=2)
        q, k, v = (part.view(rows, length, self.n_heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, dim))
        return x + self.down(F.gelu(self.up(self.second(x))))


class NanoGpt(nn.Module):
    """Tokens [B, T] and targets to the mean loss."""

    def __init__(self, vocab_size: int, length: int, dim: int, n_heads: int, n_layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, dim), nn.Embedding(length, dim)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(dim, n_heads, n_layers) for _ in range(n_layers))
        self.norm = nn.LayerNorm(dim, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
