"""Several masks as one, and whether a mask looks ahead."""

from functools import lru_cache

import torch
from torch import Tensor

from attnlab.attention.contracts import Mask, Unsupported, declared, declares

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

    @declares(
        looks_ahead=all(declared(part, Mask, "looks_ahead") for part in parts),
        within=_tightest(parts),
        prefix=_shortest_prefix(parts),
    )
    def every_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        visible = parts[0](b, h, q_pos, kv_pos)
        for part in parts[1:]:
            visible = visible & part(b, h, q_pos, kv_pos)
        return visible

    return every_mask


def _tightest(parts: tuple[Mask, ...]) -> tuple[int, int] | None:
    """What one part is within, all are together. A plain loop: it is traced by torch.compile."""
    tightest = None
    for part in parts:
        within = declared(part, Mask, "within")
        if within is not None and (tightest is None or sum(within) < sum(tightest)):
            tightest = within
    return tightest


def _shortest_prefix(parts: tuple[Mask, ...]) -> int | None:
    """The prefix that all parts show: a part that does not look ahead shows none. None where each part that
    looks ahead shows more than a prefix. A plain loop: it is traced by torch.compile.
    """
    shortest = None
    for part in parts:
        prefix = declared(part, Mask, "prefix") if declared(part, Mask, "looks_ahead") else 0
        if prefix is not None and (shortest is None or prefix < shortest):
            shortest = prefix
    return shortest


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
