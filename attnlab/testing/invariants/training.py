"""Invariants of training: equality with evaluation, independent rows, gradients, and run measurements."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.layer import Attention
from attnlab.measure import resources
from attnlab.measure.attention_maps import compute_attention_maps
from attnlab.measure.generation_costs import count_generation_cost, predict_generation_cost
from attnlab.measure.head_scoring import compute_head_scores
from attnlab.testing.invariants.masks_and_scores import draw_long_input
from attnlab.testing.invariants.variant import Variant, assert_close, make_named_generator

ROWS = 34  # parts may work on rows in groups of up to 32
COST_METHODS = ("flops", "read_width", "projection")


@contextmanager
def _disable_dropout(layer: Any) -> Iterator[Any]:
    """Yield the layer with dropout disabled, both in `torch.nn.functional` and in its kernels."""
    for module in layer.modules():
        if isinstance(module, Attention):
            module.dropout = 0.0
    dropout = F.dropout
    F.dropout = lambda x, *settings, **more: x
    try:
        yield layer
    finally:
        F.dropout = dropout


def _draws_random_numbers(layer: Any, x: Tensor) -> bool:
    before = torch.get_rng_state()
    layer(x)
    return not torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def check_train_equals_eval(variant: Variant) -> None:
    """21. Without dropout, training computes the outputs of evaluation, on every call."""
    x = variant.make_input()
    expected = variant.make_layer()(variant.make_input())
    with _disable_dropout(variant.make_layer().train()) as training, torch.random.fork_rng(devices=[]):
        if _draws_random_numbers(training, x):  # dropout of its own, whose results have no reference
            return
        for ordinal in ("first", "second"):
            assert_close(training(x), expected, f"the {ordinal} pass in training, and in evaluation")


@torch.no_grad()
def check_batch_rows_are_independent(variant: Variant) -> None:
    """21. A row's outputs do not depend on the other rows of the batch, in training and in evaluation."""
    x = draw_long_input(variant, ROWS, variant.length)
    x[::2] *= 3
    for mode in (True, False):
        with _disable_dropout(variant.make_layer().train(mode)) as layer, torch.random.fork_rng(devices=[]):
            if mode and _draws_random_numbers(layer, x):
                continue
            expected = torch.cat([layer(row[None]) for row in x])
            assert_close(
                layer(x), expected, f"rows together and alone, {'training' if mode else 'evaluation'}"
            )


def check_gradients_match_finite_differences(variant: Variant) -> None:
    """24. The gradient equals finite differences along one direction of the input and all weights: nothing is
    detached, and nothing is rounded to lower precision.
    """
    layer = variant.make_layer()
    x = variant.make_input()
    tensors = [x, *(p for p in layer.parameters() if p.requires_grad)]
    directions = [
        torch.randn(t.shape, dtype=t.dtype, generator=make_named_generator(n, "direction")) * _compute_rms(t)
        for n, t in enumerate(tensors)
    ]

    def compute_value() -> Tensor:
        y = layer(x)
        return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()

    def move_and_evaluate(distance: float) -> float:
        with torch.no_grad():
            for tensor, direction in zip(tensors, directions, strict=True):
                tensor.add_(direction, alpha=distance)
            return compute_value().item()

    def compute_difference_quotient(distance: float) -> float:
        change = move_and_evaluate(distance) - move_and_evaluate(-2 * distance)
        move_and_evaluate(distance)
        return change / (2 * distance)

    x.requires_grad_()
    gradients = torch.autograd.grad(compute_value(), tensors, allow_unused=True)
    slope = sum(
        float((gradient * direction).sum())
        for gradient, direction in zip(gradients, directions, strict=True)
        if gradient is not None
    )
    for step in (1e-3, 1e-5, 1e-7):  # smaller steps, in case an earlier one crosses a kink
        # Richardson extrapolation cancels the curvature of large scores within a step
        finite_difference = (
            4 * compute_difference_quotient(step / 2) - compute_difference_quotient(step)
        ) / 3
        if abs(slope - finite_difference) <= 1e-3 * max(1.0, abs(finite_difference)):
            return
    raise AssertionError(
        f"along one direction the finite difference is {finite_difference:.6g}, but the gradient is "
        f"{slope:.6g}"
    )


def _compute_rms(tensor: Tensor) -> float:
    return float(tensor.detach().square().mean().sqrt()) or 1.0


def check_parameters_are_registered(variant: Variant) -> None:
    """18. Every parameter that a part holds, also in a list or dict, is one of the layer's parameters."""
    layer = variant.prototype
    registered = {id(parameter) for parameter in layer.parameters()}
    parts = [*layer.modules(), *getattr(layer, "scores", ())]
    parts += [getattr(layer, name, None) for name in ("mask", "rotary", "kernel", "epilogue")]
    for part in parts:
        for name, value in getattr(part, "__dict__", {}).items():
            if any(id(p) not in registered for p in _iter_parameters(value)):
                kind = type(part).__name__
                raise AssertionError(
                    f"{kind}.{name} is a parameter that the layer does not contain: register it"
                )


def _iter_parameters(value: Any) -> Iterator[nn.Parameter]:
    if isinstance(value, nn.Parameter):
        yield value
    elif type(value) in (list, tuple, dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _iter_parameters(part)


def check_measurements_succeed(variant: Variant) -> None:
    """22. All measurements of a run succeed: attention maps, head scores, parameters, FLOPs, cached bytes,
    and bytes saved for the backward pass.
    """
    model = variant.make_model().float()
    tokens = variant.make_tokens()[:1]
    compute_attention_maps(model, tokens)
    compute_head_scores(model, [tokens], variant.length)
    resources.count_parameters(model)
    resources.count_kv_bytes(model, tokens)
    with torch.device("meta"):
        meta_model = variant.make_model(seed=0).float()
    resources.count_flops_per_token(meta_model, variant.length)
    resources.count_saved_bytes(lambda: model(tokens).sum(), model)


def check_declared_costs_match_counts(variant: Variant) -> None:
    """22. The declared FLOPs of heads equal the counted FLOPs of generation, and heads read no more bytes
    than they declare: keys that are also values are read once. Products within rotations, scores and
    epilogues do not count.
    """
    changes: dict[str, Any] = {"epilogue": None, "rotary": None, "scores": {}}
    if variant.prototype.heads.n_heads == 1:
        changes["normalizer"] = None  # torch counts no mixture of one head
    model = variant.with_changes(**changes).make_model()
    prompt = torch.zeros(1, 5, dtype=torch.long)
    for make_cache in (None, DynamicCache):
        try:
            counted = count_generation_cost(model, prompt, 3, make_cache)
        except Unsupported:
            continue
        predicted = predict_generation_cost(model, 1, 5, 3, make_cache is not None)
        message = f"counted {counted}, but the heads declare {predicted}"
        projections = counted.projections or predicted.projections  # 0 if they use the weights alone
        counted = replace(counted, projections=projections)
        assert replace(counted, bytes_read=0) == replace(predicted, bytes_read=0), message
        assert counted.bytes_read <= predicted.bytes_read, message


def has_declared_costs(variant: Variant) -> bool:
    """Whether the heads declare their costs; only cost counts require it."""
    return variant.is_attention and all(hasattr(variant.prototype.heads, name) for name in COST_METHODS)
