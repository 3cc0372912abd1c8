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
    tensors and one cache, so only one of them may cache tokens; all may have recurrent state.
    """

    def __init__(self, dim: int, layers: Sequence[Any]) -> None:
        super().__init__()
        self.dim = dim
        self.layers: Any = nn.ModuleList(layers)
        caching_layers = [layer for layer in layers if layer.state_size()]
        assert len(caching_layers) == 1, "a layer chain takes one cache, not one per layer"
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
        for n, layer in enumerate(self.layers):
            layer_cache = cache if cache is None or layer.state_size() else _CarriedState(cache, n)
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


class _CarriedState:
    """Recurrent state of a layer that caches no tokens, under names of its own in the cache of another."""

    def __init__(self, cache: Cache, layer: int) -> None:
        self.cache, self.prefix = cache, f"layer {layer}: "
        self.carried = {
            name.removeprefix(self.prefix): tensor
            for name, tensor in cache.carried.items()
            if name.startswith(self.prefix)
        }

    def carry(self, name: str, tensor: Tensor) -> None:
        """Replace the carried tensor of this name."""
        self.carried[name] = tensor
        self.cache.carry(self.prefix + name, tensor)

    def __len__(self) -> int:
        """0: the cache of such a layer stays empty in a model too."""
        return 0
