"""Invariants of masks and scores in isolation: they depend on positions only, and declare future visibility.

Masks and scores are evaluated at positions in any order and number.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

import torch
from hydra.utils import get_object
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.scores.bias import Bias
from attnlab.testing.invariants.variant import Variant, assert_close, make_named_generator

Part = Callable[..., Tensor]
MIN_LONG_LENGTH = 292
MAX_LONG_LENGTH = 1024  # longest sequence
DENSE_POSITIONS = 160  # the first positions are all evaluated
MAX_CONSTANT = 2**24  # largest constant collected from a part's source
BATCH_ROWS = 2
SMALL_LENGTH = 23
SHIFTS = (101, 1020)


def find_constants(config: Any) -> set[int]:
    """Collect integers from part of a config and from the source of the user's modules that it names.

    Behavior may change at a position that such a constant gives.
    """
    if isinstance(config, Mapping):
        constants = set().union(*map(find_constants, config.values()))
        names = [config[key] for key in ("_target_", "path") if isinstance(config.get(key), str)]
        return constants.union(
            *(_find_module_constants(inspect.getmodule(get_object(name))) for name in names)
        )
    if isinstance(config, list | tuple):
        return set().union(*map(find_constants, config))
    return {config} if type(config) is int and 1 < config <= MAX_CONSTANT else set()


@lru_cache(maxsize=64)
def _find_module_constants(module: ModuleType | None) -> frozenset[int]:
    if module is None or module.__name__.split(".")[0] in ("attnlab", "torch", "hydra"):
        return frozenset()
    try:
        return frozenset(_iter_code_constants(compile(inspect.getsource(module), module.__name__, "exec")))
    except (OSError, TypeError, SyntaxError):  # the source is not available
        return frozenset()


def _iter_code_constants(code: CodeType) -> Iterator[int]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _iter_code_constants(value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and number == number // 1 and 1 < number <= MAX_CONSTANT:
                yield int(number)


def choose_long_length(*parts: Any) -> int:
    """Choose a sequence length past the constants of some parts."""
    return max(MIN_LONG_LENGTH, *(each for each in find_constants(parts) if each <= MAX_LONG_LENGTH)) + 8


def draw_long_input(variant: Variant, rows: int, T: int) -> Tensor:
    """Draw an input [rows, T, dim], longer than that of `variant.make_input`."""
    generator = make_named_generator(0, "long")
    return torch.randn(rows, T, variant.dim, dtype=torch.float64, generator=generator)


def _choose_positions(variant: Variant) -> Tensor:
    """Choose the first positions, and those around every constant of masks and scores and its multiples."""
    parts = [variant.attention.get(key) or {} for key in ("masks", "scores")]
    positions = {
        constant * multiple + offset
        for constant in find_constants(parts)
        for multiple in (1, 2, 3)
        for offset in range(-2, 4)
    }
    return torch.tensor(sorted(positions.union(range(DENSE_POSITIONS)) - set(range(-9, 0))))


def _evaluate_part(part: Part, q: Tensor, kv: Tensor, heads: Tensor, score: Tensor | None = None) -> Tensor:
    """Evaluate a mask, or a score on these scores, at positions q and kv: [BATCH_ROWS, heads, T, S]."""
    b = torch.arange(BATCH_ROWS)[:, None, None, None]
    indices = (b, heads[None, :, None, None], q[None, None, :, None], kv[None, None, None])
    values = part(*indices) if score is None else part(score, *indices)
    return values.detach().expand(BATCH_ROWS, len(heads), len(q), len(kv))


def _list_masks_and_scores(variant: Variant, heads: Tensor) -> list[tuple[str, Any, Tensor | None]]:
    """List the mask and the scores with random inputs: [BATCH_ROWS, heads, SMALL_LENGTH, SMALL_LENGTH]."""
    shape = (BATCH_ROWS, len(heads), SMALL_LENGTH, SMALL_LENGTH)
    random_scores = torch.randn(shape, dtype=torch.float64, generator=make_named_generator(2, "scores"))
    layer = variant.prototype
    masks = [] if layer.mask is None else [("the mask", layer.mask, None)]
    scores = [
        (getattr(score, "__name__", type(score).__name__), score, random_scores) for score in layer.scores
    ]
    return [*masks, *scores]


def _make_head_indices(variant: Variant) -> Tensor:
    return torch.arange(variant.prototype.heads.n_heads)


@torch.no_grad()
def check_future_visibility_is_declared(variant: Variant) -> None:
    """19. A mask shows no head a later key, at any position, unless it declares that it sees the future; and
    it shows no more than its declared prefix and window.
    """
    mask: Any = variant.prototype.mask
    if mask is None:
        return
    positions = _choose_positions(variant)
    capabilities = Capabilities.from_part(mask)
    window = capabilities.visible_window
    distance = positions[:, None] - positions
    for head in _make_head_indices(variant).split(1):
        visible = _evaluate_part(mask, positions, positions, head)
        if not capabilities.sees_future:
            _require_none_visible(
                visible & (distance < 0),
                positions,
                head,
                "a later token: hide it, as with kv_idx <= q_idx, or declare sees_future if that is intended",
            )
        elif capabilities.prefix is not None:
            _require_none_visible(
                visible & (distance < 0) & (positions >= capabilities.prefix),
                positions,
                head,
                f"a later token outside its declared prefix={capabilities.prefix}",
            )
        if window is not None:
            outside_window = (distance >= window[0]) & (positions >= window[1])
            _require_none_visible(
                visible & outside_window,
                positions,
                head,
                f"outside its declared visible_window={window}",
            )


def _require_none_visible(forbidden: Tensor, positions: Tensor, head: Tensor, reason: str) -> None:
    for row, _, query, key in forbidden.nonzero().tolist()[:1]:
        pair = f"the token at {int(positions[query])} sees the one at {int(positions[key])}"
        raise AssertionError(f"{pair} (head {int(head)}, row {row}), {reason}")


@torch.no_grad()
def check_masks_and_scores_depend_on_positions(variant: Variant) -> None:
    """20. The value of a mask or score for a query and a key does not depend on the other tokens or their
    order: it depends on positions, not on slots, and each score on itself alone.
    """
    heads = _make_head_indices(variant)
    positions = torch.arange(SMALL_LENGTH)
    order = torch.randperm(SMALL_LENGTH, generator=make_named_generator(3, "order"))
    hint = "it depends on the slot or on other tokens: use q_idx and kv_idx, which padding and caches shift"
    for name, part, score in _list_masks_and_scores(variant, heads):
        first_values, second_values = (
            _evaluate_part(part, positions, positions, heads, score) for _ in range(2)
        )
        assert torch.equal(first_values, second_values), f"{name} returns a different value when called again"
        for subset in (order, order[: SMALL_LENGTH - 4]):
            _compare_reordered(name, part, score, first_values, subset, heads, hint)


def _compare_reordered(
    name: str, part: Part, score: Tensor | None, expected: Tensor, subset: Tensor, heads: Tensor, hint: str
) -> None:
    selected_scores = None if score is None else score[:, :, subset][..., subset]
    actual = _evaluate_part(part, subset, subset, heads, selected_scores)
    difference = (actual.double() - expected[:, :, subset][..., subset].double()).abs().nan_to_num(0.0)
    for _, head, query, key in (difference > 1e-12).nonzero().tolist()[:1]:
        pair = f"token {int(subset[query])} and key {int(subset[key])}, head {head},"
        size = f" (off by {difference.max().item():.2g})"
        raise AssertionError(f"{name} changes for {pair} among other positions{size}: {hint}")


@torch.no_grad()
def check_bias_is_additive(variant: Variant) -> None:
    """20. A `Bias` only adds its `compute_bias`, since a fused kernel applies only that."""
    heads = _make_head_indices(variant)
    positions = torch.arange(SMALL_LENGTH)
    for name, part, score in _list_masks_and_scores(variant, heads):
        if isinstance(part, Bias) and score is not None:
            expected = score + _evaluate_part(part.compute_bias, positions, positions, heads).double()
            assert_close(
                _evaluate_part(part, positions, positions, heads, score),
                expected,
                f"{name}, forward and score + bias",
            )


@torch.no_grad()
def check_shift_invariance(variant: Variant) -> None:
    """8. If masks and scores depend on the distance and RoPE is applied, a shift of all positions changes
    nothing.
    """
    layer = variant.make_layer()
    x = variant.make_input()
    positions = torch.arange(variant.length)
    for shift in SHIFTS:  # float32 angles need a tolerance proportional to the shift
        shifted = layer(x, positions=positions[None] + shift)
        assert_close(shifted, layer(x), f"shifted by {shift} positions", 1e-6 * shift)


@torch.no_grad()
def is_relative(variant: Variant) -> bool:
    """Whether masks and scores depend only on the distance, and RoPE does not depend on the length."""
    if not variant.is_attention or variant.prototype.changes_with_length:
        return False
    if variant.prototype.selection is not None:  # blocks begin at absolute positions
        return False
    if not Capabilities.from_part(variant.prototype.rotary).is_relative:
        return False
    positions = torch.arange(SMALL_LENGTH)
    for _, part, score in _list_masks_and_scores(variant, heads := _make_head_indices(variant)):
        try:
            values, shifted_values = (
                _evaluate_part(part, shifted_positions, shifted_positions, heads, score).double()
                for shifted_positions in (positions, positions + SHIFTS[0])
            )
        except Exception:  # other invariants report the error
            return False
        if not torch.allclose(values, shifted_values, rtol=0, atol=1e-9, equal_nan=True):
            return False
    return True


def has_bias(variant: Variant) -> bool:
    """Whether a score declares that it only adds a bias."""
    return variant.is_attention and any(isinstance(score, Bias) for score in variant.prototype.scores)
