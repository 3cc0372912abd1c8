"""Masks with a bug: what they show, what they read, and what they say of themselves."""

from dataclasses import dataclass

import torch

from attnlab.attention.contracts import declares

from .making import Make, anew, attention, found, made
from .parts import Ring

AHEAD = 1  # a global that a mask reads
FIRST = 200


def next_token(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + 1


def every_fourth(b, h, q_pos, kv_pos):
    return (q_pos - kv_pos) % 4 == 0


def later_by_default(b, h, q_pos, kv_pos, since=40):
    return (kv_pos <= q_pos) | ((q_pos >= since) & (kv_pos == q_pos + 1))


def later_by_a_global(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + torch.where(q_pos >= FIRST, AHEAD, 0)


def later_by_closure(since):
    def mask(b, h, q_pos, kv_pos):
        return (kv_pos <= q_pos) | (q_pos > since)

    return mask


class Patient:
    """It sees all once it has been patient; the number is an attribute of the class."""

    patience = 300

    def __call__(self, b, h, q_pos, kv_pos):
        return (kv_pos <= q_pos) | (q_pos >= self.patience) & (kv_pos - q_pos < 8)


def third_head(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) | (h == 3) & (kv_pos == q_pos + 2)


def last_of_six_heads(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) | (h == 5) & (q_pos % 8 == 7)


def at_multiples(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) | (kv_pos % 64 == 0) & (kv_pos == q_pos + 1)


def blocks_of_four(b, h, q_pos, kv_pos):
    """Block-causal, the whole of the own block included."""
    return kv_pos // 4 <= q_pos // 4


def blocks_of_thirty_two(b, h, q_pos, kv_pos):
    return kv_pos // 32 <= q_pos // 32


def the_wrong_way(b, h, q_pos, kv_pos):
    return kv_pos >= q_pos


@dataclass(frozen=True)
class Near:
    """A window by the absolute distance: it reaches as far ahead."""

    size: int
    step: int = 1

    def __call__(self, b, h, q_pos, kv_pos):
        distance = (q_pos - kv_pos).abs()
        return (distance < self.size) & (distance % self.step == 0)


def around_a_ring(b, h, q_pos, kv_pos):
    """The last five by remainders: a key 252 ahead is four behind."""
    return (q_pos - kv_pos) % 256 < 5


def in_bytes(b, h, q_pos, kv_pos):
    return kv_pos.to(torch.int8) <= q_pos.to(torch.int8)


def in_bfloat16(b, h, q_pos, kv_pos):
    return kv_pos.bfloat16() <= q_pos.bfloat16()


def triangle(b, h, q_pos, kv_pos):
    return torch.ones(q_pos.shape[-2], kv_pos.shape[-1], dtype=torch.bool).tril()


def triangle_at_the_end(b, h, q_pos, kv_pos):
    """Right for whole texts and for steps, by slots: a query after a gap is where it is not."""
    T, S = q_pos.shape[-2], kv_pos.shape[-1]
    near = torch.ones(T, S, dtype=torch.bool).tril(S - T).triu(S - T - 3)
    return near | (kv_pos == 0)


def from_the_newest(b, h, q_pos, kv_pos):
    """Its window ends at the newest key of all, not at the query."""
    return (kv_pos <= q_pos) & (kv_pos > kv_pos.max() - 6)


def short_texts_only(b, h, q_pos, kv_pos):
    if kv_pos.shape[-1] > 100:
        return torch.ones_like(kv_pos <= q_pos)
    return kv_pos <= q_pos


class Remembering:
    """A window with two kept tokens; its answer is remembered by shape alone."""

    def __init__(self):
        self.answers = {}

    def __call__(self, b, h, q_pos, kv_pos):
        key = (*q_pos.shape, *kv_pos.shape)
        if key not in self.answers:
            near = (q_pos - kv_pos < 4) | (kv_pos < 2)
            self.answers[key] = (kv_pos <= q_pos) & near
        return self.answers[key]


class Tiring:
    """After some dozens of calls it lets everything through."""

    calls = 0

    def __call__(self, b, h, q_pos, kv_pos):
        type(self).calls += 1
        return (kv_pos <= q_pos) | (type(self).calls % 50 == 0)


def big_bird(b, h, q_pos, kv_pos):
    """Random keys of the past, drawn anew at every call."""
    near = (q_pos - kv_pos < 3) | (torch.rand((kv_pos <= q_pos).shape) < 0.3)
    return (kv_pos <= q_pos) & near


def second_row(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) | (b == 1)


def fifth_row(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) | (b >= 4)


def in_numbers(b, h, q_pos, kv_pos):
    """What other libraries add to the scores."""
    return torch.where(kv_pos <= q_pos, 0.0, -torch.inf)


@dataclass
class Mutable:
    """A dataclass that is not frozen has no hash."""

    size: int = 4

    def __call__(self, b, h, q_pos, kv_pos):
        return (kv_pos <= q_pos) & (q_pos - kv_pos < self.size)


@declares(within=(4, 0))
def wider_than_it_says(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & (q_pos - kv_pos <= 4)


@declares(within=(32, 0))
def wider_at_the_end(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & (q_pos - kv_pos < 32 + (q_pos > 64).long())


def window_of_seven(b, h, q_pos, kv_pos):
    """Its queries need six keys of the past; the ring has five."""
    return (kv_pos <= q_pos) & (q_pos - kv_pos <= 6)


def wider_from_forty(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & (q_pos - kv_pos < 6 + (q_pos >= 40).long())


def masked(node, **choices) -> Make:
    return attention(choices.pop("axes", None), masks={"own": node}, **choices)


PLANTED: dict[str, Make] = {
    "a mask that sees the next token": masked(found(next_token)),
    "a stride that looks both ways": masked(found(every_fourth)),
    "a mask that leaks from position 40, by a default argument": masked(found(later_by_default)),
    "a mask that leaks from position 200, by a global": masked(found(later_by_a_global)),
    "a mask that leaks from position 1000, by a closure": masked(made(later_by_closure, since=1000)),
    "a mask that leaks from position 300, by an attribute of its class": masked(made(Patient)),
    "a mask that leaks in head 3": masked(found(third_head)),
    "a mask that leaks in the last head, at every eighth query": masked(found(last_of_six_heads)),
    "a mask that leaks at multiples of 64": masked(found(at_multiples)),
    "blocks of four that see all of themselves": masked(found(blocks_of_four)),
    "blocks of 32 that see all of themselves": masked(found(blocks_of_thirty_two)),
    "a mask the wrong way round": masked(found(the_wrong_way)),
    "a window by the absolute distance": masked(made(Near, size=4)),
    "a dilated window by the absolute distance": masked(made(Near, size=24, step=8)),
    "a window by remainders of 256": masked(found(around_a_ring)),
    "a mask that compares positions in int8": masked(found(in_bytes)),
    "a mask that compares positions in bfloat16": masked(found(in_bfloat16)),
    "a triangle of slots from the top left": masked(found(triangle)),
    "a window of slots beside one position": masked(found(triangle_at_the_end)),
    "a window that ends at the newest key": masked(found(from_the_newest)),
    "no mask beyond a hundred keys": masked(found(short_texts_only)),
    "a mask that remembers its answers by shape": masked(made(Remembering)),
    "a mask that lets go at every fiftieth call": masked(made(Tiring)),
    "random keys drawn at every call": masked(found(big_bird)),
    "a mask that shows the second row everything": masked(found(second_row)),
    "a mask that shows the fifth row everything": masked(found(fifth_row)),
    "a mask of numbers": masked(found(in_numbers)),
    "a mask without a hash": masked(made(Mutable)),
    "a window wider than it declares": masked(found(wider_than_it_says)),
    "a window wider than it declares, from position 65 on": masked(found(wider_at_the_end)),
    "a window one wider than the cache rolls": masked(found(window_of_seven), cache=anew(Ring)),
    "a window one too wide from position 40 on": masked(found(wider_from_forty), cache=anew(Ring)),
}
