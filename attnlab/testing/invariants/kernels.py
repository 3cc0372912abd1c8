"""Invariants of kernels and attention weights, compared with a reference in plain loops.

The reference computes one batch row and one query head at a time.
"""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Capabilities, Kernel, Unsupported
from attnlab.attention.epilogue import Sinks
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.masking import make_batch_head_indices
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import make_padding_mask
from attnlab.testing.checks.random_state import use_seed
from attnlab.testing.checks.training import DROPOUT_PASSES, DROPOUT_TOLERANCE, measure_mean_output
from attnlab.testing.checks.visibility import project
from attnlab.testing.invariants.variant import MAX_LENGTH, Variant, assert_close


def compute_tolerance(inputs: AttentionInputs) -> float:
    """Compute the allowed absolute error of outputs.

    It is 1e-12, or the rounding error of the largest score's sum if that is larger: weights inherit the
    absolute error of scores.
    """
    q, k = inputs[:2]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).abs()
    terms = (q.abs() @ k.transpose(-1, -2)).max().item() * abs(inputs.scale)
    return max(1e-12, terms * torch.finfo(q.dtype).eps)


def capture_kernel_inputs(layer: Any, x: Tensor, **context: Any) -> AttentionInputs:
    """Run the layer and return the inputs of its kernel, with `need` empty."""
    captured = []

    def record_inputs(inputs: AttentionInputs) -> AttentionOutput:
        captured.append(inputs._replace(need=()))
        return eager(inputs)

    layer.attend(x, kernel=record_inputs, **context)
    return captured[0]


