"""Laws of single parts: identities between one value of an axis and another."""

from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.epilogue import Gate, Sinks
from attnlab.attention.masks.prefix import prefix
from attnlab.attention.masks.window import window
from attnlab.attention.scores.bias import Bias
from attnlab.attention.scores.softcap import softcap
from attnlab.testing.laws.kernels import asked, by_hand
from attnlab.testing.laws.positions import SHIFTS
from attnlab.testing.laws.variant import EAGER, Variant, differs, same

CAUSAL = {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.masks.causal.causal"}


@torch.no_grad()
def check_grouped_heads_repeat(variant: Variant) -> None:
    """6. Grouped heads equal multi-head attention whose key and value weights repeat within a group (MQA:
    all of them).
    """
    grouped = variant.layer()
    H = grouped.heads.n_heads
    G = grouped.heads.n_kv_heads
    D = grouped.heads.head_dim
    full = variant.but(heads__n_kv_heads=H).layer()
    full.load_state_dict({k: v for k, v in grouped.state_dict().items() if ".qkv." not in k}, strict=False)
    for name, parameter in grouped.heads.qkv.named_parameters():
        q, k, v = parameter.split((H * D, G * D, G * D))
        k, v = (
            part.view(G, D, -1).repeat_interleave(H // G, dim=0).reshape(H * D, *part.shape[1:])
            for part in (k, v)
        )
        full.heads.qkv.get_parameter(name).copy_(torch.cat((q, k, v)))
    same(grouped(variant.x()), full(variant.x()), f"{G} KV heads and {H} repeated ones")


@torch.no_grad()
def check_wide_mask_is_causal(variant: Variant) -> None:
    """7. A window as long as the text, and a prefix of no token, are the causal mask."""
    masks = dict(variant.attention["masks"])
    for name in variant.about(window):
        masks[name] = {**masks[name], "size": variant.length}
    for name in variant.about(prefix):
        masks[name] = {**masks[name], "n": 0}
    causal = variant.but(masks={"causal": CAUSAL})
    same(variant.but(masks=masks).layer()(variant.x()), causal.layer()(variant.x()), "wide mask")


@torch.no_grad()
def check_rotation_is_relative(variant: Variant) -> None:
    """8. Rotated scores depend on the distance q_pos - kv_pos alone, and do depend on it."""
    layer = variant.layer()
    T = variant.length
    drawn = torch.randn(
        2, 1, 1, T, layer.heads.rope_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    q, k = (part.repeat(1, 1, 2, 1) for part in drawn)
    for shift in SHIFTS:
        rotate = layer.rotary(torch.cat((torch.arange(T), torch.arange(T) + shift))[None])
        score = rotate(q) @ rotate(k).transpose(-1, -2)
        near = score[..., :T, :T]
        far = score[..., T:, T:]
        same(far, near, f"scores {shift} positions further on", 1e-6 * shift)  # as float32 has it
        differs(score[..., :T, T:], near, "scores of another distance")


@torch.no_grad()
def check_permutation(variant: Variant) -> None:
    """9. Without positions and mask, attention is permutation-equivariant; with positions in rotation or
    scores it is not.
    """
    layer = variant.but(masks={}, kernel=EAGER).layer()
    x = variant.x()
    order = torch.randperm(variant.length, generator=torch.Generator().manual_seed(3))
    moved = layer(x[:, order])
    expected = layer(x)[:, order]
    placed = layer.rotary is not None or layer.looks_back or layer.selection is not None
    if not placed and not any(map(_positional, layer.scores)):
        same(moved, expected, "permuted input")
    elif variant.length > 2:
        differs(moved, expected, "permuted input, though there are positions")


def _positional(score: Any) -> bool:
    where = torch.arange(40)[:, None]
    zero = torch.zeros(1, dtype=torch.long)
    value = score(torch.ones(40, 40, dtype=torch.float64), zero, zero, where, where.T)
    return bool((value - value.flatten()[0]).abs().max() > 0)


@torch.no_grad()
def check_softcap(variant: Variant) -> None:
    """11. A soft cap bounds scores by the cap, a huge cap is the identity, and its order with a bias
    matters.
    """
    (name,) = variant.about(softcap)
    scores = dict(variant.attention["scores"])
    layer = variant.layer()
    zero = torch.zeros(1, dtype=torch.long)
    cap = scores[name]["cap"]
    function = layer.scores[list(scores).index(name)]
    wild = torch.linspace(-1e4, 1e4, 101, dtype=torch.float64)
    assert function(wild, zero, zero, zero, zero).abs().max() <= cap, f"scores beyond the cap of {cap}"
    huge = variant.but(scores={**scores, name: {**scores[name], "cap": 1e12}}, kernel=EAGER).layer()
    without = variant.but(
        scores={key: node for key, node in scores.items() if key != name}, kernel=EAGER
    ).layer()
    same(_scores(huge, variant), _scores(without, variant), "huge cap")
    if any(isinstance(score, Bias) for score in layer.scores):
        turned = variant.but(scores=dict(reversed(scores.items()))).layer()
        differs(_scores(turned, variant), _scores(layer, variant), "cap and bias in the other order")


def _scores(layer: Any, variant: Variant) -> Tensor:
    """lse by hand: a function of the scores."""
    lse = by_hand(asked(layer, variant.x())).lse
    assert lse is not None
    return lse.nan_to_num(neginf=0.0)


@torch.no_grad()
def check_sink(variant: Variant) -> None:
    """12. A sink at minus infinity is no sink, and a sink equals one more visible key that has its logit
    as score and zero as value.
    """
    layer = variant.layer()
    plain = variant.but(epilogue=None).layer()
    x = variant.x()
    attended = by_hand(asked(layer, x))
    assert attended.weights is not None
    assert attended.lse is not None
    logits = layer.epilogue.logit[:, None]
    keys = torch.cat(
        (attended.weights.log() + attended.lse[..., None], logits[..., None].expand(*attended.lse.shape, 1)),
        -1,
    )
    extended = keys.softmax(-1)[..., :-1]
    H = attended.weights.shape[1]
    G = asked(layer, x).v.shape[1]
    values = asked(layer, x).v.repeat_interleave(H // G, dim=1)
    same(layer.attend(x).out, extended @ values, "one more key")
    layer.epilogue.logit.fill_(-torch.inf)
    assert torch.equal(layer.attend(x).out, plain.attend(x).out), (
        "a sink at minus infinity changes the output"
    )


@torch.no_grad()
def check_gate(variant: Variant) -> None:
    """12. A gate at plus infinity is no gate; a gate at zero is open as it started, by half where it says
    nothing.
    """
    layer = variant.layer()
    plain = variant.but(epilogue=None).layer()
    x = variant.x()
    gate = layer.epilogue.gate
    without = plain.attend(x).out
    gate.weight.zero_()
    gate.bias.zero_()
    share = torch.tensor(getattr(layer.epilogue, "start", 0.0), dtype=x.dtype).sigmoid()
    same(layer.attend(x).out, without * share, "gate at zero")
    gate.bias.fill_(torch.inf)
    assert torch.equal(layer.attend(x).out, without), "an open gate changes the output"


@torch.no_grad()
def check_absorbed(variant: Variant) -> None:
    """13. Heads that read their cache as it is, as latent ones absorbed into queries and output, compute the
    same, cached or not.
    """
    layers = [variant.but(heads__absorbed=absorbed).layer() for absorbed in (False, True)]
    x = variant.x()
    cut = max(1, variant.length - 2)
    expanded, absorbed = (layer(x) for layer in layers)
    same(absorbed, expanded, "absorbed")
    if variant.cache is not None and cut < variant.length:
        caches = [variant.new_cache() for _ in layers]
        for part in (slice(0, cut), slice(cut, variant.length)):
            expanded, absorbed = (
                layer(x[:, part], cache=cache) for layer, cache in zip(layers, caches, strict=True)
            )
            same(absorbed, expanded, "absorbed, cached")


def has_grouped_heads(variant: Variant) -> bool:
    """Heads whose keys and values are slices of one matrix, fewer for keys than for queries."""
    if not variant.is_attention:
        return False
    heads = variant.specimen.heads
    return Capabilities.of(heads).pools and heads.n_kv_heads < heads.n_heads


def has_absorbing_heads(variant: Variant) -> bool:
    """Heads that can read their cache as it is, in a layer that lets them."""
    return variant.is_attention and variant.specimen.can_absorb


def has_window_or_prefix(variant: Variant) -> bool:
    """A window or prefix and no other mask."""
    about = variant.about(window) + variant.about(prefix)
    return bool(about) and len(about) == len(variant.attention["masks"])


def has_rotary(variant: Variant) -> bool:
    """Rotary positions."""
    return variant.is_attention and variant.specimen.rotary is not None


def has_softcap(variant: Variant) -> bool:
    """One soft cap."""
    return len(variant.about(softcap)) == 1


def has_sink(variant: Variant) -> bool:
    """A sink."""
    return variant.is_attention and isinstance(variant.specimen.epilogue, Sinks)


def has_gate(variant: Variant) -> bool:
    """A gate."""
    return variant.is_attention and isinstance(variant.specimen.epilogue, Gate)
