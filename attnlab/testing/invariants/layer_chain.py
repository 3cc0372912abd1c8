"""A mixer of several layers, for layers that cannot be tested alone because they read tensors of another."""

from collections.abc import Sequence
from typing import Any, final

from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Capabilities, Mask, SharedTensors
from attnlab.attention.token_positions import TokenPositions


@final
class LayerChain(nn.Module):
    """Residual chain of layers whose output is the sum of their contributions, [B, T, M].

    Each layer reads x plus the contributions of the layers before it. The layers share one dict of shared
    tensors and one cache, so at most one of them may have recurrent state or cached tensors.
    """

    def __init__(self, dim: int, layers: Sequence[Any]) -> None:
        super().__init__()
        self.dim = dim
        self.layers: Any = nn.ModuleList(layers)
        stateful_layers = [
            layer for layer in layers if layer.state_size() or Capabilities.from_part(layer).carried_size()
        ]
        assert len(stateful_layers) == 1, "a layer chain takes one cache, not one per layer"
        self.changes_with_length = any(Capabilities.from_part(layer).changes_with_length for layer in layers)

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Apply the chain: [B, T, M] -> [B, T, M]."""
        positions = TokenPositions.resolve_positions(positions, cache, x_BTM)
        shared_tensors: SharedTensors = {}
        x = x_BTM
        for layer in self.layers:
            layer_cache = cache if layer.state_size() else None
            shared_argument = (
                {"shared_tensors": shared_tensors}
                if Capabilities.from_part(layer).reads_shared or layer.writes_shared
                else {}
            )
            x = x + layer(x, positions=positions, mask=mask, cache=layer_cache, **shared_argument)
        return x - x_BTM

    def state_size(self) -> int:
        """Sum of the layers' state sizes, in bytes per token and row."""
        return sum(layer.state_size() for layer in self.layers)

    def carried_size(self) -> int:
        """Sum of the layers' carried sizes, in bytes per row."""
        return sum(Capabilities.from_part(layer).carried_size() for layer in self.layers)
