"""Conformance API: outcomes, declared gaps, variants from configs and overrides, and covering arrays."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from covering_array import build_covering_array
from omegaconf import OmegaConf

import attnlab
from attnlab import testing
from attnlab.attention.contracts import Unsupported
from attnlab.testing.checks import check_dtypes
from attnlab.testing.invariants import INVARIANTS, Invariant
from attnlab.testing.invariants.subjects import LayerSubject, run_check
from attnlab.testing.invariants.variant import randomize
from attnlab.testing.invariants.variant_composition import (
    AXES,
    BASE_SIZES,
    combine_choices,
    compose_variants,
)

DEFAULT_VARIANT = combine_choices()


def make_invariant(check):
    return Invariant(check, lambda variant: True)


def test_every_shipped_option_is_counted():
    assert testing.count_single_axis_variants() == len([*testing.iter_single_axis_variants()])


def test_smallest_failing_case_has_one_row_if_one_suffices():
    def check_small(variant):
        assert variant.length < 4, "too long"

    assert (
        testing.evaluate_invariant(make_invariant(check_small), DEFAULT_VARIANT).detail
        == "at T=4, B=1: too long"
    )


def test_failure_that_needs_two_rows_reports_two():
    def check_single(variant):
        assert variant.batch == 1, "not alone"

    assert (
        testing.evaluate_invariant(make_invariant(check_single), DEFAULT_VARIANT).detail
        == "at T=1, B=2: not alone"
    )


def test_raised_error_is_a_failure_that_names_it():
    def check_bug(variant):
        raise KeyError("k")

    outcome = testing.evaluate_invariant(make_invariant(check_bug), DEFAULT_VARIANT)
    assert (outcome.status, outcome.detail) == ("failed", "at T=1, B=1: KeyError: 'k'")


def test_wrapped_unsupported_error_is_unsupported_with_its_reason():
    def check_refused(variant):
        try:
            raise Unsupported("not on Sundays")
        except Unsupported as error:
            raise ValueError("while building") from error

    outcome = testing.evaluate_invariant(make_invariant(check_refused), DEFAULT_VARIANT)
    assert (outcome.status, outcome.detail) == ("unsupported", "not on Sundays")


def test_unsupported_declaration_of_a_passing_invariant_fails():
    def check_fine(variant):
        pass

    assert testing.evaluate_invariant(make_invariant(check_fine), DEFAULT_VARIANT).status == "passed"
    assert (
        testing.evaluate_invariant(make_invariant(check_fine), DEFAULT_VARIANT, "cannot be").status
        == "failed"
    )


def test_variant_that_does_not_build_has_one_outcome():
    (outcome,) = testing.evaluate_variant(DEFAULT_VARIANT.with_changes(heads__n_kv_heads=4))
    assert outcome.status == "failed"
    assert "n_kv_heads=4 does not divide n_heads=6" in outcome.detail


def test_mixer_without_dim_fails_with_instructions():
    config = {"_target_": "torch.nn.Identity"}
    (outcome,) = testing.verify(config)
    assert "add a parameter" in outcome.detail


def test_linear_map_per_token_fails():
    config = {"_target_": "tests_identity.Mixer", "dim": 6}
    outcomes = testing.verify({**config, "_target_": f"{__name__}.Mixer"})
    failed = {outcome.invariant for outcome in outcomes if outcome.status == "failed"}
    assert "context" in failed


class Mixer(torch.nn.Module):
    """A mixer in which a token sees only itself."""

    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(dim))

    def forward(self, x, *, positions=None, mask=None, cache=None):
        return x @ self.weight

    def state_size(self):
        return 0


@testing.cases(testing.combine_choices(heads="gqa", mask="full"), unsupported=dict.fromkeys(
    ("cache", "model_cache", "cache_reorder"),
    "it sees the future",
))  # fmt: skip
def test_cases_decorator_parametrizes_by_invariant(case):
    case()


def test_unsupported_declaration_of_an_inapplicable_invariant_is_rejected():
    with pytest.raises(ValueError, match="absorbed_heads"):
        testing.cases(DEFAULT_VARIANT, unsupported={"absorbed_heads": "no latent here"})


def test_verify_checks_every_layer_kind_of_a_run_config():
    config = {
        "model": {"attention": dict(DEFAULT_VARIANT.attention), "layers": [{}, {"scale_exponent": 0}, {}]}
    }
    names = {outcome.variant for outcome in testing.verify(config, "arm")}
    assert names == {"arm, layer kind 0", "arm, layer kind 1"}


def test_check_variant_accepts_overrides_or_a_config():
    assert attnlab.check_variant is testing.check_variant
    outcomes = attnlab.check_variant(["heads=gqa", "kernel=eager", *BASE_SIZES])
    assert {outcome.status for outcome in outcomes} == {"passed"}
    assert "grouped_heads_equal_repeated_heads" in {outcome.invariant for outcome in outcomes}
    (build_outcome,) = attnlab.check_variant({"_target_": "torch.nn.Identity"})
    assert build_outcome.status == "failed"
    with pytest.raises(ValueError, match=r"as in \['heads=gqa'\]"):
        attnlab.check_variant("heads=gqa")


def test_importing_attnlab_imports_no_submodule():
    script = "import sys, attnlab; print([name for name in sys.modules if name[:7] in ('attnlab', 'torch')])"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['attnlab']"


def test_nearly_hard_attention_may_amplify_rounding():
    """Unscaled scores of wide heads select single keys, so some decoded tokens amplify any rounding."""
    (variant,) = compose_variants(["score=unscaled", "model.dim=128", "model.n_heads=1"])
    run_check(check_dtypes, LayerSubject(variant), 1, 320)


def test_decoding_invariants_need_a_cache():
    outcomes = testing.verify(
        {"model": {"attention": dict(DEFAULT_VARIANT.attention)}, "decode": {"cache": None}}
    )
    assert not any("decode" in outcome.invariant or outcome.invariant == "state_size" for outcome in outcomes)


def test_combined_choices_equal_hydra_composition():
    choices = {"heads": "gqa", "position": "alibi", "score": "softcap", "mask": "window", "epilogue": "gate"}
    choices |= {"kernel": "eager", "decode": "static"}
    small_sizes = ["model.attention.masks.window.size=5", "model.attention.scores.softcap.cap=2.0"]
    (through_hydra,) = compose_variants(
        [*BASE_SIZES, *small_sizes, *(f"{axis}={value}" for axis, value in choices.items())]
    )
    merged = combine_choices(**choices)
    assert merged.attention == through_hydra.attention
    assert list(merged.attention["scores"]) == list(through_hydra.attention["scores"])
    assert (merged.positions, merged.cache) == (through_hydra.positions, through_hydra.cache)


def test_comma_separated_values_are_separate_variants():
    assert [variant.name for variant in compose_variants(["heads=mha,mqa"])] == ["heads=mha", "heads=mqa"]


def test_covering_array_of_strength_three_covers_all_triples():
    axes = {"a": "12", "b": "345", "c": "67", "d": "89"}
    rows = build_covering_array(axes)
    assert len(rows) < 2 * 3 * 2 * 2
    for dropped in axes:
        remaining_axes = [axis for axis in axes if axis != dropped]
        value_tuples = {tuple(row[axis] for axis in remaining_axes) for row in rows}
        assert len(value_tuples) == len(axes[remaining_axes[0]]) * len(axes[remaining_axes[1]]) * len(
            axes[remaining_axes[2]]
        )


def test_covering_array_covers_all_but_excluded_pairs():
    axes = {"a": "12", "b": "345", "c": "67"}
    forbidden = [frozenset(("a=1", "b=3")), frozenset(("b=4", "c=6")), frozenset(("b=4", "c=7"))]
    rows = build_covering_array(axes, strength=2, excluded=forbidden)
    pairs = {tuple(row[axis] for axis in "ab") for row in rows}
    assert pairs == {("1", "5"), ("2", "3"), ("2", "5")}  # b=4 has no allowed partner
    assert {(row["b"], row["c"]) for row in rows} == {("3", "6"), ("3", "7"), ("5", "6"), ("5", "7")}


def test_trial_is_longer_than_the_window():
    assert DEFAULT_VARIANT.length == 11
    wide = dataclasses.replace(
        DEFAULT_VARIANT,
        attention={**DEFAULT_VARIANT.attention, "masks": combine_choices(mask="window").attention["masks"]},
        length=0,
    )
    longer = wide.with_changes(masks={"w": {"_target_": "attnlab.attention.masks.window.window", "size": 40}})
    assert dataclasses.replace(longer, length=0).length > 41


def test_randomize_leaves_no_parameter_zero():
    layer = randomize(combine_choices(epilogue="sinks", position="relative").make_layer())
    assert all((parameter != 0).all() for parameter in layer.parameters())


def test_invariants_are_numbered_sentences_with_unique_names():
    assert len({invariant.name for invariant in INVARIANTS}) == len(INVARIANTS)
    assert all(
        invariant.statement[0].isdigit() and invariant.statement.endswith(".") for invariant in INVARIANTS
    )


def test_axes_follow_the_defaults_list():
    from attnlab.config import CONF

    defaults = OmegaConf.load(CONF / "config.yaml").defaults
    order = [next(iter(entry)) for entry in defaults if OmegaConf.is_dict(entry)]
    assert [axis for axis in order if axis in AXES] == list(AXES)
