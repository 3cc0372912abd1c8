"""A learned bias per bucket of the distance."""

import math
from types import MappingProxyType

import torch
from torch import Tensor, nn

from attnlab.attention.scores.bias import Bias


class RelativeBias(Bias):
    """A learned number per head and bucket of q_pos - kv_pos (T5, Raffel et al. 2020, §2.1), one-sided: made
    for causal masks.

    The first half of the buckets holds one distance each; the rest grow with the logarithm up to
    `max_distance`. Keys after the query share bucket 0.
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

    def bucket(self, distance: Tensor) -> Tensor:
        """Exact below buckets/2, logarithmic above, the last one for everything beyond."""
        exact = self.buckets // 2
        distance = distance.clamp(min=0)
        ratio = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = exact + (ratio * (self.buckets - exact)).to(distance.dtype)
        return torch.where(distance < exact, distance, far.clamp(max=self.buckets - 1))

    def bias(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """table[bucket(q_pos - kv_pos), h]."""
        return self.table[self.bucket(q_pos - kv_pos), h]
