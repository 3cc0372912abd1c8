"""Mutant masks: wrong visibility, wrong inputs, wrong declarations."""

from dataclasses import dataclass

import torch

from attnlab.attention.contracts import declare_capabilities

from .builders import (
    VariantFactory,
    make_attention_factory,
    make_function_node,
    make_object_node,
    make_partial_node,
)
from .parts import RingCache

AHEAD = 1  # globals read by a mask
FIRST = 200


def next_token(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + 1


def every_fourth(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx) % 4 == 0


def later_by_default(b, h, q_idx, kv_idx, since=40):
    return (kv_idx <= q_idx) | ((q_idx >= since) & (kv_idx == q_idx + 1))


def later_by_a_global(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + torch.where(q_idx >= FIRST, AHEAD, 0)


def later_by_closure(since):
    def mask(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) | (q_idx > since)

    return mask


class LateLeak:
    """Shows eight later tokens from position 300 on; the number is a class attribute."""

    patience = 300

    def __call__(self, b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) | (q_idx >= self.patience) & (kv_idx - q_idx < 8)


def third_head(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) | (h == 3) & (kv_idx == q_idx + 2)


def last_of_six_heads(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) | (h == 5) & (q_idx % 8 == 7)


def at_multiples(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) | (kv_idx % 64 == 0) & (kv_idx == q_idx + 1)


def blocks_of_four(b, h, q_idx, kv_idx):
    """Block-causal: a query sees all of its block."""
    return kv_idx // 4 <= q_idx // 4


def blocks_of_thirty_two(b, h, q_idx, kv_idx):
    return kv_idx // 32 <= q_idx // 32


def anticausal(b, h, q_idx, kv_idx):
    return kv_idx >= q_idx


@dataclass(frozen=True)
class SymmetricWindow:
    """A window by absolute distance, which extends as far into the future."""

    size: int
    step: int = 1

    def __call__(self, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).abs()
        return (distance < self.size) & (distance % self.step == 0)


def around_a_ring(b, h, q_idx, kv_idx):
    """The last five tokens, modulo 256: a key 252 ahead counts as four behind."""
    return (q_idx - kv_idx) % 256 < 5


def in_bytes(b, h, q_idx, kv_idx):
    return kv_idx.to(torch.int8) <= q_idx.to(torch.int8)


def in_bfloat16(b, h, q_idx, kv_idx):
    return kv_idx.bfloat16() <= q_idx.bfloat16()


def triangle(b, h, q_idx, kv_idx):
    return torch.ones(q_idx.shape[-2], kv_idx.shape[-1], dtype=torch.bool).tril()


def triangle_at_the_end(b, h, q_idx, kv_idx):
    """A window by slots, correct for whole sequences and single steps but not after a gap in positions."""
    T, S = q_idx.shape[-2], kv_idx.shape[-1]
    recent = torch.ones(T, S, dtype=torch.bool).tril(S - T).triu(S - T - 3)
    return recent | (kv_idx == 0)


def from_the_newest(b, h, q_idx, kv_idx):
    """A window that ends at the newest key instead of the query."""
    return (kv_idx <= q_idx) & (kv_idx > kv_idx.max() - 6)


def short_texts_only(b, h, q_idx, kv_idx):
    if kv_idx.shape[-1] > 100:
        return torch.ones_like(kv_idx <= q_idx)
    return kv_idx <= q_idx


class ShapeKeyedMask:
    """A window with two sink tokens whose result is cached by shape alone."""

    def __init__(self):
        self.answers = {}

    def __call__(self, b, h, q_idx, kv_idx):
        key = (*q_idx.shape, *kv_idx.shape)
        if key not in self.answers:
            is_visible = (q_idx - kv_idx < 4) | (kv_idx < 2)
            self.answers[key] = (kv_idx <= q_idx) & is_visible
        return self.answers[key]


class FiftiethCallLeak:
    """Shows everything at every fiftieth call."""

    calls = 0

    def __call__(self, b, h, q_idx, kv_idx):
        type(self).calls += 1
        return (kv_idx <= q_idx) | (type(self).calls % 50 == 0)


def big_bird(b, h, q_idx, kv_idx):
    """Random past keys, drawn anew at every call."""
    is_visible = (q_idx - kv_idx < 3) | (torch.rand((kv_idx <= q_idx).shape) < 0.3)
    return (kv_idx <= q_idx) & is_visible


def second_row(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) | (b == 1)


def fifth_row(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) | (b >= 4)


def in_numbers(b, h, q_idx, kv_idx):
    """An additive mask, as other libraries use."""
    return torch.where(kv_idx <= q_idx, 0.0, -torch.inf)


@dataclass
class Mutable:
    """A dataclass without a hash, since it is not frozen."""

    size: int = 4

    def __call__(self, b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (q_idx - kv_idx < self.size)


@declare_capabilities(visible_window=(4, 0))
def wider_than_declared(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & (q_idx - kv_idx <= 4)


@declare_capabilities(visible_window=(32, 0))
def wider_at_the_end(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & (q_idx - kv_idx < 32 + (q_idx > 64).long())


def window_of_seven(b, h, q_idx, kv_idx):
    """Needs six past keys; the ring cache holds five."""
    return (kv_idx <= q_idx) & (q_idx - kv_idx <= 6)


def wider_from_forty(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & (q_idx - kv_idx < 6 + (q_idx >= 40).long())


def with_mask(node, **choices) -> VariantFactory:
    return make_attention_factory(choices.pop("axes", None), masks={"own": node}, **choices)


MUTANTS: dict[str, VariantFactory] = {
    "a mask that sees the next token": with_mask(make_function_node(next_token)),
    "a stride that looks both ways": with_mask(make_function_node(every_fourth)),
    "a mask that leaks from position 40, by a default argument": with_mask(
        make_function_node(later_by_default)
    ),
    "a mask that leaks from position 200, by a global": with_mask(make_function_node(later_by_a_global)),
    "a mask that leaks from position 1000, by a closure": with_mask(
        make_object_node(later_by_closure, since=1000)
    ),
    "a mask that leaks from position 300, by an attribute of its class": with_mask(
        make_object_node(LateLeak)
    ),
    "a mask that leaks in head 3": with_mask(make_function_node(third_head)),
    "a mask that leaks in the last head, at every eighth query": with_mask(
        make_function_node(last_of_six_heads)
    ),
    "a mask that leaks at multiples of 64": with_mask(make_function_node(at_multiples)),
    "blocks of four that see all of themselves": with_mask(make_function_node(blocks_of_four)),
    "blocks of 32 that see all of themselves": with_mask(make_function_node(blocks_of_thirty_two)),
    "a mask the wrong way round": with_mask(make_function_node(anticausal)),
    "a window by the absolute distance": with_mask(make_object_node(SymmetricWindow, size=4)),
    "a dilated window by the absolute distance": with_mask(
        make_object_node(SymmetricWindow, size=24, step=8)
    ),
    "a window by remainders of 256": with_mask(make_function_node(around_a_ring)),
    "a mask that compares positions in int8": with_mask(make_function_node(in_bytes)),
    "a mask that compares positions in bfloat16": with_mask(make_function_node(in_bfloat16)),
    "a triangle of slots from the top left": with_mask(make_function_node(triangle)),
    "a window of slots beside one position": with_mask(make_function_node(triangle_at_the_end)),
    "a window that ends at the newest key": with_mask(make_function_node(from_the_newest)),
    "no mask beyond a hundred keys": with_mask(make_function_node(short_texts_only)),
    "a mask that remembers its answers by shape": with_mask(make_object_node(ShapeKeyedMask)),
    "a mask that lets go at every fiftieth call": with_mask(make_object_node(FiftiethCallLeak)),
    "random keys drawn at every call": with_mask(make_function_node(big_bird)),
    "a mask that shows the second row everything": with_mask(make_function_node(second_row)),
    "a mask that shows the fifth row everything": with_mask(make_function_node(fifth_row)),
    "a mask of numbers": with_mask(make_function_node(in_numbers)),
    "a mask without a hash": with_mask(make_object_node(Mutable)),
    "a window wider than it declares": with_mask(make_function_node(wider_than_declared)),
    "a window wider than it declares, from position 65 on": with_mask(make_function_node(wider_at_the_end)),
    "a window one wider than the cache rolls": with_mask(
        make_function_node(window_of_seven), cache=make_partial_node(RingCache)
    ),
    "a window one too wide from position 40 on": with_mask(
        make_function_node(wider_from_forty), cache=make_partial_node(RingCache)
    ),
}
