"""The contracts of attention's seams: what each part is given, what it answers, in which shapes.

B batch, T queries, S keys, H query heads, G key/value heads, D query/key width, V value width, M model width.
A contract lists what a part must have; `Capabilities` lists what a part may declare beyond it. A part that
cannot do what is asked raises `Unsupported`; nothing falls back. `kinds`, of any module, are for
`model.parametrization`.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

# What heads cache; the sequence is dim 2 of every member: [B, heads or 1, S, width].
State = tuple[Tensor, ...]
Channel = dict[str, Any]  # of one pass: what layers publish for later ones, by name
Rotate = Callable[[Tensor], Tensor]  # q or k [B, heads, T, width], turned by the positions it was made for


class Unsupported(ValueError):
    """What was asked for cannot be done by this part; the message says why and what can."""


class Capabilities(NamedTuple):
    """What a part may declare beyond its contract, as attributes of these names. A part that is silent has
    the value given here. `Capabilities.of(part)` reads all of them once; of None it is all defaults.
    """

    # Heads. `can_absorb`: where their attribute `absorbed` is set, they read the cache as it is, with equal
    # numbers. `pools`: keys and values are the slices "k" and "v" of one `Fused` matrix `qkv`, `head_dim`
    # rows a KV head. `has_own_values`: `written(state)` [B, H, S, M] is what a head adds to the residual
    # stream where it attends to that key alone. `normalises`: outputs are normalised by head, so none may be
    # 0.
    can_absorb: bool = False
    pools: bool = False
    has_own_values: bool = False
    normalises: bool = False

    # Heads and epilogues: how many tokens before its own a result is made of, math.inf for all. If any, the
    # part is given a `past` too (`Past`), and its `carried_size` counts the bytes that it carries there.
    looks_back: float = 0

    # Heads and mixers: names of the pass's `channel`, which they are given by keyword if they name any, or
    # None where a layer is alone. What one reads, an earlier layer publishes, or it itself.
    reads: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()

    # Heads, epilogues and mixers: bytes cached at a fixed size, beside those of tokens.
    carried_size: Callable[[], int] = lambda: 0

    # Rotations and mixers: keys made now would be others in a longer sequence, so no cache may hold them.
    changes_with_length: bool = False

    # Masks. `looks_ahead`: it shows a query a later key; a law holds a mask that is silent to showing none.
    # `prefix` = n: the only later keys that it shows are the first n positions. `within` = (size, keep): no
    # key is seen but the last `size` and the first `keep`.
    looks_ahead: bool = False
    prefix: int | None = None
    within: tuple[int, int] | None = None

    # Normalizers. `sums_to_one`: the weights of a row do. `signed`: some may be negative. `flops(heads, new,
    # held)`: of its matrix products, per row.
    sums_to_one: bool = False
    signed: bool = False
    flops: Callable[..., int] = lambda heads, new, held: 0

    # Epilogues and caches. An epilogue names what it is given: "lse", by the kernel, and by keyword "values",
    # those of the new tokens themselves [B, G, T, V]. A cache names "weights" where its `attended(weights)`
    # is given what the new queries looked at.
    needs: tuple[str, ...] = ()

    # Epilogues. `reweighs`: it shrinks weights as it does outputs. `per_feature`: it tells features apart, so
    # nothing can be absorbed past it.
    reweighs: bool = False
    per_feature: bool = True

    # Caches: the most tokens that it ever takes, and the most that it keeps for later queries; None: any.
    room: int | None = None
    holds: int | None = None

    @classmethod
    def of(cls, part: object) -> "Capabilities":
        """What `part` declares."""
        declared: Any = [getattr(part, name, default) for name, default in cls._field_defaults.items()]
        return cls(*declared)


class Heads(Protocol):
    """What is projected and cached, how it becomes keys and values, how outputs are merged: an nn.Module.
    `heads.base.BaseHeads` has all of it but the projections; heads need not derive from it.

    Query head h reads KV head h // (n_heads // n_kv_heads). `score_dim` is the width that the scale counts,
    `rope_dim` the width that turns.

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

    def project(self, x_BTM: Tensor, rotate: Rotate, /, **shown: Any) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the state of the new tokens."""

    def expand(self, state: State, /) -> tuple[Tensor, Tensor]:
        """k [B, G, S, D], v [B, G, S, V]."""

    def merge(self, y_BHTV: Tensor, /) -> Tensor: ...

    def state_size(self) -> int:
        """Bytes cached per token."""

    @property
    def projection(self) -> nn.Module:
        """What every new token passes once to make its state. This and the next two are for counts alone."""

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """Of a layer's matrix products, per row: `new` queries over `held` keys; two a multiplication."""

    def read_width(self, absorbed: bool = False) -> int:
        """Numbers that attention reads per key."""


