"""Invariants at other sizes: longer sequences, more and wider heads, at which parts may work in blocks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from attnlab.attention.contracts import Unsupported
from attnlab.testing.invariants import decoding, kernels, model_building, token_visibility, training
from attnlab.testing.invariants.variant import MAX_LENGTH, Variant

Check = Callable[[Variant], None]
LONG_LENGTH = MAX_LENGTH - 1
LARGER_LENGTH = 24
CHECKS: Sequence[Check] = (
    model_building.check_builds,
    token_visibility.check_masked_keys_get_no_gradient,
    training.check_gradients_match_finite_differences,
    training.check_batch_rows_are_independent,
    model_building.check_trains,
)
ATTENTION_CHECKS: Sequence[Check] = (kernels.check_kernel_matches_reference, kernels.check_weights_sum_to_one)
CACHE_CHECKS: Sequence[Check] = (decoding.check_model_decode_equals_full_pass, decoding.check_state_size)


def check_long_sequences_train(variant: Variant) -> None:
    """28. In a sequence of hundreds of tokens, gradients match finite differences, and rows of weights sum to
    one.
    """
    longer = replace(variant, batch=1, length=LONG_LENGTH)
    training.check_gradients_match_finite_differences(longer)
    if variant.is_attention:
        kernels.check_weights_sum_to_one(longer)


def check_more_and_wider_heads(variant: Variant) -> None:
    """28. With more and wider heads, invariants of kernels, gradients, decoding and counts hold as well, and
    every head and every feature of a parameter gets a gradient.
    """
    if variant.larger is None:
        raise Unsupported("the variant cannot be built with 20 heads of 36 features")
    larger = replace(variant.larger, length=min(LARGER_LENGTH, variant.larger.length))
    checks = [*CHECKS]
    checks += ATTENTION_CHECKS if larger.is_attention else ()
    checks += CACHE_CHECKS if larger.cache is not None else ()
    checks += [training.check_declared_costs_match_counts] if training.has_declared_costs(larger) else []
    checks.append(_require_gradients_of_all_entries)
    for check in checks:
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
