"""Laws of decoding: a cache changes what is computed, never what comes out."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import real
from attnlab.testing.laws.positions import LONG, drawn, long
from attnlab.testing.laws.variant import Variant, same

CUTS = 24  # in two, of a long text
Step = Callable[[slice], Tensor]


def splits(length: int) -> Iterator[tuple[int, ...]]:
    """Ways to feed `length` tokens: cuts in two (every one of a short text), three chunks, and one by one."""
    every = 1 + length // CUTS
    yield from ((cut, length - cut) for cut in range(length - 1, 0, -every))
    if length > 3:
        yield (2, length - 3, 1)
        yield (1, 2, *([2] * ((length - 3) // 2)), *([1] * ((length - 3) % 2)))
    yield (1,) * length


def fed(step: Step, split: Sequence[int], dim: int = 1) -> Tensor:
    """The outputs of all chunks, joined along their tokens."""
    ends = list(accumulate(split))
    return torch.cat([step(slice(end - size, end)) for size, end in zip(split, ends, strict=True)], dim)


def _compare(
    variant: Variant, begin: Callable[[], Step], whole: Tensor, ways: Sequence[tuple[int, ...]], dim: int = 1
) -> None:
    """Every split that is accepted gives `whole`; one may be refused only where an earlier query would
    have seen later keys.
    """
    visible = variant.visible(torch.arange(variant.length))
    layer = variant.layer()
    stretches = not isinstance(layer, Attention) or layer.changes_with_length
    refusal = None
    accepted = 0
    for split in ways:
        try:
            got = fed(begin(), split, dim)
        except Unsupported as error:
            ahead = any(visible[:cut, cut:].any() for cut in list(accumulate(split))[:-1])
            if not (ahead or stretches):
                raise AssertionError(
                    f"refuses the split {split} for no reason of its mask: {error}"
                ) from None
            refusal = error
            continue
        accepted += 1
        same(got, whole, f"split {split}")
    if not accepted and refusal is not None:
        raise refusal


@torch.no_grad()
def check_decode_equals_full_pass(variant: Variant) -> None:
    """2. Prefill and decode, split anywhere, equal one full pass of the layer."""
    layer = variant.layer()
    x = variant.x()
    ways = list(splits(variant.length))

    def begin() -> Step:
        cache = variant.new_cache()
        return lambda part: layer(x[:, part], cache=cache)

    def begin_by_head() -> Step:
        cache = variant.new_cache()
        return lambda part: layer.attend(x[:, part], cache=cache).out

    try:
        _compare(variant, begin, layer(x), ways)
    except AssertionError:
        if variant.is_attention:  # the same once more, to name the head
            _compare(variant, begin_by_head, layer.attend(x).out, ways, dim=2)
        raise


@torch.no_grad()
def check_model_decode_equals_full_pass(variant: Variant) -> None:
    """2. Prefill and decode equal one full pass of a model of two layers, embedded positions included."""
    model = variant.model()
    tokens = variant.tokens()

    def begin() -> Step:
        caches = [variant.new_cache() for _ in model.blocks]
        return lambda part: model(tokens[:, part], caches=caches)

    ways = list(splits(variant.length))
    _compare(variant, begin, model(tokens), [ways[0], *ways[-3:]] if len(ways) > 3 else ways)


@torch.no_grad()
def check_left_padded_decode(variant: Variant) -> None:
    """2. Prompts of unequal length, padded on the left (positions below zero), decode as each alone does."""
    model = variant.model()
    tokens = variant.tokens()
    T = variant.length
    pads = [0, min(3, T - 1)][-variant.batch :]
    positions = torch.arange(T)[None] - torch.tensor(pads)[:, None]
    refusals = []
    for prompt in {max(T - 3, 1), min(4, T)}:  # the second may cut a prefix that the first does not
        caches = [variant.new_cache() for _ in model.blocks]

        def step(part: slice, caches: Any = caches) -> Tensor:
            return model(tokens[:, part], positions=positions[:, part], mask=real, caches=caches)

        try:
            got = fed(step, (prompt, *[1] * (T - prompt)))
        except Unsupported as error:
            refusals.append(error)
            continue
        for row, pad in enumerate(pads):
            alone = model(tokens[row : row + 1, pad:])
            same(got[row : row + 1, pad:], alone, f"{pad} tokens of padding, a prompt of {prompt}")
    if len(refusals) == 2:
        raise refusals[0]


@torch.no_grad()
def check_cache_reorder(variant: Variant) -> None:
    """2. Where the rows of a cache change places (beam search), decoding goes on with the other row's
    past.
    """
    layer = variant.layer()
    x = variant.x(2)
    cut = max(variant.length - 2, 1)
    cache = variant.new_cache()
    layer(x[:, :cut], cache=cache)
    for name, value in vars(cache).items():
        setattr(cache, name, _reordered(value))
    rest = x[:, cut:].flip(0)
    if rest.shape[1]:
        same(layer(rest, cache=cache), layer(x.flip(0))[:, cut:], "rows exchanged")


def _reordered(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.flip(0) if value.ndim and len(value) == 2 else value
    if isinstance(value, dict):
        return {key: _reordered(part) for key, part in value.items()}
    return type(value)(map(_reordered, value)) if type(value) in (tuple, list) else value


@torch.no_grad()
def check_long_texts_decode(variant: Variant) -> None:
    """2. Far on, past the constants in the source of its parts, tokens that are decoded one by one get what
    they get in a full pass.
    """
    layer = variant.layer()
    cache = variant.new_cache()
    _, T = long(variant.attention, variant.cache)
    T = min(T, Capabilities.of(cache).room or LONG)
    x = drawn(variant, 1, T)
    steps = min(3, T - 1)
    got = fed(lambda part: layer(x[:, part], cache=cache), (T - steps, *[1] * steps))
    same(got[:, -steps:], layer(x)[:, -steps:], f"the last {steps} of {T} tokens, decoded one by one")


@torch.no_grad()
def check_cache_room(variant: Variant) -> None:
    """2. A cache takes the tokens that it declares to have room for; one more gets a ValueError."""
    layer = variant.layer()
    cache = variant.new_cache()
    room = Capabilities.of(cache).room
    assert room is not None
    x = drawn(variant, 1, room + 1)
    layer(x[:, :room], cache=cache)
    try:
        layer(x[:, room:], cache=cache)
    except ValueError:
        return
    raise AssertionError(f"the cache takes {room + 1} tokens and declares to have room for {room}")


def has_room(variant: Variant) -> bool:
    """A cache that says how many tokens it takes."""
    return variant.cache is not None and Capabilities.of(variant.new_cache()).room is not None


@torch.no_grad()
def check_state_size(variant: Variant) -> None:
    """14. state_size() is the bytes per token and row that the cache holds, of every key that a later
    query may see; carried_size() those of a row beside them.
    """
    layer = variant.layer()
    x = variant.x()
    T = variant.length
    cache = variant.new_cache()
    layer(x, cache=cache)
    live = cache.live_bytes() - Capabilities.of(layer).carried_size() * variant.batch
    if layer.state_size() == 0:
        assert live == 0, f"{live} bytes are held for tokens, and state_size() says that there are none"
        return
    held, remainder = divmod(live, layer.state_size() * variant.batch)
    assert not remainder, f"{live} bytes are no multiple of {layer.state_size()} x {variant.batch} rows"
    assert live == 0 or live % T == 0 or held < T, "not a whole number of bytes per token"
    needed = variant.visible(torch.arange(T + 1))[-1, :T].sum().item() if variant.tells_its_mask else 0
    holds = Capabilities.of(cache).holds
    assert holds is None or held <= holds, f"the cache holds {held} tokens and declares to hold {holds}"
    assert needed <= held <= T, f"the cache holds {held} tokens of {T}, the next query needs {needed}"
