"""Caches that evict tokens, ranked by the attention weights that the tokens received."""

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.cache import CarriedStateMixin, concatenate_states, count_bytes
from attnlab.attention.contracts import State


class EvictingCache(CarriedStateMixin, ABC):
    """Base class of caches that hold at most `size` tokens after each pass.

    All heads of a layer evict the same tokens, ranked by their mean weights; in the papers each head chooses.
    New queries see the cached keys and all new keys. The tokens' positions count as bytes, because they
    identify the tokens that remain.
    """

    capacity: int | None = None
    needs: tuple[str, ...] = ("weights",)
    leaves_gaps = True

    def __init__(self, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"an evicting cache needs size >= 1, got {size}")
        self.max_cached_tokens: int | None = size
        self.size = size
        self.n_seen = 0
        self.state: State | None = None
        self.positions: Tensor | None = None

    @abstractmethod
    def rank_tokens(self, weights_BTS: Tensor) -> Tensor:
        """Score each cached token [B, S]; the lowest scores are evicted.

        Args:
            weights_BTS: attention weights of the new queries [B, T, S], mean over heads.
        """

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Append T new keys; return them after the cached ones."""
        self.n_seen += positions_BT.shape[1]
        rows = state[0].shape[0] if state else len(positions_BT)
        positions_BT = positions_BT.expand(rows, -1)
        self.state, self.positions = concatenate_states(self.state, self.positions, state, positions_BT)
        return self.state, self.positions

    def update_from_attention(self, weights_BHTS: Tensor) -> None:
        """Evict the lowest-ranked tokens, given the attention weights of the new queries [B, H, T, S]."""
        assert self.state is not None
        assert self.positions is not None
        ranks_BS = self.rank_tokens(weights_BHTS.mean(1))
        if self.positions.shape[1] <= self.size:
            return
        # padding is evicted first; of equal ranks, the older token
        ranks_BS = ranks_BS.masked_fill(self.positions < 0, -torch.inf)
        retained_BS = ranks_BS.flip(-1).topk(self.size, dim=-1).indices
        retained_BS = (ranks_BS.shape[-1] - 1 - retained_BS).sort(-1).values
        self.positions = self.positions.gather(1, retained_BS)
        self.state = tuple(
            part.gather(2, retained_BS[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3]))
            for part in self.state
        )
        self.retain_tokens(retained_BS)

    def retain_tokens(self, retained_BS: Tensor) -> None:
        """Hook for subclass state: `retained_BS` holds the indices of the tokens that stay."""

    def __len__(self) -> int:
        """Number of tokens so far, evicted ones included."""
        return self.n_seen

    def live_bytes(self) -> int:
        """Bytes of the cached states, their positions and the carried state."""
        positions: list[Any] = [self.positions] if self.positions is not None else []
        return count_bytes(self.state, *positions, *self.carried.values())


@final
class HeavyHitterCache(EvictingCache):
    """Keep the tokens with the most attention so far, and the newest `recent` tokens (H2O).

    Source: Zhang et al. 2023, arXiv 2306.14048, §4.
    """

    def __init__(self, size: int, recent: int | None = None) -> None:
        super().__init__(size)
        self.recent = size // 2 if recent is None else recent
        if not 0 <= self.recent <= size:
            raise ValueError(f"heavy hitters need 0 <= recent <= size, got {self.recent} of {size}")
        self.attention_sums: Tensor | None = None

    def rank_tokens(self, weights_BTS: Tensor) -> Tensor:
        """Accumulated weights; the newest tokens rank highest."""
        sums = weights_BTS.sum(1)
        if self.attention_sums is not None:
            sums[:, : self.attention_sums.shape[1]] += self.attention_sums
        self.attention_sums = sums
        return _prioritize_newest(sums, self.recent)

    def retain_tokens(self, retained_BS: Tensor) -> None:
        """Drop the accumulated weights of evicted tokens."""
        assert self.attention_sums is not None
        self.attention_sums = self.attention_sums.gather(1, retained_BS)

    def live_bytes(self) -> int:
        """Bytes of the base class and of the accumulated weights."""
        return super().live_bytes() + (
            0 if self.attention_sums is None else count_bytes((self.attention_sums,))
        )


@final
class ObservationWindowCache(EvictingCache):
    """Keep the tokens that the last `window` queries attend to most, and the newest `recent` (SnapKV).

    Ranks are smoothed over neighbors. Source: Li et al. 2024, arXiv 2404.14469, §4.2, where eviction happens
    once, after the prompt.
    """

    def __init__(self, size: int, window: int = 8, kernel: int = 5, recent: int | None = None) -> None:
        super().__init__(size)
        self.window = window
        self.kernel = kernel
        self.recent = min(window, size) if recent is None else recent
        if window < 1 or kernel < 1 or not kernel % 2:
            raise ValueError(f"observed needs window >= 1 and an odd kernel, got {window} and {kernel}")

    def rank_tokens(self, weights_BTS: Tensor) -> Tensor:
        """Mean weight over the last queries, max-pooled over neighbors; the newest tokens rank highest."""
        mean_weights = weights_BTS[:, -self.window :].mean(1)
        pooled = torch.nn.functional.max_pool1d(mean_weights[:, None], self.kernel, 1, self.kernel // 2)[:, 0]
        return _prioritize_newest(pooled, self.recent)


@final
class TokenOmissionCache(EvictingCache):
    """Evict the tokens that the newest query attends to least (TOVA).

    Source: Oren et al. 2024, arXiv 2401.06104, §4.
    """

    def rank_tokens(self, weights_BTS: Tensor) -> Tensor:
        """Weights of the newest query."""
        return weights_BTS[:, -1]


def _prioritize_newest(ranks_BS: Tensor, count: int) -> Tensor:
    """Rank the last `count` tokens above all others, the newest highest."""
    S = ranks_BS.shape[1]
    indices = torch.arange(S, device=ranks_BS.device)
    highest = ranks_BS.amax(-1, keepdim=True) + 1
    return torch.where(indices >= S - count, highest + indices, ranks_BS)
