"""Short convolutions over the last few tokens."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class ShortConvolution(nn.Module):
    """x_t + Σ_(j < width) w_j x_(t-j), with a weight per channel and distance.

    Weights start at zero, so the module starts as the identity. Padding and tokens of other documents take no
    part. State: the last width - 1 inputs. Width 0 is no convolution: x unchanged. The scaling of its
    learning rate with width is unknown, so `mup` rejects it. Source: Canon layers, Allen-Zhu 2025, arXiv
    2512.17351, §3.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        if width < 0 or width == 1:
            raise ValueError(f"a short convolution needs width >= 2, or 0 for none, got {width}")
        self.width = width
        self.lookback = max(0, width - 1)
        self.weight = nn.Parameter(torch.zeros(width, channels)) if width else None

    def forward(self, x_BTC: Tensor, recurrent_state: RecurrentState | None, name: str) -> Tensor:
        """Convolve [B, T, C] to [B, T, C]; `name` is the key of the carried state."""
        if self.weight is None or recurrent_state is None:
            return x_BTC
        B, T, _ = x_BTC.shape
        padded = recurrent_state.prepend_earlier(name, x_BTC, self.width - 1)
        visible = recurrent_state.find_visible_predecessors(self.width - 1, B)
        y = x_BTC + self.weight[0] * x_BTC
        for distance in range(1, self.width):
            earlier = padded.narrow(1, self.width - 1 - distance, T)
            if visible is not None:
                earlier = earlier * visible[..., distance - 1 : distance]
            y = y + self.weight[distance] * earlier
        return y

    def split_and_convolve(
        self, projected_BTC: Tensor, widths: Sequence[int], recurrent_state: RecurrentState | None, name: str
    ) -> tuple[Tensor, ...]:
        """Split a projection into parts [B, T, width] and convolve all but the first."""
        if self.weight is None or recurrent_state is None:
            return projected_BTC.split_with_sizes(widths, dim=-1)
        first, *rest = widths
        first_part, convolved = projected_BTC.split_with_sizes((first, sum(rest)), dim=-1)
        return first_part, *self(convolved, recurrent_state, name).split_with_sizes(rest, dim=-1)

    def carried_size(self) -> int:
        """Bytes carried: width - 1 inputs."""
        return 0 if self.weight is None else self.weight[1:].numel() * self.weight.element_size()