class Rotary(Hashable, Protocol):
    """Positions [B or 1, T] to the function that turns q and k.

    Hashable: layers whose rotations are equal share their tables.

        def still(positions): return lambda x: x
    """

    def __call__(self, positions_BT: Tensor, /) -> Rotate: ...


class Mask(Hashable, Protocol):
    """Which keys a query may see: True is visible, broadcasting to [B, H, T, S]. Positions, never slots;
    hashable, because what it answered is remembered.

        def banded(b, h, q_pos, kv_pos): return (kv_pos <= q_pos) & ((q_pos - kv_pos) % 4 == 0)
    """

    def __call__(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor, /) -> Tensor: ...


class Score(Protocol):
    """A new score for every score, pointwise; arguments as of a `Mask`.

    What only adds is a `Bias`, by type: a fused kernel takes that and nothing else.

        def halved(score, b, h, q_pos, kv_pos): return score / 2
    """

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor, /) -> Tensor: ...


class Normaliser(Protocol):
    """Weights of scores [B, H, T, S], in the place of the softmax; a hidden key has the score -inf, and gets
    0.

        def plain(score): return score.exp()
    """

    def __call__(self, score: Tensor, /) -> Tensor: ...


class AttentionInputs(NamedTuple):
    """All that a kernel computes attention from. `_replace` gives another with some fields changed.

    A tuple, not a dataclass: one is made for every layer of every decoding step, and torch.compile traces it.
    """

    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, V]
    q_pos: Tensor  # [B or 1, 1, T, 1], negative for padding
    kv_pos: Tensor  # [B or 1, 1, 1, S]
    scale: float  # of q·k
    mask: Mask | None = None  # None: every key is visible
    scores: Sequence[Score] = ()  # applied to scale * q·k in this order
    normalizer: Normaliser | None = None  # None: the softmax
    dropout: float = 0.0  # of attention weights
    need: Sequence[str] = ()  # what is wanted beside the output: "lse", "weights"
    aligned: bool = False  # positions are consecutive, and the queries are the last keys


class Attended(NamedTuple):
    """out [B, H, T, V]; where needed, lse [B, H, T], log of the softmax denominator; weights [B, H, T, S]."""

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


class Kernel(Protocol):
    """softmax over the visible keys of score(scale q·k), times v; zeros for a query that sees none.

    Unsupported where the kernel has no such score, need, normalizer, dropout or gradient: it may ignore no
    field of its inputs but `aligned`.

        def uncapped(inputs): return eager(inputs._replace(scores=()))
    """

    def __call__(self, inputs: AttentionInputs, /) -> Attended: ...


class Cache(Protocol):
    """What one layer keeps of past tokens; it knows nothing of heads. `len()` is the tokens seen so far.

    What parts carry over beside the states of tokens, of fixed size, is in `carried` by name; `carry(name,
    tensor)` replaces it.

        seen = layer(x[:, :5], cache=DynamicCache())
    """

    carried: dict[str, Tensor]

    def append(self, state: State, positions_BT: Tensor, /) -> tuple[State, Tensor]:
        """State and positions [B or 1, S] of all that the new queries may see. ValueError: no room."""

    def __len__(self) -> int: ...

    def carry(self, name: str, tensor: Tensor, /) -> None: ...

    def live_bytes(self) -> int:
        """Bytes of the states held and of what is carried."""


class Epilogue(Protocol):
    """What happens to the attended values before heads are merged.

    An nn.Module; by keyword it is given what it declares to need.

        class Half(nn.Module):
            def forward(self, out, lse, x): return out / 2
    """

    def __call__(
        self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, /, **shown: Any
    ) -> Tensor: ...


class Mixer(Protocol):
    """Whole layers in the place of attention: an nn.Module, x [B, T, M] to [B, T, M]; `mask` is the data's.
    Unsupported for a mask or a cache that it has no place for.

        Recurrent(torch.nn.GRU, dim=64, width=64)
    """

    def __call__(
        self, x_BTM: Tensor, *, positions: Any = None, mask: Mask | None = None, cache: Cache | None = None
    ) -> Tensor: ...

    def state_size(self) -> int:
        """Bytes cached per token."""


def declares(**capabilities: Any) -> Callable[[Callable], Any]:
    """Capabilities of a part that is a plain function: `@declares(looks_ahead=True)`."""

    def declare(function: Callable) -> Any:
        function.__dict__.update(capabilities)
        return function

    return declare
