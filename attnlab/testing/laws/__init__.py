"""The laws of attention, as plain functions `check_x(variant)` that assert; numbered as in DESIGN.md, "Laws".

Each says to which variants it applies, by what they declare. `attnlab.testing` tries them.
"""

from collections.abc import Callable
from typing import NamedTuple

from attnlab.testing.laws import building, decoding, kernels, parts, positions, training, visibility, width
from attnlab.testing.laws.variant import Variant

Applies = Callable[[Variant], bool]


class Law(NamedTuple):
    """A check, and to which variants it applies. `sized`: it goes by the variant's batch and length."""

    check: Callable[[Variant], None]
    applies: Applies
    sized: bool = True

    @property
    def name(self) -> str:
        """The name of the check, as users see it."""
        return self.check.__name__.removeprefix("check_")

    @property
    def says(self) -> str:
        """The law in a sentence, after its number."""
        return " ".join((self.check.__doc__ or "").split())


def _always(variant: Variant) -> bool:
    return True


def _attention(variant: Variant) -> bool:
    return variant.is_attention


def _cached(variant: Variant) -> bool:
    return variant.cache is not None


LAWS = (
    Law(building.check_builds, _always),
    Law(positions.check_look_ahead_is_declared, _attention, sized=False),
    Law(positions.check_masks_and_scores_answer_by_position, _attention, sized=False),
    Law(kernels.check_kernel_agrees, _attention),
    Law(kernels.check_kernel_keeps_its_word, _attention),
    Law(decoding.check_decode_equals_full_pass, _cached),
    Law(decoding.check_model_decode_equals_full_pass, _cached),
    Law(decoding.check_left_padded_decode, _cached),
    Law(decoding.check_cache_reorder, _cached),
    Law(decoding.check_long_texts_decode, _cached, sized=False),
    Law(decoding.check_cache_room, decoding.has_room, sized=False),
    Law(visibility.check_masked_keys_get_no_gradient, _always),
    Law(visibility.check_model_does_not_leak, _always),
    Law(visibility.check_long_texts_do_not_leak, _always, sized=False),
    Law(positions.check_bias_is_what_is_added, positions.has_bias, sized=False),
    Law(positions.check_shift_changes_nothing, positions.is_relative),
    Law(kernels.check_weights_sum_to_one, _attention),
    Law(kernels.check_blind_rows_are_zero, _attention),
    Law(parts.check_grouped_heads_repeat, parts.has_grouped_heads),
    Law(parts.check_wide_mask_is_causal, parts.has_window_or_prefix),
    Law(parts.check_rotation_is_relative, parts.has_rotary),
    Law(parts.check_permutation, _attention),
    Law(kernels.check_dropout_keeps_the_mean, _attention, sized=False),
    Law(kernels.check_scale, _attention),
    Law(parts.check_softcap, parts.has_softcap),
    Law(parts.check_sink, parts.has_sink),
    Law(parts.check_gate, parts.has_gate),
    Law(parts.check_absorbed, parts.has_absorbing_heads),
    Law(decoding.check_state_size, _cached),
    Law(building.check_same_seed_same_bits, _always),
    Law(building.check_layers_share_nothing, _always),
    Law(visibility.check_right_padding, visibility.keeps_its_past),
    Law(visibility.check_left_padding, visibility.keeps_its_past),
    Law(visibility.check_documents, visibility.keeps_its_past),
    Law(building.check_trains, _always),
    Law(training.check_parameters_are_registered, _always, sized=False),
    Law(training.check_gradients_are_the_functions, _always),
    Law(training.check_train_equals_eval, _always),
    Law(training.check_rows_are_apart, _always),
    Law(training.check_can_be_measured, _always),
    Law(training.check_costs_are_counted, training.says_its_costs, sized=False),
    Law(width.check_width_changes_no_size, width.is_scaled, sized=False),
)
