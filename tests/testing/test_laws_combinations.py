"""All laws over the shipped values: each alone, any two together, and any three for the laws that are quick.

A failure names the combinations. What cannot work together is declared in `testing.laws.gaps`, strictly.
"""

from functools import cache

import pytest

from attnlab import testing
from attnlab.testing.laws import LAWS
from attnlab.testing.laws.compose import (
    AXES,
    SCALED,
    SIZES,
    USUAL,
    alone,
    combination,
    covering,
    one_at_a_time,
    options,
)
from attnlab.testing.laws.gaps import GAPS, gap, impossible

ALONE = {  # the same together as alone, or dear: cuts at every place
    "same_seed_same_bits",
    "layers_share_nothing",
    "trains",
    "decode_equals_full_pass",
    "can_be_measured",
    "costs_are_counted",
    "long_texts_do_not_leak",
    "long_texts_decode",
    "dropout_keeps_the_mean",
    "width_changes_no_size",
}
QUICK = {
    "builds",
    "kernel_keeps_its_word",
    "cache_reorder",
    "masked_keys_get_no_gradient",
    "weights_sum_to_one",
    "right_padding",
    "left_padding",
    "documents",
}
SLOW = {"decode_equals_full_pass", "long_texts_do_not_leak", "long_texts_decode"}  # under flex on a CPU
FLEX = {*QUICK, "kernel_agrees", "blind_rows_are_zero", "scale"}  # what a kernel alone can get wrong
EACH_TIME = ("mha",)  # with all that may stand beside them; other heads when it is rare
CACHES = {"static": ("causal", "prefix", "full"), "rolling": ("window", "window_sinks")}


@cache
def crossed(strength):
    """Combinations in which any `strength` axes meet in all their values, in the layers of either block;
    flex, slow on a CPU, is below.
    """
    axes = {axis: options(axis) for axis in AXES if axis != "decode"}
    both = {"kernel": ["eager", "sdpa"], "model": ["gpt", "llama"]}
    return covering({**axes, **both}, strength, impossible())


def faults(variants, laws):
    """What failed, and what is unsupported without being declared."""
    found = []
    for variant in variants:
        for outcome in testing.outcomes(variant, laws):
            undeclared = outcome.status == "unsupported" and gap(outcome.law, variant.choices) is None
            if undeclared or outcome.status == "failed":
                found.append(str(outcome))
    return found


ALL = {law.name for law in LAWS}


@pytest.mark.rare(sample=11)
@pytest.mark.parametrize("axis", ["model", *AXES, SCALED])
def test_each_value_alone_obeys_every_law(axis):
    """The usual value of every axis is the usual model, which the first of them tries."""
    for option in options(axis):
        if option != {**USUAL, SCALED: "standard"}.get(axis):
            assert faults([alone(axis, option)], FLEX if option == "flex" else ALL) == []


@pytest.mark.rare(sample=3)
@pytest.mark.parametrize("option", options("layers"))
def test_every_kind_of_layer_of_a_hybrid_obeys_every_law(option):
    sizes = (*SIZES, "kernel=eager", "heads=gqa")
    variants = testing.composed([f"layers={option}", *sizes])
    assert len(variants) == (1 if option in ("alike", "cross_layer") else 2)
    assert faults(variants, ALL) == []


def test_a_tensor_product_of_one_term_obeys_every_law():
    variants = testing.composed(["heads=tpa", "model.attention.heads.rank=1", *SIZES, "kernel=eager"])
    assert faults(variants, ALL) == []


@pytest.mark.rare
def test_flex_alone_obeys_every_law_that_is_quick_under_it():
    assert faults([alone("kernel", "flex")], ALL - SLOW) == []


@pytest.mark.parametrize(
    "heads",
    [pytest.param(each, marks=[] if each in EACH_TIME else [pytest.mark.rare]) for each in options("heads")],
)
def test_any_two_values_together_obey_every_law(heads):
    variants = [combination(**row) for row in crossed(2) if row["heads"] == heads]
    assert len(variants) >= len(options("position"))
    assert faults(variants, ALL - ALONE) == []


@pytest.mark.rare(sample=2)
@pytest.mark.parametrize("heads", options("heads"))
def test_any_three_values_together_obey_the_quick_laws(heads):
    variants = [combination(**row) for row in crossed(3) if row["heads"] == heads]
    assert len(variants) >= len(options("position")) * len(options("score"))
    assert faults(variants, QUICK) == []


@pytest.mark.rare
def test_flex_computes_every_value_of_every_axis():
    axes = {axis: options(axis) for axis in AXES if axis not in ("kernel", "decode")}
    variants = [combination(**row, kernel="flex") for row in covering(axes, strength=1)]
    assert faults(variants, {"kernel_agrees"}) == []


@pytest.mark.parametrize("heads", options("heads"))
def test_every_cache_holds_all_heads(heads):
    given = [(decode, mask) for decode, masks in CACHES.items() for mask in masks]
    variants = [combination(heads=heads, mask=mask, decode=decode) for decode, mask in given]
    laws = {"decode_equals_full_pass", "left_padded_decode", "cache_reorder", "state_size"}
    assert faults(variants, laws) == []


def test_what_is_declared_impossible_is_refused():
    for choices in impossible():
        (outcome,) = testing.outcomes(combination(**dict(each.split("=") for each in choices)), {"builds"})
        assert outcome.status == "unsupported", choices


def test_no_declared_gap_goes_untried():
    rows = [*crossed(2), *({"model": model} for model in options("model"))]
    rows += [{"kernel": "flex"}, {"decode": "rolling", "mask": "window_sinks"}]
    tried = [frozenset(f"{axis}={option}" for axis, option in row.items()) for row in rows]
    tried += impossible()  # above
    assert [one for one in GAPS if not any(choices.issuperset(one.choices) for choices in tried)] == []


def test_every_law_is_tried_on_something():
    applied = {law.name for variant in one_at_a_time() for law in testing.applying(variant)}
    assert ALL - applied == set()
