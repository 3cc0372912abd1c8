"""Kernels with a bug: most are the reference with one thing done wrong."""

import torch
import torch.nn.functional as F

from attnlab.attention.contracts import Attended, Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa

from .making import Make, attention, found, made


def open_steps(inputs):
    """A step of one query sees all that is held, it says."""
    return eager(inputs._replace(mask=None) if inputs.q.shape[2] == 1 else inputs)


def aligned_is_causal(inputs):
    q, k, v = inputs[:3]
    if inputs.aligned and q.shape[2] == k.shape[2]:
        return Attended(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=inputs.scale, enable_gqa=True)
        )
    return eager(inputs)


def own_scale(inputs):
    """Always by the root of the width that it sees."""
    return eager(inputs._replace(scale=inputs.q.shape[-1] ** -0.5))


def scaled_twice(inputs):
    q, k, scale = inputs.q, inputs.k, inputs.scale
    return eager(inputs._replace(q=q * scale, k=k * scale, scale=1.0))


def first_scale(inputs):
    """Scores before the scale: what is added is scaled too."""
    scale = inputs.scale
    scores = [lambda s, *at, f=f: f(s / scale, *at) * scale for f in inputs.scores]
    return eager(inputs._replace(scores=scores))


def scores_last(inputs):
    """The mask first, then the scores, which may lift what was hidden."""
    return by_hand(inputs, mask_last=False)


def softmax_over_queries(inputs):
    return by_hand(inputs, dim=-2)


def forty_below(inputs):
    """Hidden scores are minus forty: a weight of 1e-18 is left."""
    return by_hand(inputs, hidden=-40.0)


def far_below(inputs):
    """Hidden scores are finite, so a query that sees nothing sees all alike."""
    return by_hand(inputs, hidden=-1e9)


def no_maximum(inputs):
    """The exponents as they are: a score of 800 is infinite."""
    return by_hand(inputs, top=False)


def by_hand(inputs, mask_last=True, dim=-1, hidden=-torch.inf, top=True):
    q, k, v, q_pos, kv_pos = inputs[:5]
    mask, scores, need = inputs.mask, inputs.scores, inputs.need
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
    score, seen = q @ k.mT * inputs.scale, q_pos.new_ones(1, 1, 1, 1).bool()
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


def drops_always(inputs):
    return eager(inputs._replace(dropout=inputs.dropout or 0.05))


def drops_never(inputs):
    return eager(inputs._replace(dropout=0.0))


def drops_and_leaves(inputs):
    """What stays is not made larger."""
    attended = eager(inputs)
    return attended._replace(out=attended.out * (1 - inputs.dropout))


class Stale:
    """What the mask answered is kept by shape, for all layers and batches."""

    kept: dict = {}  # noqa: RUF012

    def __call__(self, inputs):
        q, k, _, q_pos, kv_pos = inputs[:5]
        b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
        key = (len(q), q.shape[2], k.shape[2])
        if inputs.mask is None:
            return eager(inputs)
        if key not in self.kept:
            self.kept[key] = inputs.mask(b, h, q_pos, kv_pos)
        return eager(inputs._replace(mask=lambda *at: self.kept[key]))


def tiles_groups(inputs):
    q, k, v = inputs[:3]
    times = q.shape[1] // k.shape[1]
    return eager(inputs._replace(k=k.repeat(1, times, 1, 1), v=v.repeat(1, times, 1, 1)))


def bare_lse(inputs):
    return eager(inputs)._replace(lse=eager(inputs._replace(scores=())).lse)


def bare_weights(inputs):
    return eager(inputs)._replace(weights=eager(inputs._replace(mask=None)).weights)


def swallows(inputs):
    """What the fused kernel does not take is left out."""
    try:
        return sdpa(inputs)
    except Unsupported:
        return sdpa(inputs._replace(scores=(), need=()))


def in_half(inputs):
    q, k, v = inputs[:3]
    attended = eager(inputs._replace(q=q.half(), k=k.half(), v=v.half()))
    return attended._replace(out=attended.out.to(q.dtype))


def open_beyond_128(inputs):
    return eager(inputs if inputs.q.shape[2] <= 128 else inputs._replace(mask=None))


def last_row_for_all(inputs):
    """The newest query's row of the mask serves all."""
    return eager(inputs._replace(q_pos=inputs.q_pos[:, :, -1:]))


def places_of_the_first_row(inputs):
    return eager(inputs._replace(q_pos=inputs.q_pos[:1], kv_pos=inputs.kv_pos[:1]))


def first_row_asked(inputs):
    """The mask is asked for row 0 alone."""
    mask = inputs.mask
    return eager(inputs._replace(mask=mask and (lambda b, *at: mask(b * 0, *at))))


def scores_by_group(inputs):
    """Scores are asked with the number of the KV head."""
    times = inputs.q.shape[1] // inputs.k.shape[1]
    grouped = [lambda s, b, h, *at, f=f: f(s, b, h // times, *at) for f in inputs.scores]
    return eager(inputs._replace(scores=grouped))


def best_sixty_four(inputs):
    def best(score, *at):
        least = score.topk(min(64, score.shape[-1]), -1).values[..., -1:]
        return score.masked_fill(score < least, -torch.inf)

    return eager(inputs._replace(scores=(*inputs.scores, best)))


def tiled(inputs, size):
    """The attention over `size` keys at a time, with its lse."""
    if "weights" in inputs.need:
        raise Unsupported("no weights in tiles")
    tiles = zip(inputs.k.split(size, 2), inputs.v.split(size, 2), inputs.kv_pos.split(size, -1), strict=True)
    return [eager(inputs._replace(k=k, v=v, kv_pos=at, need=("lse",))) for k, v, at in tiles]


def unscaled_tiles(inputs):
    """Tiles of 32 keys, joined as though each had the same denominator."""
    tiles = tiled(inputs, 32)
    seen = torch.stack([tile.lse for tile in tiles]).isfinite().sum(0).clamp(min=1)
    lse = torch.stack([tile.lse for tile in tiles]).logsumexp(0)
    return Attended(sum(tile.out for tile in tiles) / seen[..., None], lse if "lse" in inputs.need else None)


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
