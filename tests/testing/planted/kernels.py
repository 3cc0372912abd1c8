"""Kernels with a bug: most are the reference with one thing done wrong."""

import torch
import torch.nn.functional as F

from attnlab.attention.contracts import Attended, Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa

from .making import Make, attention, found, made


def open_steps(q, k, v, *, mask, **rest):
    """A step of one query sees all that is held, it says."""
    return eager(q, k, v, mask=None if q.shape[2] == 1 else mask, **rest)


def aligned_is_causal(q, k, v, *, aligned, mask, scale, **rest):
    if aligned and q.shape[2] == k.shape[2]:
        return Attended(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True))
    return eager(q, k, v, aligned=aligned, mask=mask, scale=scale, **rest)


def own_scale(q, k, v, *, scale, **rest):
    """Always by the root of the width that it sees."""
    return eager(q, k, v, scale=q.shape[-1] ** -0.5, **rest)


def scaled_twice(q, k, v, *, scale, **rest):
    return eager(q * scale, k * scale, v, scale=1.0, **rest)


def first_scale(q, k, v, *, scale, **rest):
    """Scores before the scale: what is added is scaled too."""
    scores = [lambda s, *at, f=f: f(s / scale, *at) * scale for f in rest.pop("scores")]
    return eager(q, k, v, scale=scale, scores=scores, **rest)


def scores_last(q, k, v, *, q_pos, kv_pos, mask, scores, scale, dropout=0.0, need=(), **rest):
    """The mask first, then the scores, which may lift what was hidden."""
    return by_hand(q, k, v, q_pos, kv_pos, mask, scores, scale, need, mask_last=False)


def softmax_over_queries(q, k, v, *, q_pos, kv_pos, mask, scores, scale, dropout=0.0, need=(), **rest):
    return by_hand(q, k, v, q_pos, kv_pos, mask, scores, scale, need, dim=-2)


def forty_below(q, k, v, *, q_pos, kv_pos, mask, scores, scale, dropout=0.0, need=(), **rest):
    """Hidden scores are minus forty: a weight of 1e-18 is left."""
    return by_hand(q, k, v, q_pos, kv_pos, mask, scores, scale, need, hidden=-40.0)


def far_below(q, k, v, *, q_pos, kv_pos, mask, scores, scale, dropout=0.0, need=(), **rest):
    """Hidden scores are finite, so a query that sees nothing sees all alike."""
    return by_hand(q, k, v, q_pos, kv_pos, mask, scores, scale, need, hidden=-1e9)


def no_maximum(q, k, v, *, q_pos, kv_pos, mask, scores, scale, dropout=0.0, need=(), **rest):
    """The exponents as they are: a score of 800 is infinite."""
    return by_hand(q, k, v, q_pos, kv_pos, mask, scores, scale, need, top=False)


def by_hand(
    q, k, v, q_pos, kv_pos, mask, scores, scale, need, mask_last=True, dim=-1, hidden=-torch.inf, top=True
):
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
    score, seen = q @ k.mT * scale, q_pos.new_ones(1, 1, 1, 1).bool()
    if mask is not None:
        seen = mask(b, h, q_pos, kv_pos)
    for change in (None, *scores) if not mask_last else (*scores, None):
        score = score.masked_fill(~seen, hidden) if change is None else change(score, b, h, q_pos, kv_pos)
    peak = score.detach().amax(dim, keepdim=True).nan_to_num(neginf=0.0) if top else 0.0
    parts = (score - peak).exp()
    total = parts.sum(dim, keepdim=True)
    weights = parts / total.masked_fill(total == 0, 1.0)
    lse = (total.log() + peak).squeeze(dim) if "lse" in need and dim == -1 else None
    return Attended(weights @ v, lse, weights if "weights" in need else None)


def drops_always(q, k, v, *, dropout=0.0, **rest):
    return eager(q, k, v, dropout=dropout or 0.05, **rest)


def drops_never(q, k, v, *, dropout=0.0, **rest):
    return eager(q, k, v, **rest)


def drops_and_leaves(q, k, v, *, dropout=0.0, **rest):
    """What stays is not made larger."""
    attended = eager(q, k, v, dropout=dropout, **rest)
    return attended._replace(out=attended.out * (1 - dropout))


class Stale:
    """What the mask answered is kept by shape, for all layers and batches."""

    kept: dict = {}  # noqa: RUF012

    def __call__(self, q, k, v, *, q_pos, kv_pos, mask, **rest):
        b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
        key = (len(q), q.shape[2], k.shape[2])
        if mask is not None and key not in self.kept:
            self.kept[key] = mask(b, h, q_pos, kv_pos)
        seen = None if mask is None else lambda *at: self.kept[key]
        return eager(q, k, v, q_pos=q_pos, kv_pos=kv_pos, mask=seen, **rest)


def tiles_groups(q, k, v, **rest):
    times = q.shape[1] // k.shape[1]
    return eager(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), **rest)


def bare_lse(q, k, v, *, scores, **rest):
    bare = eager(q, k, v, scores=(), **rest)
    return eager(q, k, v, scores=scores, **rest)._replace(lse=bare.lse)


