"""Several masks as one, and whether a mask looks ahead."""

from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Mask, Unsupported

TOO_EARLY = (
    "an earlier token should have seen these later ones: use decode=none, or a first chunk as long as "
    "the prefix"
)


def every(*masks: Mask | None) -> Mask | None:
    """The conjunction. Of none it is `None`; of one it is that one, so that a kernel can still recognise
    `causal`.
    """
    parts = tuple(mask for mask in masks if mask is not None)
    if len(parts) < 2:
        return parts[0] if parts else None
    return Conjunction(parts)


@final
class Conjunction:
    """A query sees a key where all parts show it. What it declares is worked out when it is asked for: most
    are of one pass, and nobody asks.
    """

    def __init__(self, parts: tuple[Mask, ...]) -> None:
        self.parts = parts

    def __call__(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """Where all of them answer True."""
        visible = self.parts[0](b, h, q_pos, kv_pos)
        for part in self.parts[1:]:
            visible = visible & part(b, h, q_pos, kv_pos)
        return visible

    @property
    def looks_ahead(self) -> bool:
        """Where one part shows no later key, all together show none."""
        return all(Capabilities.of(part).looks_ahead for part in self.parts)

    @property
    def within(self) -> tuple[int, int] | None:
        """What one part is within, all are together: the tightest."""
        declared = [Capabilities.of(part).within for part in self.parts]
        return min((within for within in declared if within is not None), key=sum, default=None)

    @property
    def prefix(self) -> int | None:
        """The prefix that all parts show: a part that does not look ahead shows none. None where each part
        that looks ahead shows more than a prefix.
        """
        declared = [Capabilities.of(part) for part in self.parts]
        prefixes = [each.prefix if each.looks_ahead else 0 for each in declared]
        return min((prefix for prefix in prefixes if prefix is not None), default=None)


def seen(mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor, heads: int) -> Tensor:
    """[B, heads, T, S]: whether the query at a position sees the key at another, by the mask alone."""
    q_pos = queries_BT[:, None, :, None]
    kv_pos = keys_BS[:, None, None, :]
    shape = (max(len(queries_BT), len(keys_BS)), heads, queries_BT.shape[1], keys_BS.shape[1])
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=queries_BT.device)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=queries_BT.device)
    h = torch.arange(heads, device=queries_BT.device)[None, :, None, None]
    return mask(zero, h, q_pos, kv_pos).expand(shape)


def looks_ahead(mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor, heads: int) -> bool:
    """Whether a query at one of these positions sees a later key at one of those; padding has no say."""
    q_pos = queries_BT[:, None, :, None]
    kv_pos = keys_BS[:, None, None, :]
    return bool((seen(mask, queries_BT, keys_BS, heads) & (q_pos >= 0) & (q_pos < kv_pos)).any())


@lru_cache(maxsize=4096)
def step_looks_ahead(mask: Mask | None, past: int, new: int, heads: int) -> bool:
    """The same for positions 0..past-1 and the `new` that follow; remembered: decoding asks at every step."""
    return looks_ahead(mask, torch.arange(past)[None], torch.arange(past, past + new)[None], heads)


def answers_too_early(mask: Mask | None, past: int, total: int, heads: int) -> bool:
    """Whether a text that goes on token by token from `past` to `total` ever gives a query, once it has been
    answered, a key that it should have seen.
    """
    keys = torch.arange(past, total).split(256)
    queries = torch.arange(total)[None]
    return any(looks_ahead(mask, queries[:, : int(part[-1])], part[None], heads) for part in keys)


def refuse_answers_too_early(
    mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor, heads: int, past: int | None
) -> None:
    """Unsupported where the mask let a cached query see one of the new keys. `past`: the tokens before them
    where positions simply go on, which is remembered.
    """
    new = queries_BT.shape[1]
    if past is None:
        early = looks_ahead(mask, keys_BS[:, :-new], queries_BT, heads)
    else:
        early = step_looks_ahead(mask, past, new, heads)
    if early:
        raise Unsupported(TOO_EARLY)
