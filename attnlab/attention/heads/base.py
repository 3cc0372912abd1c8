"""Base class of all kinds of heads."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State
from attnlab.attention.heads.projections import (
    FusedLinear,
    ResidualProjection,
    merge_heads,
    require_divisible_heads,
)
from attnlab.attention.stateful.convolution import ShortConvolution


class BaseHeads(nn.Module, ABC):
    """Heads over an input projection and an output projection (see `contracts.Heads`).

    A subclass
    - passes its sizes to this constructor and makes `self.out`, a `ResidualProjection`, and its input
      projection;
    - implements `project` and `state_width`;
    - overrides `projection` if that is not `self.qkv`, `expand` if the state is not (k, v), and `merge` if
      outputs change before they are projected;
    - overrides `flops` and `read_width` if keys and values are not read as they are cached;
    - calls `add_convolution` for a short convolution over its projection; a subclass that depends on earlier
      tokens in another way declares `lookback` and overrides `carried_size`;
    - declares its other capabilities as attributes (`contracts.Capabilities`).
    """

    out: ResidualProjection
    qkv: FusedLinear
    convolution: ShortConvolution
    lookback: float = 0

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        *,
        score_dim: int | None = None,
        value_dim: int | None = None,
        rope_dim: int | None = None,
    ) -> None:
        """Set the widths of one head; None means `head_dim`.

        Args:
            score_dim: D, the width of queries and keys.
            value_dim: V, the width of values.
            rope_dim: number of features that RoPE rotates.

        Raises:
            ValueError: `n_kv_heads` does not divide `n_heads`.
        """
        super().__init__()
        require_divisible_heads(n_heads, n_kv_heads)
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.score_dim = head_dim if score_dim is None else score_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.rope_dim = head_dim if rope_dim is None else rope_dim

    def add_convolution(self, channels: int, width: int) -> None:
        """Make `self.convolution` over `channels` channels of the projection; `width` 0 makes none."""
        self.convolution = ShortConvolution(channels, width)
        self.lookback = self.convolution.lookback

    @abstractmethod
    def project(self, x_BTM: Tensor, rotate: Rotate) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens.

        Subclasses that declare them also take `recurrent_state` and `shared_tensors`.
        """

    @abstractmethod
    def state_width(self) -> int:
        """Numbers cached per token."""

    @property
    def projection(self) -> nn.Linear:
        """Matrix that computes the state of each new token, once."""
        return self.qkv

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Return k [B, G, S, D] and v [B, G, S, V]: the state itself."""
        k, v = state
        return k, v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Concatenate the heads and project them: [B, T, M]."""
        return self.out(merge_heads(y_BHTV))

    def project_values(self, state: State) -> Tensor:
        """Project the value of each head's group through the head's slice of the output projection.

        The result [B, H, S, M] is the contribution of a head to the residual stream if the subclass declares
        `has_own_values`.
        """
        return self.out.project_by_head(self.expand(state)[1], self.n_heads)

    def state_size(self) -> int:
        """Bytes cached per token, in the weights' dtype."""
        return self.state_width() * self.projection.weight.element_size()

    def carried_size(self) -> int:
        """Bytes carried by the convolution."""
        return self.convolution.carried_size() if self.lookback else 0

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs of both projections of the new tokens and of attention.

        Per key and query head, the score takes D multiplications and the value V.
        """
        n_weights = self.projection.weight.numel() + self.out.weight.numel()
        return 2 * (
            n_queries * n_weights + self.n_heads * (self.score_dim + self.value_dim) * n_queries * n_keys
        )

    def read_width(self, absorbed: bool = False) -> int:
        """G keys of width D and G values of width V."""
        return self.n_kv_heads * (self.score_dim + self.value_dim)
