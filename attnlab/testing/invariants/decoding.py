"""Invariants of decoding: a cache changes the computation, never the outputs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, cycle, pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data_masks import non_padding
from attnlab.testing.invariants.masks_and_scores import MAX_LONG_LENGTH, choose_long_length, draw_long_input
from attnlab.testing.invariants.variant import Variant, assert_close

MAX_CUTS = 24  # splits in two of a long sequence
CHUNK_SIZES = (17, 1, 33, 64, 2, 65, 31, 128)  # around powers of two, at which parts may work in blocks
MISSING_OPERATION = ("not implemented for", "could not create a primitive")  # the second from oneDNN
REORDERED_ROWS = 37  # no other size of a cache
DecodeStep = Callable[[slice], Tensor]


def iter_splits(length: int) -> Iterator[tuple[int, ...]]:
    """Yield ways to feed `length` tokens: in two chunks, in three or more, and one by one.

    A short sequence is cut in two at every place.
    """
    stride = 1 + length // MAX_CUTS
    yield from ((cut, length - cut) for cut in range(length - 1, 0, -stride))
    if length > 3:
        yield (2, length - 3, 1)
        yield (1, 2, *([2] * ((length - 3) // 2)), *([1] * ((length - 3) % 2)))
    yield (1,) * length


def feed_in_chunks(step: DecodeStep, split: Sequence[int], dim: int = 1) -> Tensor:
    """Feed the chunks in order; concatenate their outputs along dimension `dim`, the tokens."""
    ends = list(accumulate(split))
    return torch.cat([step(slice(end - size, end)) for size, end in zip(split, ends, strict=True)], dim)


def _compare_splits(
    variant: Variant,
    start_decoding: Callable[[], DecodeStep],
    expected: Tensor,
    splits: Sequence[tuple[int, ...]],
    dim: int = 1,
) -> None:
    """Assert that every accepted split gives `expected`.

    A split may be refused only if an earlier query would have seen later keys, or if the layer changes with
    the sequence length.

    Raises:
        Unsupported: No split was accepted.
    """
    visible = variant.compute_visibility(torch.arange(variant.length))
    layer = variant.make_layer()
    depends_on_length = not isinstance(layer, Attention) or layer.changes_with_length
    unsupported_error = None
    n_accepted = 0
    for split in splits:
        decode_step = start_decoding()  # a cache that does not fit the layer is refused here
        try:
            actual = feed_in_chunks(decode_step, split, dim)
        except Unsupported as error:
            sees_next_chunk = any(visible[:cut, cut:].any() for cut in list(accumulate(split))[:-1])
            if not (sees_next_chunk or depends_on_length):
                raise AssertionError(
                    f"rejects the split {split}, although its mask allows it: {error}"
                ) from None
            unsupported_error = error
            continue
        n_accepted += 1
        assert_close(actual, expected, f"split {split}")
    if not n_accepted and unsupported_error is not None:
        raise unsupported_error


@torch.no_grad()
def check_decode_equals_full_pass(variant: Variant) -> None:
    """2. Prefill and decode, split at any token, equal one full pass of the layer."""
    layer = variant.make_layer()
    x = variant.make_input()
    splits = list(iter_splits(variant.length))

    def start_decoding() -> DecodeStep:
        cache = variant.make_cache()
        return lambda chunk: layer(x[:, chunk], cache=cache)

    def start_decoding_by_head() -> DecodeStep:
        cache = variant.make_cache()
        return lambda chunk: layer.attend(x[:, chunk], cache=cache).out

    try:
        _compare_splits(variant, start_decoding, layer(x), splits)
    except AssertionError:
        if variant.is_attention:  # compare again head by head, to name the head
            _compare_splits(variant, start_decoding_by_head, layer.attend(x).out, splits, dim=2)
        raise


@torch.no_grad()
def check_model_decode_equals_full_pass(variant: Variant) -> None:
    """2. Prefill and decode equal one full pass of a two-layer model, embedded positions included."""
    model = variant.make_model()
    tokens = variant.make_tokens()

    def start_decoding() -> DecodeStep:
        caches = [variant.make_cache() for _ in model.blocks]
        return lambda chunk: model(tokens[:, chunk], caches=caches)

    splits = list(iter_splits(variant.length))
    _compare_splits(
        variant, start_decoding, model(tokens), [splits[0], *splits[-3:]] if len(splits) > 3 else splits
    )


@torch.no_grad()
def check_left_padded_decode(variant: Variant) -> None:
    """2. Prompts of unequal length, padded on the left (positions below zero), decode as each does alone."""
    model = variant.make_model()
    tokens = variant.make_tokens()
    T = variant.length
    pads = [0, min(3, T - 1)][-variant.batch :]
    positions = torch.arange(T)[None] - torch.tensor(pads)[:, None]
    unsupported_errors = []
    for prompt in {max(T - 3, 1), min(4, T)}:  # the second may cut a prefix that the first leaves intact
        caches = [variant.make_cache() for _ in model.blocks]

        def decode_step(chunk: slice, caches: Any = caches) -> Tensor:
            return model(tokens[:, chunk], positions=positions[:, chunk], mask=non_padding, caches=caches)

        try:
            actual = feed_in_chunks(decode_step, (prompt, *[1] * (T - prompt)))
        except Unsupported as error:
            unsupported_errors.append(error)
            continue
        for row, pad in enumerate(pads):
            expected = model(tokens[row : row + 1, pad:])
            assert_close(
                actual[row : row + 1, pad:], expected, f"{pad} tokens of padding, a prompt of {prompt}"
            )
    if len(unsupported_errors) == 2:
        raise unsupported_errors[0]


@torch.no_grad()
def check_cache_reorder(variant: Variant) -> None:
    """2. After the rows of a cache are permuted (beam search), each row decodes from the past it received."""
    layer = variant.make_layer()
    x = draw_long_input(variant, REORDERED_ROWS, variant.length)
    cut = max(variant.length - 2, 1)
    cache = variant.make_cache()
    layer(x[:, :cut], cache=cache)
    for name, value in vars(cache).items():
        setattr(cache, name, _reorder_rows(value))
    remaining_input = x[:, cut:].flip(0)
    if remaining_input.shape[1]:
        assert_close(layer(remaining_input, cache=cache), layer(x.flip(0))[:, cut:], "permuted rows")


def _reorder_rows(value: Any) -> Any:
    """Permute the rows of every tensor in `value`; a cache may store them in any dimension."""
    if isinstance(value, Tensor):
        return value.flip([dim for dim, size in enumerate(value.shape) if size == REORDERED_ROWS][:1])
    if isinstance(value, dict):
        return {key: _reorder_rows(item) for key, item in value.items()}
    return type(value)(map(_reorder_rows, value)) if type(value) in (tuple, list) else value


@torch.no_grad()
def check_long_sequences_decode(variant: Variant) -> None:
    """2. Beyond the constants in the source of its parts, tokens decoded one by one, or in chunks of various
    sizes, equal those of a full pass.
    """
    layer = variant.make_layer()
    cache = variant.make_cache()
    _, T = choose_long_length(variant.attention, variant.cache)
    T = min(T, Capabilities.from_part(cache).capacity or MAX_LONG_LENGTH)
    x = draw_long_input(variant, 1, T)
    expected = layer(x)
    steps = min(3, T - 1)
    actual = feed_in_chunks(lambda chunk: layer(x[:, chunk], cache=cache), (T - steps, *[1] * steps))
    assert_close(
        actual[:, -steps:], expected[:, -steps:], f"the last {steps} of {T} tokens, decoded one by one"
    )
    ends = [*takewhile(lambda end: end < T, accumulate(cycle(CHUNK_SIZES))), T]
    split = [end - begin for begin, end in pairwise([0, *ends])]
    cache = variant.make_cache()
    with suppress(Unsupported):  # a chunk that begins within a prefix
        actual = feed_in_chunks(lambda chunk: layer(x[:, chunk], cache=cache), split)
        assert_close(actual, expected, f"{T} tokens in chunks of {', '.join(map(str, split))}")


@torch.no_grad()
def check_cache_capacity(variant: Variant) -> None:
    """2. A cache holds as many tokens as its declared capacity; one more raises ValueError."""
    layer = variant.make_layer()
    cache = variant.make_cache()
    capacity = Capabilities.from_part(cache).capacity
    assert capacity is not None
    x = draw_long_input(variant, 1, capacity + 1)
    layer(x[:, :capacity], cache=cache)
    try:
        layer(x[:, capacity:], cache=cache)
    except ValueError:
        return
    raise AssertionError(f"the cache accepts {capacity + 1} tokens, but declares a capacity of {capacity}")


def has_bounded_cache(variant: Variant) -> bool:
    """Whether the cache declares a capacity in tokens."""
    return variant.cache is not None and Capabilities.from_part(variant.make_cache()).capacity is not None


@torch.no_grad()
def check_state_size(variant: Variant) -> None:
    """14. state_size() equals the bytes that the cache holds per token and row, and the cache holds every key
    that a later query may see. carried_size() is the number of additional bytes per row. Both hold at any
    length and with 16-bit weights.
    """
    x = variant.make_input()
    for dtype in (torch.float64, torch.bfloat16):
        layer = variant.make_layer().to(dtype)
        cache = variant.make_cache()
        prompt = max(1, variant.length - 1)
        with suppress_missing_operations():
            layer(x[:, :prompt].to(dtype), cache=cache)
            _require_reported_bytes(variant, layer, cache, prompt)
            with suppress(Unsupported):  # the mask shows later tokens
                layer(x[:, prompt:].to(dtype), cache=cache)
                _require_reported_bytes(variant, layer, cache, variant.length)


def _require_reported_bytes(variant: Variant, layer: Any, cache: Any, T: int) -> None:
    """Compare the live bytes of a cache of T tokens with those that the layer reports."""
    token_bytes = cache.live_bytes() - Capabilities.from_part(layer).carried_size() * variant.batch
    if layer.state_size() == 0:
        assert token_bytes == 0, f"the cache holds {token_bytes} bytes for tokens, but state_size() is 0"
        return
    n_cached, remainder = divmod(token_bytes, layer.state_size() * variant.batch)
    assert not remainder, (
        f"{token_bytes} bytes are not a multiple of {layer.state_size()} x {variant.batch} rows"
    )
    assert token_bytes == 0 or token_bytes % T == 0 or n_cached < T, "not a whole number of bytes per token"
    n_visible = (
        variant.compute_visibility(torch.arange(T + 1))[-1, :T].sum().item()
        if variant.has_declared_mask
        else 0
    )
    max_cached = Capabilities.from_part(cache).max_cached_tokens
    assert max_cached is None or n_cached <= max_cached, (
        f"the cache holds {n_cached} tokens, but declares at most {max_cached}"
    )
    assert n_visible <= n_cached <= T, (
        f"the cache holds {n_cached} of {T} tokens, but the next query needs {n_visible}"
    )


@contextmanager
def suppress_missing_operations() -> Iterator[None]:
    """Suppress the error of an operation that torch does not have for a dtype on a CPU."""
    try:
        yield
    except RuntimeError as error:
        if not any(message in str(error) for message in MISSING_OPERATION):
            raise
