"""Invariants at other sizes: longer sequences, more and wider heads, at which parts may work in blocks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from attnlab.attention.contracts import Unsupported
from attnlab.testing.checks import (
    SIZES,
    Check,
    check_batch,
    check_cache,
    check_causality,
    check_gradients,
)
from attnlab.testing.invariants import decoding, kernels, measurements, model_building
from attnlab.testing.invariants.masks_and_scores import choose_long_length
from attnlab.testing.invariants.subjects import LayerSubject, run_check
from attnlab.testing.invariants.variant import MAX_LENGTH, Variant

LARGER_LENGTH = 24
TRIAL_LENGTH = 23  # tokens, which with these rows are about the size of the other trials
TRIAL_ROWS = (2, 3)
LARGER_CHECKS: Sequence[Check] = (check_causality, check_gradients, check_batch, check_cache)


def check_long_sequences(variant: Variant) -> None:
    """28. The checks of all modules hold with one row, with many, and in sequences of hundreds of tokens,
    beyond the constants in the source of its parts too; rows of weights sum to one there.
    """
    subject = LayerSubject(variant)
    longest = 1, choose_long_length(variant.attention, variant.cache)
    for check, sizes in SIZES.items():
        for rows, length in (*sizes, longest) if check in (check_causality, check_cache) else sizes:
            if length > TRIAL_LENGTH or rows not in TRIAL_ROWS:
                with suppress(Unsupported):
                    run_check(check, subject, rows, length)
    if variant.is_attention:
        kernels.check_weights_sum_to_one(replace(variant, batch=1, length=MAX_LENGTH - 1))


def check_more_and_wider_heads(variant: Variant) -> None:
    """28. With more and wider heads, invariants of kernels, gradients, decoding and counts hold as well, and
    every head and every feature of a parameter gets a gradient.
    """
    if variant.larger is None:
        raise Unsupported("the variant cannot be built with 20 heads of 36 features")
    larger = replace(variant.larger, length=min(LARGER_LENGTH, variant.larger.length))
    subject = LayerSubject(larger)
    for property_check in LARGER_CHECKS:
        with suppress(Unsupported):
            run_check(property_check, subject, larger.batch, larger.length)
    checks: list[Callable[[Variant], None]] = [model_building.check_builds, model_building.check_trains]
    checks += (
        [kernels.check_kernel_matches_reference, kernels.check_weights_sum_to_one]
        if larger.is_attention
        else []
    )
    checks += [decoding.check_state_size] if larger.cache is not None else []
    checks += (
        [measurements.check_declared_costs_match_counts] if measurements.has_declared_costs(larger) else []
    )
    for check in (*checks, _require_gradients_of_all_entries):
        with suppress(Unsupported):
            check(larger)


def _require_gradients_of_all_entries(variant: Variant) -> None:
    """Check that every index along a dimension of heads or features changes the output."""
    layer = variant.make_layer()
    sizes = {variant.dim}
    if variant.is_attention:
        sizes |= {layer.heads.n_heads, variant.dim // layer.heads.n_heads}
    y = layer(variant.make_input())
    (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    for name, parameter in layer.named_parameters():
        if parameter.grad is None:  # of frozen ones; check_trains reports the others
            continue
        for dim, size in enumerate(parameter.shape):
            sizes_along = parameter.grad.abs().movedim(dim, 0).reshape(size, -1).amax(1)
            if size in sizes and not sizes_along.all():
                index = int((sizes_along == 0).nonzero()[0])
                raise AssertionError(
                    f"{name} of shape {tuple(parameter.shape)} gets no gradient at index {index} of "
                    f"dimension {dim}"
                )


def has_larger_sizes(variant: Variant) -> bool:
    """Whether the variant was composed from options, which can be composed in other sizes."""
    return variant.make_larger is not None
