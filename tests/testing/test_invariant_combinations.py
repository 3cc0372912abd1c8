"""All invariants on shipped values: each alone, any two together, and any three for quick invariants.

A failure names the combination. Combinations that cannot work are declared in
`testing.invariants.unsupported_combinations`, strictly.
"""

from functools import cache

import pytest
from covering_array import build_covering_array

from attnlab import testing
from attnlab.testing.invariants import INVARIANTS
from attnlab.testing.invariants.unsupported_combinations import (
    BUILD_INVARIANTS,
    UNSUPPORTED_COMBINATIONS,
    find_unsupported_combination,
)
from attnlab.testing.invariants.variant_composition import (
    AXES,
    BASE_SIZES,
    DEFAULT_CHOICES,
    DEFAULT_MODEL_CHOICES,
    MODEL_AXES,
    combine_choices,
    iter_single_axis_variants,
    list_options,
    vary_one_axis,
)

SINGLE_VALUE_ONLY = {  # independent of combinations, or expensive (splits at every token)
    "model_determinism",
    "parameters",
    "dtypes",
    "trains",
    "cache",
    "measurements_succeed",
    "long_sequences",
    "dropout_preserves_mean",
    "more_and_wider_heads",
    "determinism",
    "model_random_state",
    "activations_are_width_invariant",
}
QUICK = {
    "builds",
    "kernel_returns_requested_outputs",
    "cache_reorder",
    "causality",
    "weights_sum_to_one",
    "right_padding",
    "left_padding",
    "packed_documents",
}
# slow with flex on a CPU
SLOW = {
    "cache",
    "long_sequences",
    "more_and_wider_heads",
}
# invariants that a kernel alone can break
FLEX = {*QUICK, "kernel_matches_reference", "fully_masked_rows_are_zero", "scale"}
EACH_TIME = ("mha",)  # heads combined in every test run; other heads only in rare tests
CACHES = {"static": ("causal", "prefix", "full"), "sliding": ("window", "window_sinks")}


def list_impossible_choices():
    """List the sets of choices that cannot be built together."""
    return [
        frozenset(combination.choices)
        for combination in UNSUPPORTED_COMBINATIONS
        if combination.invariants == BUILD_INVARIANTS
    ]


@cache
def build_crossed_rows(strength):
    """Build rows in which any values of any `strength` axes meet, in the layers of both blocks.

    flex is slow on a CPU and has tests of its own below.
    """
    axes = {axis: list_options(axis) for axis in AXES if axis != "decode"}
    kernels_and_models = {"kernel": ["eager", "sdpa"], "model": ["gpt", "llama"]}
    return build_covering_array({**axes, **kernels_and_models}, strength, list_impossible_choices())


def find_undeclared_failures(variants, invariant_names):
    """List failed outcomes, and unsupported ones without a declaration."""
    failures = []
    for variant in variants:
        for outcome in testing.evaluate_variant(variant, invariant_names):
            is_undeclared = (
                outcome.status == "unsupported"
                and find_unsupported_combination(outcome.invariant, variant.choices) is None
            )
            if is_undeclared or outcome.status == "failed":
                failures.append(str(outcome))
    return failures


ALL_INVARIANTS = {invariant.name for invariant in INVARIANTS}


@pytest.mark.rare(sample=13)
@pytest.mark.parametrize("axis", ["model", *AXES, *MODEL_AXES])
def test_each_value_alone_satisfies_all_invariants(axis):
    """Check each value alone; the default values make one model, tested only once."""
    for option in list_options(axis):
        if option != {**DEFAULT_CHOICES, **DEFAULT_MODEL_CHOICES}.get(axis):
            assert (
                find_undeclared_failures(
                    [vary_one_axis(axis, option)], FLEX if option == "flex" else ALL_INVARIANTS
                )
                == []
            )


@pytest.mark.rare(sample=3)
@pytest.mark.parametrize("option", list_options("layers"))
def test_each_layer_kind_of_a_hybrid_satisfies_all_invariants(option):
    sizes = (*BASE_SIZES, "kernel=eager", "heads=gqa")
    variants = testing.compose_variants([f"layers={option}", *sizes])
    assert len(variants) == (1 if option in ("uniform", "cross_layer") else 2)
    assert find_undeclared_failures(variants, ALL_INVARIANTS) == []


