"""Layers that cannot be tried alone, since one reads what another publishes: together they are one mixer."""

from collections.abc import Sequence
from typing import Any, final

from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Capabilities, Channel, Mask
from attnlab.attention.positions import Positions


@final
class Chained(nn.Module):
    """x plus the first layer's output, plus the next one's of that, and so on: what they add, [B, T, M]. They
    have one channel, and one cache: of the layers one alone may hold anything.
    """

    def __init__(self, dim: int, layers: Sequence[Any]) -> None:
        super().__init__()
        self.dim = dim
        self.layers: Any = nn.ModuleList(layers)
        holding = [layer for layer in layers if layer.state_size() or Capabilities.of(layer).carried_size()]
        assert len(holding) == 1, "a cache for each layer is not what this is for"
        self.changes_with_length = any(Capabilities.of(layer).changes_with_length for layer in layers)

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        positions = Positions.of_pass(positions, cache, x_BTM)
        channel: Channel = {}
        x = x_BTM
        for layer in self.layers:
            held = cache if layer.state_size() else None
            shared = {"channel": channel} if Capabilities.of(layer).reads or layer.publishes else {}
            x = x + layer(x, positions=positions, mask=mask, cache=held, **shared)
        return x - x_BTM

    def state_size(self) -> int:
        """Of all layers."""
        return sum(layer.state_size() for layer in self.layers)

    def carried_size(self) -> int:
        """Of all layers."""
        return sum(Capabilities.of(layer).carried_size() for layer in self.layers)
