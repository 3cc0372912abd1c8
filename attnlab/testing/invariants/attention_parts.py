"""Invariants of single parts: identities between values of an axis."""

from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.epilogue import Gate, Sinks
from attnlab.attention.masks.prefix import prefix
from attnlab.attention.masks.window import window
from attnlab.attention.scores.bias import Bias
from attnlab.attention.scores.softcap import softcap
from attnlab.testing.invariants.kernels import capture_kernel_inputs, compute_reference_attention
from attnlab.testing.invariants.masks_and_scores import SHIFTS
from attnlab.testing.invariants.variant import EAGER_KERNEL, Variant, assert_close, assert_different

CAUSAL_MASK = {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.masks.causal.causal"}


@torch.no_grad()
def check_grouped_heads_equal_repeated_heads(variant: Variant) -> None:
    """6. Grouped heads equal multi-head attention whose key and value weights repeat within each group."""
    grouped = variant.make_layer()
    H = grouped.heads.n_heads
    G = grouped.heads.n_kv_heads
    D = grouped.heads.head_dim
    full = variant.with_changes(heads__n_kv_heads=H).make_layer()
    full.load_state_dict({k: v for k, v in grouped.state_dict().items() if ".qkv." not in k}, strict=False)
    for name, parameter in grouped.heads.qkv.named_parameters():
        q, k, v = parameter.split((H * D, G * D, G * D))
        k, v = (
            part.view(G, D, -1).repeat_interleave(H // G, dim=0).reshape(H * D, *part.shape[1:])
            for part in (k, v)
        )
        full.heads.qkv.get_parameter(name).copy_(torch.cat((q, k, v)))
    assert_close(
        grouped(variant.make_input()), full(variant.make_input()), f"{G} KV heads and {H} repeated ones"
    )


@torch.no_grad()
def check_wide_mask_is_causal(variant: Variant) -> None:
    """7. A window as long as the sequence, and a prefix of zero tokens, equal the causal mask."""
    masks = dict(variant.attention["masks"])
    for name in variant.find_part_names(window):
        masks[name] = {**masks[name], "size": variant.length}
    for name in variant.find_part_names(prefix):
        masks[name] = {**masks[name], "n": 0}
    causal = variant.with_changes(masks={"causal": CAUSAL_MASK})
    assert_close(
        variant.with_changes(masks=masks).make_layer()(variant.make_input()),
        causal.make_layer()(variant.make_input()),
        "wide mask",
    )


@torch.no_grad()
def check_rotation_is_relative(variant: Variant) -> None:
    """8. Rotated scores depend only on the distance q_idx - kv_idx, and do depend on it."""
    layer = variant.make_layer()
    T = variant.length
    q_and_k = torch.randn(
        2, 1, 1, T, layer.heads.rope_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    q, k = (part.repeat(1, 1, 2, 1) for part in q_and_k)
    for shift in SHIFTS:
        rotate = layer.rotary(torch.cat((torch.arange(T), torch.arange(T) + shift))[None])
        all_scores = rotate(q) @ rotate(k).transpose(-1, -2)
        scores = all_scores[..., :T, :T]
        shifted_scores = all_scores[..., T:, T:]
        float32_tolerance = 1e-6 * shift
        assert_close(shifted_scores, scores, f"scores shifted by {shift} positions", float32_tolerance)
        assert_different(all_scores[..., :T, T:], scores, "scores at another distance")


@torch.no_grad()
def check_permutation_equivariance(variant: Variant) -> None:
    """9. Without positions and mask, attention is permutation-equivariant; with RoPE or positional scores it
    is not.
    """
    layer = variant.with_changes(masks={}, kernel=EAGER_KERNEL).make_layer()
    x = variant.make_input()
    order = torch.randperm(variant.length, generator=torch.Generator().manual_seed(3))
    permuted = layer(x[:, order])
    expected = layer(x)[:, order]
    is_positional = any(part is not None for part in (layer.rotary, layer.selection, layer.score_map))
    is_positional = is_positional or layer.lookback
    if not is_positional and not any(map(_is_positional, layer.scores)):
        assert_close(permuted, expected, "permuted input")
    elif variant.length > 2:
        assert_different(permuted, expected, "permuted input, despite positions")


def _is_positional(score: Any) -> bool:
    q_idx = torch.arange(40)[:, None]
    zero = torch.zeros(1, dtype=torch.long)
    value = score(torch.ones(40, 40, dtype=torch.float64), zero, zero, q_idx, q_idx.T)
    return bool((value - value.flatten()[0]).abs().max() > 0)


@torch.no_grad()
def check_softcap(variant: Variant) -> None:
    """11. A soft cap bounds scores, a huge cap is the identity, and the order of cap and bias matters."""
    (name,) = variant.find_part_names(softcap)
    scores = dict(variant.attention["scores"])
    layer = variant.make_layer()
    zero = torch.zeros(1, dtype=torch.long)
    cap = scores[name]["cap"]
    softcap_score = layer.scores[list(scores).index(name)]
    raw_scores = torch.linspace(-1e4, 1e4, 101, dtype=torch.float64)
    assert softcap_score(raw_scores, zero, zero, zero, zero).abs().max() <= cap, (
        f"scores beyond the cap of {cap}"
    )
    huge_cap = variant.with_changes(
        scores={**scores, name: {**scores[name], "cap": 1e12}}, kernel=EAGER_KERNEL
    ).make_layer()
    uncapped = variant.with_changes(
        scores={key: node for key, node in scores.items() if key != name}, kernel=EAGER_KERNEL
    ).make_layer()
    assert_close(_compute_lse(huge_cap, variant), _compute_lse(uncapped, variant), "huge cap")
    if any(isinstance(score, Bias) for score in layer.scores):
        reordered = variant.with_changes(scores=dict(reversed(scores.items()))).make_layer()
        assert_different(
            _compute_lse(reordered, variant), _compute_lse(layer, variant), "cap and bias in the other order"
        )


def _compute_lse(layer: Any, variant: Variant) -> Tensor:
    """Compute the reference lse, which is a function of the scores."""
    lse = compute_reference_attention(capture_kernel_inputs(layer, variant.make_input())).lse
    assert lse is not None
    return lse.nan_to_num(neginf=0.0)


@torch.no_grad()
def check_sink(variant: Variant) -> None:
    """12. A sink at minus infinity changes nothing, and a sink equals one more visible key that has its logit
    as score and zero as value.
    """
    layer = variant.make_layer()
    plain = variant.with_changes(epilogue=None).make_layer()
    x = variant.make_input()
    reference = compute_reference_attention(capture_kernel_inputs(layer, x))
    assert reference.weights is not None
    assert reference.lse is not None
    logits = layer.epilogue.logit[:, None]
    extended_scores = torch.cat(
        (
            reference.weights.log() + reference.lse[..., None],
            logits[..., None].expand(*reference.lse.shape, 1),
        ),
        -1,
    )
    weights = extended_scores.softmax(-1)[..., :-1]
    H = reference.weights.shape[1]
    G = capture_kernel_inputs(layer, x).v.shape[1]
    values = capture_kernel_inputs(layer, x).v.repeat_interleave(H // G, dim=1)
    assert_close(layer.attend(x).out, weights @ values, "one more key")
    layer.epilogue.logit.fill_(-torch.inf)
    assert torch.equal(layer.attend(x).out, plain.attend(x).out), (
        "a sink at minus infinity changes the output"
    )


@torch.no_grad()
def check_gate(variant: Variant) -> None:
    """12. A gate at plus infinity changes nothing; with zero weights it is open by its start value, one half
    by default.
    """
    layer = variant.make_layer()
    plain = variant.with_changes(epilogue=None).make_layer()
    x = variant.make_input()
    gate = layer.epilogue.gate
    ungated = plain.attend(x).out
    gate.weight.zero_()
    if gate.bias is not None:
        gate.bias.zero_()
    gate_value = torch.tensor(getattr(layer.epilogue, "start", 0.0), dtype=x.dtype).sigmoid()
    assert_close(layer.attend(x).out, ungated * gate_value, "gate at zero")
    if gate.bias is None:  # without one, no weights open it for every input
        return
    gate.bias.fill_(torch.inf)
    assert torch.equal(layer.attend(x).out, ungated), "an open gate changes the output"


@torch.no_grad()
def check_absorbed_heads(variant: Variant) -> None:
    """13. Heads that read their cache without expanding it, such as absorbed latent heads, equal expanded
    heads, cached or not.
    """
    layers = [variant.with_changes(heads__absorbed=absorbed).make_layer() for absorbed in (False, True)]
    x = variant.make_input()
    cut = max(1, variant.length - 2)
    expanded, absorbed = (layer(x) for layer in layers)
    assert_close(absorbed, expanded, "absorbed")
    if variant.cache is not None and cut < variant.length:
        caches = [variant.make_cache() for _ in layers]
        for chunk in (slice(0, cut), slice(cut, variant.length)):
            expanded, absorbed = (
                layer(x[:, chunk], cache=cache) for layer, cache in zip(layers, caches, strict=True)
            )
            assert_close(absorbed, expanded, "absorbed, cached")


def has_grouped_heads(variant: Variant) -> bool:
    """Whether keys and values are slices of one projection, with fewer KV heads than query heads."""
    if not variant.is_attention:
        return False
    heads = variant.prototype.heads
    return Capabilities.from_part(heads).can_pool and heads.n_kv_heads < heads.n_heads


def has_absorbing_heads(variant: Variant) -> bool:
    """Whether the heads can read their cache without expanding it, and the layer allows it."""
    return variant.is_attention and variant.prototype.can_absorb


def has_window_or_prefix(variant: Variant) -> bool:
    """Whether all masks are windows or prefixes, and there is at least one."""
    names = variant.find_part_names(window) + variant.find_part_names(prefix)
    return bool(names) and len(names) == len(variant.attention["masks"])


def has_rotary(variant: Variant) -> bool:
    """Whether the layer has rotary positions whose scores depend on the distance."""
    if not variant.is_attention or variant.prototype.rotary is None:
        return False
    return Capabilities.from_part(variant.prototype.rotary).is_relative


def has_softcap(variant: Variant) -> bool:
    """Whether there is exactly one soft cap."""
    return len(variant.find_part_names(softcap)) == 1


def has_sink(variant: Variant) -> bool:
    """Whether the epilogue is a sink."""
    return variant.is_attention and isinstance(variant.prototype.epilogue, Sinks)


def has_gate(variant: Variant) -> bool:
    """Whether the epilogue is a gate."""
    return variant.is_attention and isinstance(variant.prototype.epilogue, Gate)
