"""Contracts of attention's extension points: the inputs, outputs and shapes of each part.

B batch, T queries, S keys, H query heads, G key/value heads, D query/key width, V value width, M model width.
A contract lists the attributes that a part must have; `Capabilities` lists those that a part may declare
beyond it. A part that cannot do a computation raises `Unsupported`; nothing falls back. Any module may have
`kinds`, which `model.parametrization` reads.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

# The tensors that heads cache; the sequence is dim 2 of every member: [B, heads or 1, S, width].
State = tuple[Tensor, ...]
SharedTensors = dict[str, Any]  # of one pass: tensors that layers write for later layers, by name
Rotate = Callable[[Tensor], Tensor]  # RoPE on q or k [B, heads, T, width], for the positions it was made for


class Unsupported(ValueError):
    """A part cannot do the requested computation; the message gives the reason and an alternative."""


class Capabilities(NamedTuple):
    """Optional declarations of a part beyond its contract, as attributes of these names.

    `Capabilities.from_part(part)` reads them all once. An attribute that the part lacks takes the default
    given here; of None all are defaults. By kind of part:
    - heads: `can_absorb`, `can_pool`, `has_own_values`, `normalizes_heads`, `rotates_cached_keys`,
      `lookback`, `reads_shared`, `writes_shared`, `carried_size`;
    - mixers: `reads_shared`, `writes_shared`, `carried_size`, `changes_with_length`, `auxiliary_losses`;
    - rotations: `changes_with_length`, `is_relative`;
    - masks: `sees_future`, `prefix`, `visible_window`;
    - score maps: `lookback`, `flops`, `has_token_state`, `carried_size`, `width`;
    - normalizers: `sums_to_one`, `is_signed`, `flops`;
    - epilogues: `lookback`, `carried_size`, `needs`, `reweights`, `per_feature`;
    - caches: `needs`, `capacity`, `max_cached_tokens`, `leaves_gaps`.
    """

    # Heads. `can_absorb`: with their attribute `absorbed` set, they read the cache unexpanded, with equal
    # numbers. `can_pool`: keys and values are the slices "k" and "v" of one `FusedLinear` `qkv`, `head_dim`
    # rows per KV head. `has_own_values`: `project_values(state)` [B, H, S, M] is the contribution of a head
    # to the residual stream if it attends to that key alone. `normalizes_heads`: outputs are normalized per
    # head, so none may be 0. `rotates_cached_keys`: states hold keys before RoPE, and `expand(state, rotate)`
    # rotates them; without `rotate` its keys have no positions.
    can_absorb: bool = False
    can_pool: bool = False
    has_own_values: bool = False
    normalizes_heads: bool = False
    rotates_cached_keys: bool = False

    # Heads and epilogues: the number of preceding tokens that a result depends on, math.inf for all. If it is
    # not 0, the part also receives `recurrent_state` (`RecurrentState`), and its `carried_size` counts the
    # bytes that it carries there. A score map receives that many preceding queries as `earlier_q`.
    lookback: float = 0

    # Score maps. `has_token_state`: `project(x, recurrent_state)` [B, n, T, W], which may depend on all
    # earlier tokens, is cached, `state_size()` bytes per token, and arrives as `token_state` of all keys.
    has_token_state: bool = False

    # Score maps: the number of features of queries that it reads, all or those without RoPE; None: any.
    width: int | None = None

    # Heads and mixers: names in the pass's `shared_tensors`. A part that declares any receives these by
    # keyword, or None if a layer runs alone. A name that a part reads is written by an earlier layer or by
    # the part itself.
    reads_shared: tuple[str, ...] = ()
    writes_shared: tuple[str, ...] = ()

    # Bytes that a part caches at a fixed size, in addition to the per-token states.
    carried_size: Callable[[], int] = lambda: 0

    # Mixers: weights of losses that they compute besides the model's, by name. A mixer that declares any
    # receives `auxiliary_losses` by keyword, and adds to its entries unless it is None.
    auxiliary_losses: Mapping[str, float] = MappingProxyType({})

    # Rotations and mixers: keys made now would differ in a longer sequence, so no cache may hold them.
    changes_with_length: bool = False

    # Rotations: scores depend on the distance of positions only.
    is_relative: bool = True

    # Masks. `sees_future`: some query sees a later key; an invariant checks that a mask without the
    # declaration shows none. `prefix` = n: the only later keys that it shows are the first n positions.
    # `visible_window` = (size, keep): only the last `size` and the first `keep` keys are visible.
    sees_future: bool = False
    prefix: int | None = None
    visible_window: tuple[int, int] | None = None

    # Normalizers. `sums_to_one`: the weights of a row do. `is_signed`: some may be negative.
    sums_to_one: bool = False
    is_signed: bool = False

    # Normalizers and score maps: `flops(heads, n_queries, n_keys)` of its matrix products, per row.
    flops: Callable[..., int] = lambda heads, n_queries, n_keys: 0

    # Epilogues and caches. An epilogue names its additional inputs: "lse", from the kernel, and "values", by
    # keyword, the values of the new tokens [B, G, T, V]. A cache names "weights" if its
    # `update_from_attention(weights)` is to receive the attention weights of the new queries.
    needs: tuple[str, ...] = ()

    # Epilogues. `reweights`: it scales weights as it does outputs. `per_feature`: it treats features
    # differently, so nothing can be absorbed past it.
    reweights: bool = False
    per_feature: bool = True

    # Caches. `leaves_gaps`: it drops tokens that come after retained ones.
    leaves_gaps: bool = False

    # Caches: the most tokens that it ever accepts, and the most that it retains for later queries; None: any.
    capacity: int | None = None
    max_cached_tokens: int | None = None

    @classmethod
    def from_part(cls, part: object) -> "Capabilities":
        """Read the declarations of `part`; missing ones take the defaults."""
        values: Any = [getattr(part, name, default) for name, default in cls._field_defaults.items()]
        return cls(*values)


class Heads(Protocol):
    """Projections and cached state of heads, expansion to keys and values, and merge: an nn.Module.

    `heads.base.BaseHeads` has all of it but the projections; heads need not derive from it. Query head h
    reads KV head h // (n_heads // n_kv_heads). `score_dim` is the width in the scale of scores, `rope_dim`
    the number of features that RoPE rotates.

        class Own(nn.Module):  # one head without projections; float32
            n_heads, n_kv_heads, score_dim, rope_dim = 1, 1, 64, 64
            def project(self, x, rotate): return rotate(x[:, None]), (rotate(x[:, None]), x[:, None])
            def expand(self, state): return state
            def merge(self, y): return y[:, 0]
            def state_size(self): return 2 * 64 * 4
    """

    n_heads: int
    n_kv_heads: int
    score_dim: int
    rope_dim: int

    def project(self, x_BTM: Tensor, rotate: Rotate, /, **optional_inputs: Any) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens."""

    def expand(self, state: State, /, *rotate: Rotate) -> tuple[Tensor, Tensor]:
        """Compute k [B, G, S, D] and v [B, G, S, V].

        Heads that declare `rotates_cached_keys` receive the rotation of the keys' positions, if there is one.
        """

    def merge(self, y_BHTV: Tensor, /) -> Tensor: ...

    def state_size(self) -> int:
        """Bytes cached per token."""

    @property
    def projection(self) -> nn.Module:
        """Module that computes the state of each new token.

        Only counts use it and the next two methods.
        """

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs of a layer's matrix products per row, `n_queries` queries over `n_keys` keys.

        A multiplication counts two.
        """

    def read_width(self, absorbed: bool = False) -> int:
        """Numbers that attention reads per key."""


class Rotary(Hashable, Protocol):
    """Map from positions [B or 1, T] to the function that rotates q and k.

    Hashable: layers whose rotations are equal share their tables.

        def still(positions): return lambda x: x
    """

    def __call__(self, positions_BT: Tensor, /) -> Rotate: ...


class Mask(Hashable, Protocol):
    """Keys that a query may see: True is visible, broadcasting to [B, H, T, S].

    The arguments are positions, never slots. Hashable, because results are cached.

        def banded(b, h, q_idx, kv_idx): return (kv_idx <= q_idx) & ((q_idx - kv_idx) % 4 == 0)
    """

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor, /) -> Tensor: ...


class Score(Protocol):
    """Pointwise map from scores to new scores; the other arguments are those of a `Mask`.

    A score that only adds is a `Bias`, by type: fused kernels accept no other.

        def halved(score, b, h, q_idx, kv_idx): return score / 2
    """

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor, /) -> Tensor: ...


class ScoreMap(Protocol):
    """Map from all scores scale * q·k of a pass, [B, H, T, S], to new ones, before the pointwise scores.

    It may read queries and keys. `visible` broadcasts to the scores; a hidden key must change no other score.

        def centered(score, inputs, visible): return score - (score * visible).mean(-1, keepdim=True)
    """

    def __call__(self, score: Tensor, inputs: "AttentionInputs", visible: Tensor, /) -> Tensor: ...


class Normalizer(Protocol):
    """Map from scores [B, H, T, S] to weights, in place of the softmax.

    A hidden key has the score -inf and gets the weight 0.

        def plain(score): return score.exp()
    """

    def __call__(self, score: Tensor, /) -> Tensor: ...


class AttentionInputs(NamedTuple):
    """All inputs of a kernel; `_replace` returns a copy with some fields changed.

    A tuple, not a dataclass: every layer makes one in every decoding step, and torch.compile traces it.
    """

    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, V]
    q_idx: Tensor  # [B or 1, 1, T, 1], negative for padding
    kv_idx: Tensor  # [B or 1, 1, 1, S]
    scale: float  # of q·k
    mask: Mask | None = None  # None: every key is visible
    scores: Sequence[Score] = ()  # applied to scale * q·k in this order
    normalizer: Normalizer | None = None  # None: the softmax
    dropout: float = 0.0  # of attention weights
    need: Sequence[str] = ()  # additional outputs: "lse", "weights"
    aligned: bool = False  # positions are consecutive, and the queries are the last keys
    score_map: ScoreMap | None = None  # applied to scale * q·k, before `scores`
    earlier_q: Tensor | None = None  # [B, H, lookback of the score map, D], queries before the first
    token_state: Tensor | None = None  # [B, n, S, W], the score map's own tensor of each key's token


class AttentionOutput(NamedTuple):
    """Output of a kernel: out [B, H, T, V] and, if needed, lse and weights.

    lse [B, H, T] is the log of the softmax denominator; weights are [B, H, T, S].
    """

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


class Kernel(Protocol):
    """softmax over the visible keys of score(scale q·k), times v; zeros for a query that sees no key.

    It raises `Unsupported` if it lacks a score, score map, need, normalizer, dropout or gradient: `aligned`
    is the only field that it may ignore.

        def uncapped(inputs): return eager(inputs._replace(scores=()))
    """

    def __call__(self, inputs: AttentionInputs, /) -> AttentionOutput: ...


class Cache(Protocol):
    """Cached past of one layer, independent of the heads; `len()` is the number of tokens so far.

    `carried` holds the fixed-size state of parts, in addition to the per-token states, by name; `carry(name,
    tensor)` replaces it.

        seen = layer(x[:, :5], cache=DynamicCache())
    """

    carried: dict[str, Tensor]

    def append(self, state: State, positions_BT: Tensor, /) -> tuple[State, Tensor]:
        """Add T tokens; return state and positions [B or 1, S] of all keys that the new queries may see.

        Raises:
            ValueError: the cache has no room.
        """

    def __len__(self) -> int: ...

    def carry(self, name: str, tensor: Tensor, /) -> None: ...

    def live_bytes(self) -> int:
        """Bytes of the cached states and the carried state."""


class Epilogue(Protocol):
    """Transform of the attention output before heads are merged: an nn.Module.

    The additional inputs that it declares arrive by keyword.

        class Half(nn.Module):
            def forward(self, out, lse, x): return out / 2
    """

    def __call__(
        self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, /, **optional_inputs: Any
    ) -> Tensor: ...


class Mixer(Protocol):
    """Layer that replaces attention: an nn.Module, x [B, T, M] to [B, T, M]; `mask` is the data mask.

    It raises `Unsupported` for a mask or a cache that it cannot use.

        RecurrentMixer(torch.nn.GRU, dim=64, width=64)
    """

    def __call__(
        self, x_BTM: Tensor, *, positions: Any = None, mask: Mask | None = None, cache: Cache | None = None
    ) -> Tensor: ...

    def state_size(self) -> int:
        """Bytes cached per token."""


def declare_capabilities(**capabilities: Any) -> Callable[[Callable], Any]:
    """Declare capabilities of a part that is a plain function: `@declare_capabilities(sees_future=True)`."""

    def set_capabilities(function: Callable) -> Any:
        function.__dict__.update(capabilities)
        return function

    return set_capabilities
