"""Laws of what training sees: the model that is evaluated, row by row, and all that a run measures of it."""

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
from attnlab.measure import size
from attnlab.measure.counts import counted, formula
from attnlab.measure.heads import head_scores
from attnlab.measure.maps import attention_maps
from attnlab.testing.laws.variant import Variant, named_generator, same

COUNTS = ("flops", "read_width", "projection")


@contextmanager
def _without_dropout(layer: Any) -> Iterator[Any]:
    """The layer, while nothing is dropped: torch's function does nothing, and kernels are not asked to."""
    for module in layer.modules():
        if isinstance(module, Attention):
            module.dropout = 0.0
    dropout = F.dropout
    F.dropout = lambda x, *settings, **more: x
    try:
        yield layer
    finally:
        F.dropout = dropout


@torch.no_grad()
def check_train_equals_eval(variant: Variant) -> None:
    """21. Without dropout, training computes what evaluation computes, however often."""
    x = variant.x()
    expected = variant.layer()(variant.x())
    with _without_dropout(variant.layer().train()) as training, torch.random.fork_rng(devices=[]):
        for n in ("first", "second"):
            same(training(x), expected, f"the {n} pass in training, and in evaluation")


@torch.no_grad()
def check_rows_are_apart(variant: Variant) -> None:
    """21. What a row of a batch gets does not depend on the other rows, in training and in evaluation."""
    x = torch.cat((variant.x(2), 3 * variant.x(2).flip(1)))
    for mode in (True, False):
        with _without_dropout(variant.layer().train(mode)) as layer, torch.random.fork_rng(devices=[]):
            alone = torch.cat([layer(row[None]) for row in x])
            same(layer(x), alone, f"rows together and alone, {'training' if mode else 'evaluation'}")


def check_gradients_are_the_functions(variant: Variant) -> None:
    """24. The gradient is that of what is computed, along one direction of the input and of all weights:
    nothing is detached, and nothing rounded on the way.
    """
    layer = variant.layer()
    x = variant.x()
    tensors = [x, *(p for p in layer.parameters() if p.requires_grad)]
    towards = [
        torch.randn(t.shape, dtype=t.dtype, generator=named_generator(n, "direction")) * _size(t)
        for n, t in enumerate(tensors)
    ]

    def value() -> Tensor:
        y = layer(x)
        return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()

    def moved_by(distance: float) -> float:
        with torch.no_grad():
            for tensor, direction in zip(tensors, towards, strict=True):
                tensor.add_(direction, alpha=distance)
            return value().item()

    def difference(distance: float) -> float:
        change = moved_by(distance) - moved_by(-2 * distance)
        moved_by(distance)
        return change / (2 * distance)

    x.requires_grad_()
    given = torch.autograd.grad(value(), tensors, allow_unused=True)
    slope = sum(float((g * to).sum()) for g, to in zip(given, towards, strict=True) if g is not None)
    for step in (1e-3, 1e-5, 1e-7):  # the later ones, where an earlier step crosses a kink
        # Richardson's: what large scores bend within a step cancels
        seen = (4 * difference(step / 2) - difference(step)) / 3
        if abs(slope - seen) <= 1e-3 * max(1.0, abs(seen)):
            return
    raise AssertionError(
        f"along one direction the output changes by {seen:.6g}, the gradient says {slope:.6g}"
    )


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().square().mean().sqrt()) or 1.0


def check_parameters_are_registered(variant: Variant) -> None:
    """18. Every parameter that a part holds, in a list or a dict too, is one of the layer's parameters."""
    layer = variant.specimen
    known = {id(parameter) for parameter in layer.parameters()}
    parts = [*layer.modules(), *getattr(layer, "scores", ())]
    parts += [getattr(layer, name, None) for name in ("mask", "rotary", "kernel", "epilogue")]
    for part in parts:
        for name, value in getattr(part, "__dict__", {}).items():
            if any(id(p) not in known for p in _parameters(value)):
                kind = type(part).__name__
                raise AssertionError(f"{kind}.{name} holds a parameter that is not the layer's: register it")


def _parameters(value: Any) -> Iterator[nn.Parameter]:
    if isinstance(value, nn.Parameter):
        yield value
    elif type(value) in (list, tuple, dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parameters(part)


def check_can_be_measured(variant: Variant) -> None:
    """22. What a run measures can be measured: attention maps, head scores, parameters, FLOPs, cached bytes,
    and bytes kept for the backward pass.
    """
    model = variant.model().float()
    tokens = variant.tokens()[:1]
    attention_maps(model, tokens)
    head_scores(model, [tokens], variant.length)
    size.parameters(model)
    size.kv_bytes(model, tokens)
    with torch.device("meta"):
        paper = variant.model(seed=0).float()
    size.flops_per_token(paper, variant.length)
    size.saved_for_backward(lambda: model(tokens).sum(), model)


def check_costs_are_counted(variant: Variant) -> None:
    """22. What heads say of their FLOPs is what is counted while they generate, and they read no more than
    they say: keys that are values too are read once.
    """
    model = variant.but(epilogue=None).model()
    prompt = torch.zeros(1, 5, dtype=torch.long)
    for make_cache in (None, DynamicCache):
        try:
            got = counted(model, prompt, 3, make_cache)
        except Unsupported:
            continue
        said = formula(model, 1, 5, 3, make_cache is not None)
        told = f"counted {got}, the heads say {said}"
        assert replace(got, read=0) == replace(said, read=0), told
        assert got.read <= said.read, told


def says_its_costs(variant: Variant) -> bool:
    """Heads that tell what they cost; only counts ask them."""
    return variant.is_attention and all(hasattr(variant.specimen.heads, name) for name in COUNTS)
