"""Invariants of caches: order of rows, capacity and size."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Unsupported
from attnlab.testing.checks.numerics import is_missing_kernel
from attnlab.testing.invariants.masks_and_scores import draw_long_input
from attnlab.testing.invariants.variant import Variant, assert_close

REORDERED_ROWS = 37  # no other size of a cache


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
        if not is_missing_kernel(str(error)):
            raise
