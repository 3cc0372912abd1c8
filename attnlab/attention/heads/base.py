"""What all kinds of heads share."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State
from attnlab.attention.heads.projections import Fused, IntoResidual, merged, require_groups
from attnlab.attention.past.convolution import ShortConvolution


class BaseHeads(nn.Module, ABC):
    """Heads over an input projection and an output projection (see `contracts.Heads`).

    A subclass
    - hands its sizes to this constructor and makes `self.out`, an `IntoResidual`, and its input projection;
    - writes `project` and `state_width`;
    - overrides `projection` where that is not `self.qkv`, `expand` where the state is not (k, v), and
      `merge` where outputs change before they are projected;
    - overrides `flops` and `read_width` where keys and values are not read as they are cached;
    - calls `convolve` where a short convolution passes over what it projects; one that looks back in another
      way declares `looks_back` and overrides `carried_size`;
    - declares what else it can do as attributes (`contracts.Capabilities`).
    """

    out: IntoResidual
    qkv: Fused
    convolution: ShortConvolution
    looks_back: float = 0

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
        """Widths of one head: `score_dim` D of queries and keys, `value_dim` V of values, `rope_dim` of what
        turns; None is `head_dim`. ValueError where the heads cannot share so many KV heads.
        """
        super().__init__()
        require_groups(n_heads, n_kv_heads)
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.score_dim = head_dim if score_dim is None else score_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.rope_dim = head_dim if rope_dim is None else rope_dim

    def convolve(self, channels: int, width: int) -> None:
        """Makes `self.convolution` over so many channels of the projection; none where `width` is 0."""
        self.convolution = ShortConvolution(channels, width)
        self.looks_back = self.convolution.looks_back

    @abstractmethod
    def project(self, x_BTM: Tensor, rotate: Rotate) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the state of the new tokens; `past` and `channel` as declared."""

    @abstractmethod
    def state_width(self) -> int:
        """Numbers cached per token."""

    @property
    def projection(self) -> nn.Linear:
        """The matrix that every new token passes once to make its state."""
        return self.qkv

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """k [B, G, S, D], v [B, G, S, V]: the state itself."""
        k, v = state
        return k, v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Concatenates the heads and projects them out: [B, T, M]."""
        return self.out(merged(y_BHTV))

    def written(self, state: State) -> Tensor:
        """[B, H, S, M]: the value of a head's group, through the head's slice of the output projection. It
        is what a head writes where the subclass declares `has_own_values`.
        """
        return self.out.written(self.expand(state)[1], self.n_heads)

    def state_size(self) -> int:
        """Bytes cached per token, in the weights' dtype."""
        return self.state_width() * self.projection.weight.element_size()

    def carried_size(self) -> int:
        """Bytes that the convolution carries."""
        return self.convolution.carried_size() if self.looks_back else 0

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """Both projections of the new tokens, then per key and query head D multiplications for the score
        and V for the value.
        """
        own = self.projection.weight.numel() + self.out.weight.numel()
        return 2 * (new * own + self.n_heads * (self.score_dim + self.value_dim) * new * held)

    def read_width(self, absorbed: bool = False) -> int:
        """G keys of D and G values of V."""
        return self.n_kv_heads * (self.score_dim + self.value_dim)