def bare_weights(q, k, v, *, mask, need=(), **rest):
    attended = eager(q, k, v, mask=mask, need=need, **rest)
    return attended._replace(weights=eager(q, k, v, mask=None, need=need, **rest).weights)


def swallows(q, k, v, *, scores, need=(), **rest):
    """What the fused kernel does not take is left out."""
    try:
        return sdpa(q, k, v, scores=scores, need=need, **rest)
    except Unsupported:
        return sdpa(q, k, v, scores=(), **rest)


def in_half(q, k, v, **rest):
    attended = eager(q.half(), k.half(), v.half(), **rest)
    return attended._replace(out=attended.out.to(q.dtype))


def open_beyond_128(q, k, v, *, mask, **rest):
    return eager(q, k, v, mask=mask if q.shape[2] <= 128 else None, **rest)


def last_row_for_all(q, k, v, *, q_pos, **rest):
    """The newest query's row of the mask serves all."""
    return eager(q, k, v, q_pos=q_pos[:, :, -1:], **rest)


def places_of_the_first_row(q, k, v, *, q_pos, kv_pos, **rest):
    return eager(q, k, v, q_pos=q_pos[:1], kv_pos=kv_pos[:1], **rest)


def first_row_asked(q, k, v, *, mask, **rest):
    """The mask is asked for row 0 alone."""
    asked = mask and (lambda b, *at: mask(b * 0, *at))
    return eager(q, k, v, mask=asked, **rest)


def scores_by_group(q, k, v, *, scores, **rest):
    """Scores are asked with the number of the KV head."""
    times = q.shape[1] // k.shape[1]
    grouped = [lambda s, b, h, *at, f=f: f(s, b, h // times, *at) for f in scores]
    return eager(q, k, v, scores=grouped, **rest)


def best_sixty_four(q, k, v, *, scores, **rest):
    def best(score, *at):
        least = score.topk(min(64, score.shape[-1]), -1).values[..., -1:]
        return score.masked_fill(score < least, -torch.inf)

    return eager(q, k, v, scores=(*scores, best), **rest)


def unscaled_tiles(q, k, v, *, kv_pos, need=(), **rest):
    """Tiles of 32 keys, joined as though each had the same denominator."""
    if "weights" in need:
        raise Unsupported("no weights in tiles")
    keys = zip(k.split(32, 2), v.split(32, 2), kv_pos.split(32, -1), strict=True)
    tiles = [eager(q, *pair, kv_pos=at, need=("lse",), **rest) for *pair, at in keys]
    seen = torch.stack([tile.lse for tile in tiles]).isfinite().sum(0).clamp(min=1)
    lse = torch.stack([tile.lse for tile in tiles]).logsumexp(0)
    return Attended(sum(tile.out for tile in tiles) / seen[..., None], lse if "lse" in need else None)


def attending(kernel, **choices) -> Make:
    more = {"dropout": choices.pop("dropout")} if "dropout" in choices else {}
    return attention(choices, kernel=kernel, **more)


PLANTED: dict[str, Make] = {
    "steps without a mask": attending(found(open_steps), mask="window"),
    "aligned taken for causal": attending(found(aligned_is_causal), mask="prefix"),
    "aligned taken for causal, under a causal mask": attending(found(aligned_is_causal), heads="gqa"),
    "a scale of the kernel's own": attending(found(own_scale), score="inverse_d"),
    "a scale of the kernel's own, that happens to be right": attending(found(own_scale), heads="mla"),
    "scale on q and on k": attending(found(scaled_twice), heads="differential"),
    "scores before the scale": attending(found(first_scale), position="alibi", score="softcap"),
    "a soft cap after the mask": attending(found(scores_last), score="softcap"),
    "softmax over the queries": attending(found(softmax_over_queries)),
    "hidden scores of minus forty": attending(found(forty_below)),
    "blind rows that see all alike": attending(found(far_below)),
    "a softmax without its maximum": attending(found(no_maximum)),
    "dropout in evaluation": attending(found(drops_always)),
    "dropout that is asked for and not done": attending(found(drops_never), dropout=0.3),
    "dropout that does not rescale": attending(found(drops_and_leaves), dropout=0.3),
    "a mask kept by shape": attending(made(Stale), mask="window"),
    "groups tiled in the kernel": attending(found(tiles_groups), heads="gqa"),
    "lse without the scores": attending(found(bare_lse), position="alibi", epilogue="sinks"),
    "weights from before the mask": attending(found(bare_weights)),
    "a refusal that is swallowed": attending(found(swallows), score="softcap"),
    "attention in half precision": attending(found(in_half)),
    "no mask from 129 queries on": attending(found(open_beyond_128)),
    "the last row of the mask for all": attending(found(last_row_for_all)),
    "positions of the first row for all": attending(found(places_of_the_first_row)),
    "a mask asked for the first row alone": attending(found(first_row_asked)),
    "scores asked by KV head": attending(found(scores_by_group), heads="gqa", position="alibi"),
    "the best 64 keys only": attending(found(best_sixty_four)),
    "tiles of 32 keys joined wrongly": attending(found(unscaled_tiles)),
}
