"""Invariants of attention: functions `check_x(variant)` that assert, numbered as in DESIGN.md.

Each invariant is paired with a predicate that selects its variants by their declared capabilities.
`attnlab.testing` evaluates them.
"""

from collections.abc import Callable
from typing import NamedTuple

from attnlab.attention.contracts import Capabilities
from attnlab.testing import checks
from attnlab.testing.checks import Check
from attnlab.testing.invariants import (
    attention_parts,
    decoding,
    kernels,
    masks_and_scores,
    measurements,
    model_building,
    sizes,
    token_visibility,
    width_scaling,
)
from attnlab.testing.invariants.subjects import InitializedSubject, LayerSubject, ModelSubject, run_check
from attnlab.testing.invariants.variant import Variant

Applies = Callable[[Variant], bool]


class Invariant(NamedTuple):
    """A check, and a predicate for the variants to which it applies.

    `uses_trial_size`: the check depends on the variant's `batch` and `length`.
    """

    check: Callable[[Variant], None]
    applies: Applies
    uses_trial_size: bool = True

    @property
    def name(self) -> str:
        """Name of the check as users see it, without `check_`."""
        return self.check.__name__.removeprefix("check_")

    @property
    def statement(self) -> str:
        """The invariant in a sentence that starts with its number: the docstring of the check."""
        return " ".join((self.check.__doc__ or "").split())


def _applies_always(variant: Variant) -> bool:
    return True


def _is_attention(variant: Variant) -> bool:
    return variant.is_attention


def _has_cache(variant: Variant) -> bool:
    return variant.cache is not None


def _is_length_independent(variant: Variant) -> bool:
    return not Capabilities.from_part(variant.prototype).changes_with_length


def _decodes_padding(variant: Variant) -> bool:
    return _has_cache(variant) and _is_length_independent(variant)


def _share(
    check: Check,
    number: int,
    applies: Applies = _applies_always,
    subject: Callable[[Variant], LayerSubject] = LayerSubject,
    size: tuple[int, int] | None = None,
) -> Invariant:
    """Make an invariant of this number in DESIGN of a check of any attention module.

    Args:
        size: Rows and tokens of the check; by default those of the variant.
    """

    def check_variant(variant: Variant) -> None:
        run_check(check, subject(variant), *(size or (variant.batch, variant.length)))

    prefix = "check_" if subject is LayerSubject else "check_model_"
    check_variant.__name__ = check.__name__.replace("check_", prefix)
    check_variant.__doc__ = f"{number}. {check.__doc__}"
    return Invariant(check_variant, applies, uses_trial_size=size is None)


INVARIANTS = (
    Invariant(model_building.check_builds, _applies_always),
    Invariant(masks_and_scores.check_future_visibility_is_declared, _is_attention, uses_trial_size=False),
    Invariant(
        masks_and_scores.check_masks_and_scores_depend_on_positions, _is_attention, uses_trial_size=False
    ),
    Invariant(kernels.check_kernel_matches_reference, _is_attention),
    Invariant(kernels.check_kernel_returns_requested_outputs, _is_attention),
    _share(checks.check_cache, 2, _has_cache),
    _share(checks.check_cache, 2, _has_cache, ModelSubject),
    _share(checks.check_left_padding, 2, _decodes_padding, ModelSubject),
    Invariant(decoding.check_cache_reorder, _has_cache),
    Invariant(decoding.check_cache_capacity, decoding.has_bounded_cache, uses_trial_size=False),
    _share(checks.check_causality, 3),
    _share(checks.check_context, 3),
    _share(checks.check_causality, 3, subject=ModelSubject),
    Invariant(masks_and_scores.check_bias_is_additive, masks_and_scores.has_bias, uses_trial_size=False),
    Invariant(masks_and_scores.check_shift_invariance, masks_and_scores.is_relative),
    Invariant(kernels.check_weights_sum_to_one, _is_attention),
    Invariant(kernels.check_fully_masked_rows_are_zero, _is_attention),
    Invariant(attention_parts.check_grouped_heads_equal_repeated_heads, attention_parts.has_grouped_heads),
    Invariant(attention_parts.check_wide_mask_is_causal, attention_parts.has_window_or_prefix),
    Invariant(attention_parts.check_rotation_is_relative, attention_parts.has_rotary),
    Invariant(attention_parts.check_permutation_equivariance, _is_attention),
    Invariant(kernels.check_dropout_preserves_mean, _is_attention, uses_trial_size=False),
    Invariant(kernels.check_scale, _is_attention),
    Invariant(attention_parts.check_softcap, attention_parts.has_softcap),
    Invariant(attention_parts.check_sink, attention_parts.has_sink),
    Invariant(attention_parts.check_gate, attention_parts.has_gate),
    Invariant(attention_parts.check_absorbed_heads, attention_parts.has_absorbing_heads),
    Invariant(decoding.check_state_size, _has_cache),
    _share(checks.check_determinism, 15),
    _share(checks.check_determinism, 15, subject=InitializedSubject),
    _share(checks.check_parameters, 16),
    _share(checks.check_right_padding, 17, _is_length_independent),
    _share(checks.check_left_padding, 17, _is_length_independent),
    Invariant(token_visibility.check_packed_documents, _is_length_independent),
    Invariant(model_building.check_trains, _applies_always),
    _share(checks.check_training_mode, 21),
    _share(checks.check_batch, 21),
    Invariant(measurements.check_measurements_succeed, _applies_always),
    Invariant(
        measurements.check_declared_costs_match_counts, measurements.has_declared_costs, uses_trial_size=False
    ),
    _share(checks.check_gradients, 24),
    Invariant(
        width_scaling.check_activations_are_width_invariant,
        width_scaling.has_parametrization,
        uses_trial_size=False,
    ),
    _share(checks.check_dtypes, 26, size=checks.SIZES[checks.check_dtypes][0]),  # fewer tokens have no median
    _share(checks.check_strides, 27),
    _share(checks.check_state, 27),
    _share(checks.check_random_state, 27),
    _share(checks.check_random_state, 27, subject=ModelSubject),
    Invariant(sizes.check_long_sequences, _applies_always, uses_trial_size=False),
    Invariant(sizes.check_more_and_wider_heads, sizes.has_larger_sizes, uses_trial_size=False),
)