@pytest.mark.parametrize(
    "choices",
    [
        {"heads": "gla", "score": "forget"},
        {"heads": "mla", "score": "forget"},
        {"heads": "single", "normalizer": "talking"},
    ],
)
def test_pairs_of_values_cost_what_they_declare(choices):
    variant = combine_choices(**choices)
    assert find_undeclared_failures([variant], {"declared_costs_match_counts"}) == []


@pytest.mark.parametrize("option", ["score=multi_token", "epilogue=convolved"])
@pytest.mark.parametrize("layers", ["cross_layer", "yoco"])
def test_layers_that_share_keys_may_have_recurrent_state(layers, option):
    variants = testing.compose_variants(
        [f"layers={layers}", option, "heads=gqa", "kernel=eager", *BASE_SIZES]
    )
    invariants = {"builds", "cache_reorder", "state_size", "left_padding"}
    assert find_undeclared_failures(variants, invariants) == []


def test_rank_one_tensor_product_satisfies_all_invariants():
    variants = testing.compose_variants(
        ["heads=tpa", "model.attention.heads.rank=1", *BASE_SIZES, "kernel=eager"]
    )
    assert find_undeclared_failures(variants, ALL_INVARIANTS) == []


@pytest.mark.rare
def test_flex_satisfies_all_but_slow_invariants():
    assert find_undeclared_failures([vary_one_axis("kernel", "flex")], ALL_INVARIANTS - SLOW) == []


@pytest.mark.parametrize(
    "heads",
    [
        pytest.param(each, marks=[] if each in EACH_TIME else [pytest.mark.rare])
        for each in list_options("heads")
    ],
)
def test_all_pairs_of_values_satisfy_invariants(heads):
    variants = [combine_choices(**row) for row in build_crossed_rows(2) if row["heads"] == heads]
    assert len(variants) >= len(list_options("position"))
    assert find_undeclared_failures(variants, ALL_INVARIANTS - SINGLE_VALUE_ONLY) == []


@pytest.mark.rare(sample=2)
@pytest.mark.parametrize("heads", list_options("heads"))
def test_all_triples_of_values_satisfy_quick_invariants(heads):
    variants = [combine_choices(**row) for row in build_crossed_rows(3) if row["heads"] == heads]
    assert len(variants) >= len(list_options("position")) * len(list_options("score"))
    assert find_undeclared_failures(variants, QUICK) == []


@pytest.mark.rare
def test_flex_matches_reference_on_every_value():
    axes = {axis: list_options(axis) for axis in AXES if axis not in ("kernel", "decode")}
    variants = [combine_choices(**row, kernel="flex") for row in build_covering_array(axes, strength=1)]
    assert find_undeclared_failures(variants, {"kernel_matches_reference"}) == []


@pytest.mark.parametrize("heads", list_options("heads"))
def test_every_cache_decodes_all_heads(heads):
    pairs = [(decode, mask) for decode, masks in CACHES.items() for mask in masks]
    variants = [combine_choices(heads=heads, mask=mask, decode=decode) for decode, mask in pairs]
    invariant_names = {"cache", "model_left_padding", "cache_reorder", "state_size"}
    assert find_undeclared_failures(variants, invariant_names) == []


def test_declared_impossible_choices_are_unsupported():
    for choices in list_impossible_choices():
        (outcome,) = testing.evaluate_variant(
            combine_choices(**dict(choice.split("=") for choice in choices)), {"builds"}
        )
        assert outcome.status == "unsupported", choices


def test_every_unsupported_declaration_is_tested():
    rows = [*build_crossed_rows(2), *({"model": model} for model in list_options("model"))]
    rows += [{"kernel": "flex"}, {"decode": "sliding", "mask": "window_sinks"}]
    tested_choices = [frozenset(f"{axis}={option}" for axis, option in row.items()) for row in rows]
    tested_choices += list_impossible_choices()  # above
    assert [
        combination
        for combination in UNSUPPORTED_COMBINATIONS
        if not any(choices.issuperset(combination.choices) for choices in tested_choices)
    ] == []


def test_every_invariant_applies_to_some_variant():
    applied_names = {
        invariant.name
        for variant in iter_single_axis_variants()
        for invariant in testing.find_applicable_invariants(variant)
    }
    assert ALL_INVARIANTS - applied_names == set()
