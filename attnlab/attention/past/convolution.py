"""Short convolutions over the last few tokens."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.past.past import Past


@final
class ShortConvolution(nn.Module):
    """x_t + sum over j < width of w_j x_(t-j), a weight per channel and distance (Canon layers, Allen-Zhu
    2025, arXiv 2512.17351, §3). Weights start at zero, so that it starts as nothing.

    Tokens that are padding or of another document take no part. State: the last width - 1 inputs. Of width 0
    it is none at all: x as it is. How its rate goes with the width is not known here: `mup` refuses it.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        if width < 0 or width == 1:
            raise ValueError(f"a short convolution needs width >= 2, or 0 for none, got {width}")
        self.width = width
        self.looks_back = max(0, width - 1)
        self.weight = nn.Parameter(torch.zeros(width, channels)) if width else None

    def forward(self, x_BTC: Tensor, past: Past | None, name: str) -> Tensor:
        """[B, T, C] -> [B, T, C]; what is carried is carried by `name`."""
        if self.weight is None or past is None:
            return x_BTC
        B, T, _ = x_BTC.shape
        whole = past.before(name, x_BTC, self.width - 1)
        seen = past.sees(self.width - 1, B)
        y = x_BTC + self.weight[0] * x_BTC
        for back in range(1, self.width):
            earlier = whole.narrow(1, self.width - 1 - back, T)
            if seen is not None:
                earlier = earlier * seen[..., back - 1 : back]
            y = y + self.weight[back] * earlier
        return y

    def beside(
        self, projected_BTC: Tensor, widths: Sequence[int], past: Past | None, name: str
    ) -> tuple[Tensor, ...]:
        """The parts of a projection, [B, T, width] each; all but the first are convolved."""
        if self.weight is None or past is None:
            return projected_BTC.split_with_sizes(widths, dim=-1)
        first, *rest = widths
        kept, convolved = projected_BTC.split_with_sizes((first, sum(rest)), dim=-1)
        return kept, *self(convolved, past, name).split_with_sizes(rest, dim=-1)

    def carried_size(self) -> int:
        """Bytes carried: width - 1 inputs."""
        return 0 if self.weight is None else self.weight[1:].numel() * self.weight.element_size()
