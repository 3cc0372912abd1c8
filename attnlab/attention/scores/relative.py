"""T5 relative positions: a learned bias per bucket of the distance."""

import math
from types import MappingProxyType

import torch
from torch import Tensor, nn

from attnlab.attention.scores.bias import Bias


class RelativeBias(Bias):
    """Learned number per head and bucket of q_idx - kv_idx, one-sided: made for causal masks.

    The first half of the buckets holds one distance each; the rest grow with the logarithm up to
    `max_distance`. Keys after the query share bucket 0. Source: T5, Raffel et al. 2020, §2.1.
    """

    kinds = MappingProxyType({"table": "vector"})

    def __init__(self, n_heads: int, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        if buckets < 2 or max_distance <= buckets // 2:
            raise ValueError(
                f"relative positions need buckets >= 2 and max_distance > buckets / 2, got "
                f"buckets={buckets} and max_distance={max_distance}"
            )
        self.buckets = buckets
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.zeros(buckets, n_heads))

    def compute_bucket(self, distance: Tensor) -> Tensor:
        """Bucket of a distance: exact below buckets/2, then logarithmic; all far distances share the last."""
        exact = self.buckets // 2
        distance = distance.clamp(min=0)
        ratio = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = exact + (ratio * (self.buckets - exact)).to(distance.dtype)
        return torch.where(distance < exact, distance, far.clamp(max=self.buckets - 1))

    def compute_bias(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Look up table[bucket(q_idx - kv_idx), h]."""
        return self.table[self.compute_bucket(q_idx - kv_idx), h]
