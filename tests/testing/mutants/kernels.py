"""Mutant kernels: most are the reference with one error."""

import torch
import torch.nn.functional as F

from attnlab.attention.contracts import AttentionOutput, Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa

from .builders import VariantFactory, make_attention_factory, make_function_node, make_object_node


def open_steps(inputs):
    """Omit the mask for a step of one query."""
    return eager(inputs._replace(mask=None) if inputs.q.shape[2] == 1 else inputs)


def aligned_is_causal(inputs):
    q, k, v = inputs[:3]
    if inputs.aligned and q.shape[2] == k.shape[2]:
        return AttentionOutput(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=inputs.scale, enable_gqa=True)
        )
    return eager(inputs)


def own_scale(inputs):
    """Scale by the root of the query's dimension, whatever the requested scale."""
    return eager(inputs._replace(scale=inputs.q.shape[-1] ** -0.5))


def tiled_groups_of_eight(inputs):
    n = inputs.q.shape[1] // inputs.k.shape[1]
    return eager(
        inputs._replace(k=inputs.k.repeat(1, n, 1, 1), v=inputs.v.repeat(1, n, 1, 1)) if n == 8 else inputs
    )


def scaled_twice(inputs):
    q, k, scale = inputs.q, inputs.k, inputs.scale
    return eager(inputs._replace(q=q * scale, k=k * scale, scale=1.0))


def first_scale(inputs):
    """Apply scores before the scale, which then scales their additions too."""
    scale = inputs.scale
    scores = [lambda s, *at, f=f: f(s / scale, *at) * scale for f in inputs.scores]
    return eager(inputs._replace(scores=scores))


def scores_last(inputs):
    """Mask before the scores, which may raise hidden scores."""
    return compute_attention(inputs, mask_last=False)


def softmax_over_queries(inputs):
    return compute_attention(inputs, dim=-2)


def forty_below(inputs):
    """Set hidden scores to minus forty: a weight of 1e-18 remains."""
    return compute_attention(inputs, hidden=-40.0)


def far_below(inputs):
    """Set hidden scores to a finite value: a query that sees nothing weights all keys equally."""
    return compute_attention(inputs, hidden=-1e9)


def no_maximum(inputs):
    """Do not subtract the maximum: a score of 800 overflows."""
    return compute_attention(inputs, subtract_maximum=False)


def compute_attention(inputs, mask_last=True, dim=-1, hidden=-torch.inf, subtract_maximum=True):
    q, k, v, q_idx, kv_idx = inputs[:5]
    mask, scores, need = inputs.mask, inputs.scores, inputs.need
    n_repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n_repeats, 1), v.repeat_interleave(n_repeats, 1)
    b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
    score, visible = q @ k.mT * inputs.scale, q_idx.new_ones(1, 1, 1, 1).bool()
    if mask is not None:
        visible = mask(b, h, q_idx, kv_idx)
    for score_function in (None, *scores) if not mask_last else (*scores, None):
        score = (
            score.masked_fill(~visible, hidden)
            if score_function is None
            else score_function(score, b, h, q_idx, kv_idx)
        )
    peak = score.detach().amax(dim, keepdim=True).nan_to_num(neginf=0.0) if subtract_maximum else 0.0
    terms = (score - peak).exp()
    total = terms.sum(dim, keepdim=True)
    weights = terms / total.masked_fill(total == 0, 1.0)
    lse = (total.log() + peak).squeeze(dim) if "lse" in need and dim == -1 else None
    return AttentionOutput(weights @ v, lse, weights if "weights" in need else None)


def drops_always(inputs):
    return eager(inputs._replace(dropout=inputs.dropout or 0.05))


def drops_never(inputs):
    return eager(inputs._replace(dropout=0.0))


def drops_and_leaves(inputs):
    """Drop weights without rescaling the rest."""
    attended = eager(inputs)
    return attended._replace(out=attended.out * (1 - inputs.dropout))


class ShapeKeyedKernel:
    """Caches the mask's result by shape, for all layers and batches."""

    masks: dict = {}  # noqa: RUF012

    def __call__(self, inputs):
        q, k, _, q_idx, kv_idx = inputs[:5]
        b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
        key = (len(q), q.shape[2], k.shape[2])
        if inputs.mask is None:
            return eager(inputs)
        if key not in self.masks:
            self.masks[key] = inputs.mask(b, h, q_idx, kv_idx)
        return eager(inputs._replace(mask=lambda *at: self.masks[key]))


def tiles_groups(inputs):
    q, k, v = inputs[:3]
    n_repeats = q.shape[1] // k.shape[1]
    return eager(inputs._replace(k=k.repeat(1, n_repeats, 1, 1), v=v.repeat(1, n_repeats, 1, 1)))


def bare_lse(inputs):
    return eager(inputs)._replace(lse=eager(inputs._replace(scores=())).lse)


def bare_weights(inputs):
    return eager(inputs)._replace(weights=eager(inputs._replace(mask=None)).weights)


def ignores_unsupported(inputs):
    """Drop the inputs that the fused kernel does not support."""
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
    """Apply the newest query's row of the mask to all queries."""
    return eager(inputs._replace(q_idx=inputs.q_idx[:, :, -1:]))


