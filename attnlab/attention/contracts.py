"""The contracts of attention's seams: what each part is given, what it answers, in which shapes.

B batch, T queries, S keys, H query heads, G key/value heads, D query/key width, V value width, M model width.
A part that cannot do what is asked raises `Unsupported`; nothing falls back. Attributes with a value are
capabilities: who is silent has it (`declared`). `kinds`, of any module, are for `model.parametrization`.
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


class Attended(NamedTuple):
    """out [B, H, T, V]; where needed, lse [B, H, T], log of the softmax denominator; weights [B, H, T, S]."""

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


class Heads(Protocol):
    """What is projected and cached, how it becomes keys and values, how outputs are merged: an nn.Module.

    Query head h reads KV head h // (n_heads // n_kv_heads). `score_dim` is the width that the scale counts,
    `rope_dim` the width that turns. `can_absorb`: set `absorbed`, and the cache is read as it is, with the
    same numbers. `pools`: keys and values are the slices "k" and "v" of one `Fused` matrix `qkv`,
    `head_dim` rows a KV head. `has_own_values`: `written(state)` [B, H, S, M] is what a head adds to the
    residual stream where it attends to that key alone. `looks_back`: how many tokens before its own a state
    is made of, math.inf for all; then `project` is given a `past` too (`Past`), and `carried_size()` tells
    the bytes that it carries there. `normalises`: outputs are normalised by head, so none may be 0.
    `reads`, `publishes`: names of the pass's `channel`, which `project` is given then, or None where a
    layer is alone; what it reads, an earlier layer publishes, or it itself.

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
    can_absorb: bool = False
    absorbed: bool = False
    pools: bool = False
    has_own_values: bool = False
    normalises: bool = False
    looks_back: float = 0
    reads: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    carried_size: Callable[[], int] = staticmethod(lambda: 0)

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
    """Positions [B or 1, T] to the function that turns q and k; hashable, and equal ones share their tables.

    `changes_with_length`: keys turned now would turn otherwise in a longer sequence; no cache may hold them.

        def still(positions): return lambda x: x
    """

    changes_with_length: bool = False

    def __call__(self, positions_BT: Tensor, /) -> Rotate: ...


class Mask(Hashable, Protocol):
    """Which keys a query may see: True is visible, broadcasting to [B, H, T, S]. Positions, never slots;
    hashable, because what it answered is remembered. `looks_ahead`: it shows a query a later key; a law holds
    to it who is silent. `prefix` = n: the only later keys that it shows are the first n positions.
    `within` = (size, keep): no key is seen but the last `size` and the first `keep`.

        def banded(b, h, q_pos, kv_pos): return (kv_pos <= q_pos) & ((q_pos - kv_pos) % 4 == 0)
    """

    looks_ahead: bool = False
    prefix: int | None = None
    within: tuple[int, int] | None = None

    def __call__(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor, /) -> Tensor: ...


class Score(Protocol):
    """A new score for every score, pointwise; arguments as of a `Mask`.

    What only adds is a `Bias`, by type: a fused kernel takes that and nothing else.

        def halved(score, b, h, q_pos, kv_pos): return score / 2
    """

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor, /) -> Tensor: ...


class Normaliser(Protocol):
    """Weights of scores [B, H, T, S], in the place of the softmax; a hidden key has the score -inf, and gets
    0. `sums_to_one`: those of a row do. `signed`: some may be negative. `flops(heads, new, held)`: of its
    matrix products, per row.

        def plain(score): return score.exp()
    """

    sums_to_one: bool = False
    signed: bool = False
    flops: Callable[[int, int, int], int] = staticmethod(lambda heads, new, held: 0)

    def __call__(self, score: Tensor, /) -> Tensor: ...


class Kernel(Protocol):
    """softmax over the visible keys of score(scale q·k), times v; zeros for a query that sees none.

    `q_pos` [B or 1, 1, T, 1] and `kv_pos` [B or 1, 1, 1, S] are positions. `need` names what is wanted beside
    the output: "lse", "weights". `aligned`: positions are consecutive, and the queries are the last keys. It
    is given a `normaliser` where a layer has one. Unsupported where the kernel has no such score, need,
    normaliser, dropout or gradient.

        def uncapped(q, k, v, *, scores, **rest): return eager(q, k, v, scores=(), **rest)
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, q_pos: Tensor, kv_pos: Tensor,
        mask: Mask | None, scores: Sequence[Score], scale: float, normaliser: Normaliser | None = None,
        dropout: float = 0.0, need: Sequence[str] = (), aligned: bool = False,
    ) -> Attended: ...  # fmt: skip


class Cache(Protocol):
    """What one layer keeps of past tokens; it knows nothing of heads. `len()` is the tokens seen so far.

    `room` is the most tokens that it ever takes, `holds` the most that it keeps for later queries; None: any.
    What parts carry over beside the states of tokens, of fixed size, is in `carried` by name; `carry(name,
    tensor)` replaces it. `needs` ("weights"): `attended(weights)` tells what the new queries looked at.

        seen = layer(x[:, :5], cache=DynamicCache())
    """

    room: int | None = None
    holds: int | None = None
    needs: tuple[str, ...] = ()
    carried: dict[str, Tensor]

    def append(self, state: State, positions_BT: Tensor, /) -> tuple[State, Tensor]:
        """State and positions [B or 1, S] of all that the new queries may see. ValueError: no room."""

    def __len__(self) -> int: ...

    def carry(self, name: str, tensor: Tensor, /) -> None: ...

    def live_bytes(self) -> int:
        """Bytes of the states held and of what is carried."""


class Epilogue(Protocol):
    """What happens to the attended values before heads are merged: an nn.Module.

    `needs` names what it is given: "lse", by the kernel, and by keyword "values", those of the new tokens
    themselves [B, G, T, V]. `reweighs`: it shrinks weights as it does outputs. `per_feature`: it tells
    features apart, so nothing can be absorbed past it. `looks_back`: it is given a `past` too, as heads are.

        class Half(nn.Module):
            def forward(self, out, lse, x): return out / 2
    """

    needs: tuple[str, ...] = ()
    reweighs: bool = False
    per_feature: bool = True
    looks_back: float = 0
    carried_size: Callable[[], int] = staticmethod(lambda: 0)

    def __call__(
        self, out_BHTV: Tensor, lse_BHT: Tensor | None, x_BTM: Tensor, /, **shown: Any
    ) -> Tensor: ...


class Mixer(Protocol):
    """Whole layers in the place of attention: an nn.Module, x [B, T, M] to [B, T, M]; `mask` is the data's.

    `changes_with_length` as of a `Rotary`; `reads` and `publishes` as of `Heads`, with which it is given the
    `channel` by keyword; `carried_size()` is the bytes cached beside those of tokens.
    Unsupported for a mask or a cache that it has no place for.

        Recurrent(torch.nn.GRU, dim=64, width=64)
    """

    changes_with_length: bool = False
    reads: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    carried_size: Callable[[], int] = staticmethod(lambda: 0)

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


def declared(part: object, contract: type, capability: str) -> Any:
    """A capability of a part: what it says, or the contract's value where it says nothing."""
    return getattr(part, capability, getattr(contract, capability))
