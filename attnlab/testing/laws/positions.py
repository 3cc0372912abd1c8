"""Laws of masks and scores by themselves: they are asked about positions, in any order and number, and what a
mask shows of the future it declares.
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
from attnlab.testing.laws.variant import Variant, named_generator, same

Part = Callable[..., Tensor]
LENGTH = 216
LONG = 1024  # of a long text, and how long it may get
DENSE = 160  # positions from 0 on that are all asked about
FARTHEST = 2**24  # of the constants that a part's source is searched for
ROWS = 2
SMALL = 23
SHIFTS = (101, 1020)


def constants(config: Any) -> set[int]:
    """Whole numbers in a part of a config, and in the source of a user's modules that it names: places where
    something may begin.
    """
    if isinstance(config, Mapping):
        found = set().union(*map(constants, config.values()))
        names = [config[key] for key in ("_target_", "path") if isinstance(config.get(key), str)]
        return found.union(*(_in_module(inspect.getmodule(get_object(name))) for name in names))
    if isinstance(config, list | tuple):
        return set().union(*map(constants, config))
    return {config} if type(config) is int and 1 < config <= FARTHEST else set()


@lru_cache(maxsize=64)
def _in_module(module: ModuleType | None) -> frozenset[int]:
    if module is None or module.__name__.split(".")[0] in ("attnlab", "torch", "hydra"):
        return frozenset()
    try:
        return frozenset(_in_code(compile(inspect.getsource(module), module.__name__, "exec")))
    except (OSError, TypeError, SyntaxError):  # there is no source to read
        return frozenset()


def _in_code(code: CodeType) -> Iterator[int]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _in_code(value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and number == number // 1 and 1 < number <= FARTHEST:
                yield int(number)


def long(*parts: Any) -> tuple[list[int], int]:
    """Those constants of some parts that a long text reaches, and the tokens T of one that goes past them."""
    places = sorted(n for n in constants(parts) if n <= LONG)
    return places, max([LENGTH, *places]) + 8


def drawn(variant: Variant, rows: int, T: int) -> Tensor:
    """[rows, T, dim]: a text longer than `variant.x`."""
    generator = named_generator(0, "long")
    return torch.randn(rows, T, variant.dim, dtype=torch.float64, generator=generator)


def _asked(variant: Variant) -> Tensor:
    """All positions at first, then those around every constant of the masks and scores, and its doubles."""
    parts = [variant.attention.get(key) or {} for key in ("masks", "scores")]
    places = {c * times + d for c in constants(parts) for times in (1, 2, 3) for d in range(-2, 4)}
    return torch.tensor(sorted(places.union(range(DENSE)) - set(range(-9, 0))))


def _answers(part: Part, q: Tensor, kv: Tensor, heads: Tensor, score: Tensor | None = None) -> Tensor:
    """[ROWS, heads, T, S]: what a mask, or a score of these scores, says about positions q and kv."""
    b = torch.arange(ROWS)[:, None, None, None]
    where = (b, heads[None, :, None, None], q[None, None, :, None], kv[None, None, None])
    said = part(*where) if score is None else part(score, *where)
    return said.detach().expand(ROWS, len(heads), len(q), len(kv))


def _parts(variant: Variant, heads: Tensor) -> list[tuple[str, Any, Tensor | None]]:
    """The mask, and the scores with some to change: [ROWS, heads, SMALL, SMALL]."""
    shape = (ROWS, len(heads), SMALL, SMALL)
    drawn = torch.randn(shape, dtype=torch.float64, generator=named_generator(2, "scores"))
    layer = variant.specimen
    masks = [] if layer.mask is None else [("the mask", layer.mask, None)]
    scores = [(getattr(score, "__name__", type(score).__name__), score, drawn) for score in layer.scores]
    return [*masks, *scores]


def _heads(variant: Variant) -> Tensor:
    return torch.arange(variant.specimen.heads.n_heads)


@torch.no_grad()
def check_look_ahead_is_declared(variant: Variant) -> None:
    """19. A mask that shows no head a later key, however far on, or declares that it looks ahead; and none
    shows more than it declares to be within.
    """
    mask: Any = variant.specimen.mask
    if mask is None:
        return
    where = _asked(variant)
    declared = Capabilities.of(mask)
    within = declared.within
    distance = where[:, None] - where
    for head in _heads(variant).split(1):
        visible = _answers(mask, where, where, head)
        if not declared.looks_ahead:
            _refuse(visible & (distance < 0), where, head, "a later one: declare looks_ahead, if it is meant")
        if within is not None:
            beyond = (distance >= within[0]) & (where >= within[1])
            _refuse(visible & beyond, where, head, f"which is not within={within} that it declares")


def _refuse(wrong: Tensor, where: Tensor, head: Tensor, why: str) -> None:
    for row, _, query, key in wrong.nonzero().tolist()[:1]:
        seen = f"the token at {int(where[query])} sees the one at {int(where[key])}"
        raise AssertionError(f"{seen} (head {int(head)}, row {row}), {why}")


@torch.no_grad()
def check_masks_and_scores_answer_by_position(variant: Variant) -> None:
    """20. Masks and scores say the same of a query and a key whichever others they are asked about with, in
    whatever order: they go by position, not by slot, and score by score.
    """
    heads = _heads(variant)
    everywhere = torch.arange(SMALL)
    order = torch.randperm(SMALL, generator=named_generator(3, "order"))
    told = "it goes by slot or by its neighbours: use q_pos and kv_pos, which padding and caches shift"
    for name, part, score in _parts(variant, heads):
        whole, again = (_answers(part, everywhere, everywhere, heads, score) for _ in range(2))
        assert torch.equal(whole, again), f"{name} says something else when it is asked again"
        for some in (order, order[: SMALL - 4]):
            _compare(name, part, score, whole, some, heads, told)


def _compare(
    name: str, part: Part, score: Tensor | None, whole: Tensor, some: Tensor, heads: Tensor, told: str
) -> None:
    picked = None if score is None else score[:, :, some][..., some]
    got = _answers(part, some, some, heads, picked)
    off = (got.double() - whole[:, :, some][..., some].double()).abs().nan_to_num(0.0)
    for _, head, query, key in (off > 1e-12).nonzero().tolist()[:1]:
        pair = f"token {int(some[query])} and key {int(some[key])}, head {head},"
        size = f" (off by {off.max().item():.2g})"
        raise AssertionError(f"{name} says another thing of {pair} among other positions{size}: {told}")


@torch.no_grad()
def check_bias_is_what_is_added(variant: Variant) -> None:
    """20. A `Bias` adds its `bias` and does nothing else, since a fused kernel takes only that."""
    heads = _heads(variant)
    where = torch.arange(SMALL)
    for name, part, score in _parts(variant, heads):
        if isinstance(part, Bias) and score is not None:
            added = score + _answers(part.bias, where, where, heads).double()
            same(_answers(part, where, where, heads, score), added, f"{name}, forward and score + bias")


@torch.no_grad()
def check_shift_changes_nothing(variant: Variant) -> None:
    """8. Where masks and scores go by the distance and positions are turned, moving all positions on by the
    same number changes nothing.
    """
    layer = variant.layer()
    x = variant.x()
    where = torch.arange(variant.length)
    for shift in SHIFTS:  # angles in float32 lose as much
        moved = layer(x, positions=where[None] + shift)
        same(moved, layer(x), f"{shift} positions further on", 1e-6 * shift)


@torch.no_grad()
def is_relative(variant: Variant) -> bool:
    """Attention whose masks and scores go by the distance, and whose rotation does not follow the length."""
    if not variant.is_attention or variant.specimen.changes_with_length:
        return False
    if variant.specimen.selection is not None:  # blocks begin at places
        return False
    near = torch.arange(SMALL)
    for _, part, score in _parts(variant, heads := _heads(variant)):
        try:
            here, there = (
                _answers(part, place, place, heads, score).double() for place in (near, near + SHIFTS[0])
            )
        except Exception:  # the laws that ask it will tell
            return False
        if not torch.allclose(here, there, rtol=0, atol=1e-9, equal_nan=True):
            return False
    return True


def has_bias(variant: Variant) -> bool:
    """A score that says it only adds."""
    return variant.is_attention and any(isinstance(score, Bias) for score in variant.specimen.scores)
