"""Invariants of attention: functions `check_x(variant)` that assert, numbered as in DESIGN.md.

Each invariant is paired with a predicate that selects its variants by their declared capabilities.
`attnlab.testing` evaluates them.
"""

from collections.abc import Callable
from typing import NamedTuple

from attnlab.testing.invariants import (
    attention_parts,
    decoding,
    kernels,
    masks_and_scores,
    model_building,
    precision,
    side_effects,
    sizes,
    token_visibility,
    training,
    width_scaling,
)
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


INVARIANTS = (
    Invariant(model_building.check_builds, _applies_always),
    Invariant(masks_and_scores.check_future_visibility_is_declared, _is_attention, uses_trial_size=False),
    Invariant(
        masks_and_scores.check_masks_and_scores_depend_on_positions, _is_attention, uses_trial_size=False
    ),
    Invariant(kernels.check_kernel_matches_reference, _is_attention),
    Invariant(kernels.check_kernel_returns_requested_outputs, _is_attention),
    Invariant(decoding.check_decode_equals_full_pass, _has_cache),
    Invariant(decoding.check_model_decode_equals_full_pass, _has_cache),
    Invariant(decoding.check_left_padded_decode, _has_cache),
    Invariant(decoding.check_cache_reorder, _has_cache),
    Invariant(decoding.check_long_sequences_decode, _has_cache, uses_trial_size=False),
    Invariant(decoding.check_cache_capacity, decoding.has_bounded_cache, uses_trial_size=False),
    Invariant(token_visibility.check_masked_keys_get_no_gradient, _applies_always),
    Invariant(token_visibility.check_model_does_not_leak, _applies_always),
    Invariant(token_visibility.check_long_sequences_do_not_leak, _applies_always, uses_trial_size=False),
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
    Invariant(model_building.check_same_seed_same_bits, _applies_always),
    Invariant(model_building.check_layers_share_no_parameters, _applies_always),
    Invariant(token_visibility.check_right_padding, token_visibility.is_length_independent),
    Invariant(token_visibility.check_left_padding, token_visibility.is_length_independent),
    Invariant(token_visibility.check_packed_documents, token_visibility.is_length_independent),
    Invariant(model_building.check_trains, _applies_always),
    Invariant(training.check_parameters_are_registered, _applies_always, uses_trial_size=False),
    Invariant(training.check_gradients_match_finite_differences, _applies_always),
    Invariant(training.check_train_equals_eval, _applies_always),
    Invariant(training.check_batch_rows_are_independent, _applies_always),
    Invariant(side_effects.check_calls_have_no_side_effects, _applies_always),
    Invariant(side_effects.check_loaded_weights_determine_outputs, _applies_always, uses_trial_size=False),
    Invariant(side_effects.check_training_keeps_random_state, _applies_always, uses_trial_size=False),
    Invariant(precision.check_lower_precision, _applies_always, uses_trial_size=False),
    Invariant(sizes.check_long_sequences_train, _applies_always, uses_trial_size=False),
    Invariant(sizes.check_more_and_wider_heads, sizes.has_larger_sizes, uses_trial_size=False),
    Invariant(training.check_measurements_succeed, _applies_always),
    Invariant(training.check_declared_costs_match_counts, training.has_declared_costs, uses_trial_size=False),
    Invariant(
        width_scaling.check_activations_are_width_invariant,
        width_scaling.has_parametrization,
        uses_trial_size=False,
    ),
)
