"""Caches of fewer tokens: which ones to let go of is told by the attention that they got."""

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.cache import Carrying, bytes_of, joined
from attnlab.attention.contracts import State


class Evicting(Carrying, ABC):
    """Holds `size` tokens at most, once a pass is over. Heads of a layer let go of the same tokens, by the
    mean of their weights, where papers let each head choose.

    New queries see what was held and all new keys. The tokens' positions are counted as bytes: they are
    needed to tell which ones there are.
    """

    room: int | None = None
    needs: tuple[str, ...] = ("weights",)

    def __init__(self, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"an evicting cache needs size >= 1, got {size}")
        self.holds: int | None = size
        self.size = size
        self.seen = 0
        self.state: State | None = None
        self.positions: Tensor | None = None

    @abstractmethod
    def ranks(self, weights_BTS: Tensor) -> Tensor:
        """What each held token is worth [B, S], after the new queries' attention [B, T, S], mean over
        heads.
        """

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Adds T new keys; returns them after what is held."""
        self.seen += positions_BT.shape[1]
        rows = state[0].shape[0] if state else len(positions_BT)
        positions_BT = positions_BT.expand(rows, -1)
        self.state, self.positions = joined(self.state, self.positions, state, positions_BT)
        return self.state, self.positions

    def attended(self, weights_BHTS: Tensor) -> None:
        """Lets go of what is worth the least, given what the new queries looked at."""
        assert self.state is not None
        assert self.positions is not None
        worth = self.ranks(weights_BHTS.mean(1))
        if self.positions.shape[1] <= self.size:
            return
        # padding goes first; of equal worth the older
        worth = worth.masked_fill(self.positions < 0, -torch.inf)
        kept = worth.flip(-1).topk(self.size, dim=-1).indices
        kept = (worth.shape[-1] - 1 - kept).sort(-1).values
        self.positions = self.positions.gather(1, kept)
        self.state = tuple(
            part.gather(2, kept[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3]))
            for part in self.state
        )
        self.let_go(kept)

    def let_go(self, kept_BS: Tensor) -> None:
        """Told which places stay."""

    def __len__(self) -> int:
        """Tokens seen so far, those let go of included."""
        return self.seen

    def live_bytes(self) -> int:
        """Bytes of the states held, of their positions, and of what is carried."""
        own: list[Any] = [self.positions] if self.positions is not None else []
        return bytes_of(self.state, *own, *self.carried.values())


@final
class HeavyHitters(Evicting):
    """Keeps what got the most attention so far, and the newest `recent` tokens (H2O, Zhang et al. 2023, arXiv
    2306.14048, §4)."""

    def __init__(self, size: int, recent: int | None = None) -> None:
        super().__init__(size)
        self.recent = size // 2 if recent is None else recent
        if not 0 <= self.recent <= size:
            raise ValueError(f"heavy hitters need 0 <= recent <= size, got {self.recent} of {size}")
        self.total: Tensor | None = None

    def ranks(self, weights_BTS: Tensor) -> Tensor:
        """Summed weights; the newest above all."""
        sums = weights_BTS.sum(1)
        if self.total is not None:
            sums[:, : self.total.shape[1]] += self.total
        self.total = sums
        return _newest(sums, self.recent)

    def let_go(self, kept_BS: Tensor) -> None:
        """Their sums go too."""
        assert self.total is not None
        self.total = self.total.gather(1, kept_BS)

    def live_bytes(self) -> int:
        """The sums beside."""
        return super().live_bytes() + (0 if self.total is None else bytes_of((self.total,)))


@final
class Observed(Evicting):
    """Keeps what the last `window` queries of a pass looked at, smoothed over neighbours, and the newest
    `recent` tokens (SnapKV, Li et al. 2024, arXiv 2404.14469, §4.2, where it is done once, after the
    prompt).
    """

    def __init__(self, size: int, window: int = 8, kernel: int = 5, recent: int | None = None) -> None:
        super().__init__(size)
        self.window = window
        self.kernel = kernel
        self.recent = min(window, size) if recent is None else recent
        if window < 1 or kernel < 1 or not kernel % 2:
            raise ValueError(f"observed needs window >= 1 and an odd kernel, got {window} and {kernel}")

    def ranks(self, weights_BTS: Tensor) -> Tensor:
        """The mean weight by the last queries, the largest of its neighbours'; the newest above all."""
        mean = weights_BTS[:, -self.window :].mean(1)
        pooled = torch.nn.functional.max_pool1d(mean[:, None], self.kernel, 1, self.kernel // 2)[:, 0]
        return _newest(pooled, self.recent)


@final
class TokenOmission(Evicting):
    """Lets go of what the newest query looked at least (TOVA, Oren et al. 2024, arXiv 2401.06104, §4)."""

    def ranks(self, weights_BTS: Tensor) -> Tensor:
        """The newest query's weights."""
        return weights_BTS[:, -1]


def _newest(worth_BS: Tensor, count: int) -> Tensor:
    """The last `count` above all others, the newest highest."""
    S = worth_BS.shape[1]
    place = torch.arange(S, device=worth_BS.device)
    top = worth_BS.amax(-1, keepdim=True) + 1
    return torch.where(place >= S - count, top + place, worth_BS)