def places_of_the_first_row(inputs):
    return eager(inputs._replace(q_idx=inputs.q_idx[:1], kv_idx=inputs.kv_idx[:1]))


def first_row_mask(inputs):
    """Evaluate the mask for row 0 only."""
    mask = inputs.mask
    return eager(inputs._replace(mask=mask and (lambda b, *at: mask(b * 0, *at))))


def scores_by_group(inputs):
    """Evaluate scores with the index of the KV head."""
    n_repeats = inputs.q.shape[1] // inputs.k.shape[1]
    grouped = [lambda s, b, h, *at, f=f: f(s, b, h // n_repeats, *at) for f in inputs.scores]
    return eager(inputs._replace(scores=grouped))


def best_sixty_four(inputs):
    def best(score, *at):
        least = score.topk(min(64, score.shape[-1]), -1).values[..., -1:]
        return score.masked_fill(score < least, -torch.inf)

    return eager(inputs._replace(scores=(*inputs.scores, best)))


def compute_tiles(inputs, size):
    """Compute attention over `size` keys at a time, with the lse of each tile."""
    if "weights" in inputs.need:
        raise Unsupported("no weights in tiles")
    tiles = zip(inputs.k.split(size, 2), inputs.v.split(size, 2), inputs.kv_idx.split(size, -1), strict=True)
    return [eager(inputs._replace(k=k, v=v, kv_idx=kv_idx, need=("lse",))) for k, v, kv_idx in tiles]


def unscaled_tiles(inputs):
    """Join tiles of 32 keys as though each had the same denominator."""
    tiles = compute_tiles(inputs, 32)
    n_tiles = torch.stack([tile.lse for tile in tiles]).isfinite().sum(0).clamp(min=1)
    lse = torch.stack([tile.lse for tile in tiles]).logsumexp(0)
    return AttentionOutput(
        sum(tile.out for tile in tiles) / n_tiles[..., None], lse if "lse" in inputs.need else None
    )


def with_kernel(kernel, **choices) -> VariantFactory:
    dropout_argument = {"dropout": choices.pop("dropout")} if "dropout" in choices else {}
    return make_attention_factory(choices, kernel=kernel, **dropout_argument)


MUTANTS: dict[str, VariantFactory] = {
    "eight query heads tiled": with_kernel(make_function_node(tiled_groups_of_eight)),
    "steps without a mask": with_kernel(make_function_node(open_steps), mask="window"),
    "aligned taken for causal": with_kernel(make_function_node(aligned_is_causal), mask="prefix"),
    "aligned taken for causal, under a causal mask": with_kernel(
        make_function_node(aligned_is_causal), heads="gqa"
    ),
    "a scale of the kernel's own": with_kernel(make_function_node(own_scale), score="inverse_d"),
    "a scale of the kernel's own, that happens to be right": with_kernel(
        make_function_node(own_scale), heads="mla"
    ),
    "scale on q and on k": with_kernel(make_function_node(scaled_twice), heads="differential"),
    "scores before the scale": with_kernel(
        make_function_node(first_scale), position="alibi", score="softcap"
    ),
    "a soft cap after the mask": with_kernel(make_function_node(scores_last), score="softcap"),
    "softmax over the queries": with_kernel(make_function_node(softmax_over_queries)),
    "hidden scores of minus forty": with_kernel(make_function_node(forty_below)),
    "blind rows that see all alike": with_kernel(make_function_node(far_below)),
    "a softmax without its maximum": with_kernel(make_function_node(no_maximum)),
    "dropout in evaluation": with_kernel(make_function_node(drops_always)),
    "dropout that is asked for and not done": with_kernel(make_function_node(drops_never), dropout=0.3),
    "dropout that does not rescale": with_kernel(make_function_node(drops_and_leaves), dropout=0.3),
    "a mask kept by shape": with_kernel(make_object_node(ShapeKeyedKernel), mask="window"),
    "groups tiled in the kernel": with_kernel(make_function_node(tiles_groups), heads="gqa"),
    "lse without the scores": with_kernel(make_function_node(bare_lse), position="alibi", epilogue="sinks"),
    "weights from before the mask": with_kernel(make_function_node(bare_weights)),
    "a refusal that is swallowed": with_kernel(make_function_node(ignores_unsupported), score="softcap"),
    "attention in half precision": with_kernel(make_function_node(in_half)),
    "no mask from 129 queries on": with_kernel(make_function_node(open_beyond_128)),
    "the last row of the mask for all": with_kernel(make_function_node(last_row_for_all)),
    "positions of the first row for all": with_kernel(make_function_node(places_of_the_first_row)),
    "a mask asked for the first row alone": with_kernel(make_function_node(first_row_mask)),
    "scores asked by KV head": with_kernel(
        make_function_node(scores_by_group), heads="gqa", position="alibi"
    ),
    "the best 64 keys only": with_kernel(make_function_node(best_sixty_four)),
    "tiles of 32 keys joined wrongly": with_kernel(make_function_node(unscaled_tiles)),
}