def compute_reference_attention(inputs: AttentionInputs) -> AttentionOutput:
    """Compute softmax(score(scale q·k)) v over the visible keys; query head h reads KV head h // (H // G)."""
    q, k, v = inputs[:3]
    (B, H, T, _), (G, S) = q.shape, k.shape[1:3]
    mapped = None if inputs.score_map is None else _map_scores(inputs)
    outs = []
    lses = []
    maps = []
    for n in range(B):
        q_idx, kv_idx = (
            indices[n if len(indices) > 1 else 0, 0] for indices in (inputs.q_idx, inputs.kv_idx)
        )
        scores = []
        has_visible_key = []
        for head in range(H):
            b = torch.tensor(n)
            h = torch.tensor(head)
            group = head // (H // G)
            score = q[n, head] @ k[n, group].T * inputs.scale if mapped is None else mapped[n, head]
            for function in inputs.scores:
                score = function(score, b, h, q_idx, kv_idx)
            visible = torch.ones(T, S, dtype=torch.bool)
            if inputs.mask is not None:
                visible = inputs.mask(b, h, q_idx, kv_idx).expand(T, S)
            score = score.masked_fill(~visible, -torch.inf)
            peak = score.detach().amax(-1, keepdim=True).clamp(min=-1e300)
            terms = torch.where(visible, (score.masked_fill(~visible, 0.0) - peak).exp(), 0.0)
            total = terms.sum(-1, keepdim=True)
            maps.append(terms / total.masked_fill(total == 0, 1.0))
            lses.append((total.log() + peak).squeeze(-1).masked_fill(total.squeeze(-1) == 0, -torch.inf))
            scores.append(score)
            has_visible_key.append(visible.any(-1, keepdim=True))
        if inputs.normalizer is not None:
            weights = inputs.normalizer(torch.stack(scores)[None])[0]
            maps[-H:] = torch.where(torch.stack(has_visible_key), weights, 0.0)
        outs += [maps[n * H + head] @ v[n, head // (H // G)] for head in range(H)]
    return AttentionOutput(*(torch.stack(parts).unflatten(0, (B, H)) for parts in (outs, lses, maps)))


def _map_scores(inputs: AttentionInputs) -> Tensor:
    """Apply the score map to scale q·k, [B, H, T, S]."""
    assert inputs.score_map is not None
    (B, H, T, _), S = inputs.q.shape, inputs.k.shape[2]
    k = inputs.k.repeat_interleave(H // inputs.k.shape[1], 1)
    visible = torch.ones(B, H, T, S, dtype=torch.bool)
    if inputs.mask is not None:
        b, h = make_batch_head_indices(B, H, inputs.q.device)
        visible = inputs.mask(b, h, inputs.q_idx, inputs.kv_idx).expand(B, H, T, S)
    return inputs.score_map(torch.einsum("bhtd,bhsd->bhts", inputs.q, k) * inputs.scale, inputs, visible)


def _make_kernel_calls(variant: Variant) -> dict[str, AttentionInputs]:
    """Capture kernel inputs of several kinds of call.

    These are a full pass, the last queries alone (as in decoding), a batch with a fully masked row, scores in
    the thousands, a sequence longer than a tile, its last query, and 4 and 8 query heads per KV head with
    another scale.
    """
    layer = variant.make_layer()
    x = variant.make_input()
    with torch.no_grad():
        full = capture_kernel_inputs(layer, x)
        lengths = torch.tensor([0, variant.length])[: variant.batch]
        masked_row = capture_kernel_inputs(layer, x, mask=make_padding_mask(lengths))
        long_call = capture_kernel_inputs(
            layer, replace(variant, batch=1, length=MAX_LENGTH - 1).make_input()
        )
        large_scores = full._replace(q=full.q * 1e4)  # exp of a score overflows
    last = max(1, variant.length // 3)
    tail = full._replace(q=full.q[:, :, -last:], q_idx=full.q_idx[:, :, -last:], aligned=False)
    return {
        "full pass": full,
        "last queries": tail,
        "fully masked row": masked_row,
        "scores": large_scores,
        "long sequence": long_call,
        "last query of a long sequence": long_call._replace(
            q=long_call.q[:, :, -1:], q_idx=long_call.q_idx[:, :, -1:], aligned=False
        ),
        "4 query heads per KV head": _group_heads(full, 8),
        "8 query heads per KV head": _group_heads(full, 16),
    }


def _group_heads(inputs: AttentionInputs, n_heads: int) -> AttentionInputs:
    """Replace q, k and v by random ones of two KV heads, and whatever depends on the number of heads."""
    generator = torch.Generator().manual_seed(n_heads)
    q, k, v = (
        torch.randn(part.shape[0], heads, *part.shape[2:], generator=generator, dtype=torch.float64)
        for part, heads in zip(inputs[:3], (n_heads, 2, 2), strict=True)
    )
    indices = inputs.q_idx, inputs.kv_idx
    return AttentionInputs(q, k, v, *indices, 0.6 * inputs.scale, causal, aligned=inputs.aligned)


def check_kernel_matches_reference(variant: Variant) -> None:
    """1. A kernel equals the reference implementation of attention, gradients included where it has a
    backward pass.
    """
    kernel = variant.make_layer().kernel
    calls = _make_kernel_calls(variant)
    for name, inputs in calls.items():
        with torch.no_grad():
            actual, expected = (
                compute(inputs).out.transpose(1, 2) for compute in (kernel, compute_reference_attention)
            )
        assert_close(actual, expected, f"{name}, outputs", compute_tolerance(inputs))
    for name in ("full pass", "last queries", "fully masked row"):
        try:
            gradients = _compute_gradients(kernel, calls[name])
        except Unsupported:
            return  # no backward pass on this device; invariants that need gradients report it
        references = _compute_gradients(compute_reference_attention, calls[name])
        for tensor_name, gradient, reference in zip("qkv", gradients, references, strict=True):
            label = f"{name}, gradient of {tensor_name}"
            assert_close(gradient.transpose(1, 2), reference.transpose(1, 2), label)


def _compute_gradients(kernel: Kernel, inputs: AttentionInputs) -> list[Tensor]:
    """Compute the gradients of q, k and v; by `backward`, as reentrant checkpoints need."""
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in inputs[:3])
    project(kernel(inputs._replace(q=q, k=k, v=v)).out).backward()
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in (q, k, v)]


def check_kernel_returns_requested_outputs(variant: Variant) -> None:
    """1. A kernel returns the correct lse and weights if they are requested, or raises Unsupported."""
    kernel = variant.make_layer().kernel
    inputs = _make_kernel_calls(variant)["full pass"]
    kernel(inputs)
    for need in ("lse", "weights"):
        try:
            actual = getattr(kernel(inputs._replace(need=(need,))), need)
        except Unsupported:
            continue
        assert actual is not None, (
            f"the kernel did not return the requested {need}: raise Unsupported instead"
        )
        expected = getattr(compute_reference_attention(inputs), need)
        assert torch.equal(actual == -torch.inf, expected == -torch.inf), f"{need} of queries that see no key"
        assert_close(actual.nan_to_num(neginf=0.0), expected.nan_to_num(neginf=0.0), need)


@torch.no_grad()
def check_dropout_preserves_mean(variant: Variant) -> None:
    """23. A kernel with dropout drops attention weights and rescales the rest, which preserves the mean."""
    kernel = variant.make_layer().kernel
    inputs = capture_kernel_inputs(variant.make_layer(), variant.make_input())
    expected = eager(inputs).out
    try:
        with use_seed(0):
            outputs = torch.stack([kernel(inputs._replace(dropout=0.3)).out for _ in range(DROPOUT_PASSES)])
    except Unsupported:
        return  # a kernel that rejects dropout cannot apply it wrongly
    assert not torch.equal(outputs[0], outputs[1]), "dropout of 0.3 drops no weight"
    measure_mean_output(outputs, expected, DROPOUT_TOLERANCE)


def check_weights_sum_to_one(variant: Variant) -> None:
    """4. Attention weights are non-negative; a row sums to one, or to one minus the weight of the sink."""
    layer = variant.make_layer()
    if layer.normalizer is not None:
        _check_normalizer_weights(layer, variant.make_input())
        return
    with torch.no_grad():
        result = layer.attend(variant.make_input(), kernel=eager, need=("weights", "lse"))
    assert result.weights.min() >= 0, "a weight is negative"
    sink_weight = torch.zeros_like(result.lse)
    if isinstance(layer.epilogue, Sinks):
        logit = layer.epilogue.logit.detach()[:, None]
        sink_weight = logit.exp() / (logit.exp() + result.lse.exp())
    total = result.weights.sum(-1)
    fully_masked = result.lse == -torch.inf
    if layer.reweights and not isinstance(layer.epilogue, Sinks):
        assert total.max() <= 1 + 1e-12, f"a row sums to {total.max():.6g}, more than 1"
        return
    assert_close(total, (1 - sink_weight).masked_fill(fully_masked, 0.0), "sum of a row")


@torch.no_grad()
def _check_normalizer_weights(layer: Any, x: Tensor) -> None:
    weights = layer.attend(x, kernel=eager, need=("weights",)).weights
    capabilities = Capabilities.from_part(layer.normalizer)
    assert capabilities.is_signed or weights.min() >= 0, "a weight is negative"
    if capabilities.sums_to_one:
        total = weights.sum(-1)
        assert_close(total, (total > 0).to(total.dtype), "sum of a row")


def check_fully_masked_rows_are_zero(variant: Variant) -> None:
    """5. A query that sees no key gets exactly zero, and its gradients stay finite."""
    layer = variant.make_layer()
    x = variant.make_input()
    mask = make_padding_mask(torch.tensor([0, variant.length])[: variant.batch])
    with torch.no_grad():
        out = layer.kernel(capture_kernel_inputs(layer, x, mask=mask)).out
    assert out.isfinite().all(), "not finite"
    assert (out[0] == 0).all(), "a query without keys has a nonzero output"
    x.requires_grad_()
    layer.attend(x, mask=mask).out.square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all(), "a gradient is not finite"


def check_scale(variant: Variant) -> None:
    """10. Scores are q·k D^exponent times a multiplier: equal to unscaled scores of a q multiplied by these
    factors.
    """
    exponent = variant.attention.get(
        "scale_exponent", inspect.signature(Attention).parameters["scale_exponent"].default
    )
    multiplier = variant.attention.get("multiplier", 1.0)
    absorbs = Capabilities.from_part(variant.prototype.heads).can_absorb
    expanded = variant.with_changes(heads__absorbed=False) if absorbs else variant
    expanded = expanded.with_changes(forgetting=None)  # its features do not count toward the head dimension
    with torch.no_grad():
        inputs = capture_kernel_inputs(variant.make_layer(), variant.make_input())
        width = capture_kernel_inputs(expanded.make_layer(), variant.make_input()).k.shape[-1]
        scaled = eager(inputs).out
        larger = inputs.q * multiplier * float(width) ** exponent
        unscaled = eager(inputs._replace(q=larger, scale=1.0)).out
    assert_close(unscaled, scaled, f"scale at head_dim {width}")
