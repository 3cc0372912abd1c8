"""The kit itself: what it tells of a variant, what it holds users to, and what it calls a variant."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

import attnlab
from attnlab import testing
from attnlab.attention.contracts import Unsupported
from attnlab.testing.laws import LAWS, Law
from attnlab.testing.laws.compose import AXES, SIZES, combination, composed, covering
from attnlab.testing.laws.variant import randomised

USUAL = combination()


def law(check):
    return Law(check, lambda variant: True)


def test_the_smallest_failing_case_is_one_row_where_one_will_do():
    def check_small(variant):
        assert variant.length < 4, "too long"

    assert testing.judge(law(check_small), USUAL).detail == "at T=4, B=1: too long"


def test_a_failure_that_needs_two_rows_says_so():
    def check_single(variant):
        assert variant.batch == 1, "not alone"

    assert testing.judge(law(check_single), USUAL).detail == "at T=1, B=2: not alone"


def test_what_raises_has_failed_and_names_the_error():
    def check_bug(variant):
        raise KeyError("k")

    outcome = testing.judge(law(check_bug), USUAL)
    assert (outcome.status, outcome.detail) == ("failed", "at T=1, B=1: KeyError: 'k'")


def test_a_refusal_is_unsupported_with_its_reason_even_through_a_wrapper():
    def check_refused(variant):
        try:
            raise Unsupported("not on Sundays")
        except Unsupported as error:
            raise ValueError("while building") from error

    outcome = testing.judge(law(check_refused), USUAL)
    assert (outcome.status, outcome.detail) == ("unsupported", "not on Sundays")


def test_a_declared_gap_that_closed_has_failed():
    def check_fine(variant):
        pass

    assert testing.judge(law(check_fine), USUAL).status == "passed"
    assert testing.judge(law(check_fine), USUAL, "cannot be").status == "failed"


def test_a_variant_that_cannot_be_built_has_one_outcome():
    (outcome,) = testing.outcomes(USUAL.but(heads__n_kv_heads=4))
    assert outcome.status == "failed"
    assert "4 KV heads do not divide 6 heads" in outcome.detail


def test_a_mixer_without_a_width_is_told_what_to_do():
    config = {"_target_": "torch.nn.Identity"}
    (outcome,) = testing.verify(config)
    assert "give its constructor" in outcome.detail


def test_an_identity_is_no_attention():
    config = {"_target_": "tests_identity.Mixer", "dim": 6}
    outcomes = testing.verify({**config, "_target_": f"{__name__}.Mixer"})
    failed = {outcome.law for outcome in outcomes if outcome.status == "failed"}
    assert "masked_keys_get_no_gradient" in failed


class Mixer(torch.nn.Module):
    """Sees itself only."""

    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(dim))

    def forward(self, x, *, positions=None, mask=None, cache=None):
        return x @ self.weight

    def state_size(self):
        return 0


@testing.cases(testing.combination(heads="gqa", mask="full"), unsupported=dict.fromkeys(
    ("decode_equals_full_pass", "model_decode_equals_full_pass", "left_padded_decode", "cache_reorder"),
    "it sees the future",
))  # fmt: skip
def test_the_decorator_gives_one_case_per_law(case):
    case()


def test_a_declaration_for_a_law_that_does_not_apply_is_refused():
    with pytest.raises(ValueError, match="absorbed"):
        testing.cases(USUAL, unsupported={"absorbed": "no latent here"})


def test_verify_takes_a_run_config_and_tries_every_kind_of_layer():
    config = {"model": {"attention": dict(USUAL.attention), "layers": [{}, {"scale_exponent": 0}, {}]}}
    names = {outcome.variant for outcome in testing.verify(config, "arm")}
    assert names == {"arm, layer kind 0", "arm, layer kind 1"}


def test_the_package_offers_the_check_of_a_command_line_or_a_config():
    assert attnlab.check_variant is testing.check_variant
    named = attnlab.check_variant(["heads=gqa", "kernel=eager", *SIZES])
    assert {outcome.status for outcome in named} == {"passed"}
    assert "grouped_heads_repeat" in {outcome.law for outcome in named}
    (built,) = attnlab.check_variant({"_target_": "torch.nn.Identity"})
    assert built.status == "failed"
    with pytest.raises(ValueError, match=r"as in \['heads=gqa'\]"):
        attnlab.check_variant("heads=gqa")


def test_importing_the_package_imports_nothing_of_it():
    script = "import sys, attnlab; print([name for name in sys.modules if name[:7] in ('attnlab', 'torch')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['attnlab']"


def test_without_a_cache_no_law_of_decoding_applies():
    outcomes = testing.verify({"model": {"attention": dict(USUAL.attention)}, "decode": {"cache": None}})
    assert not any("decode" in outcome.law or outcome.law == "state_size" for outcome in outcomes)


def test_combinations_are_what_hydra_composes():
    choices = {"heads": "gqa", "position": "alibi", "score": "softcap", "mask": "window", "epilogue": "gate"}
    choices |= {"kernel": "eager", "decode": "static"}
    small = ["model.attention.masks.window.size=5", "model.attention.scores.softcap.cap=2.0"]
    (through_hydra,) = composed([*SIZES, *small, *(f"{axis}={value}" for axis, value in choices.items())])
    merged = combination(**choices)
    assert merged.attention == through_hydra.attention
    assert list(merged.attention["scores"]) == list(through_hydra.attention["scores"])
    assert (merged.positions, merged.cache) == (through_hydra.positions, through_hydra.cache)


def test_comma_separated_values_are_variants_of_their_own():
    assert [one.name for one in composed(["heads=mha,mqa"])] == ["heads=mha", "heads=mqa"]


def test_any_three_values_meet_in_a_covering_of_three():
    axes = {"a": "12", "b": "345", "c": "67", "d": "89"}
    rows = covering(axes)
    assert len(rows) < 2 * 3 * 2 * 2
    for dropped in axes:
        kept = [axis for axis in axes if axis != dropped]
        met = {tuple(row[axis] for axis in kept) for row in rows}
        assert len(met) == len(axes[kept[0]]) * len(axes[kept[1]]) * len(axes[kept[2]])


def test_what_cannot_be_together_is_in_no_row_of_a_covering_and_all_else_meets():
    axes = {"a": "12", "b": "345", "c": "67"}
    never = [frozenset(("a=1", "b=3")), frozenset(("b=4", "c=6")), frozenset(("b=4", "c=7"))]
    rows = covering(axes, strength=2, apart=never)
    met = {tuple(row[axis] for axis in "ab") for row in rows}
    assert met == {("1", "5"), ("2", "3"), ("2", "5")}  # nothing is left beside b=4
    assert {(row["b"], row["c"]) for row in rows} == {("3", "6"), ("3", "7"), ("5", "6"), ("5", "7")}


def test_a_trial_is_long_enough_to_get_past_the_window():
    assert USUAL.length == 11
    wide = dataclasses.replace(
        USUAL, attention={**USUAL.attention, "masks": combination(mask="window").attention["masks"]}, length=0
    )
    longer = wide.but(masks={"w": {"_target_": "attnlab.attention.masks.window.window", "size": 40}})
    assert dataclasses.replace(longer, length=0).length > 41


def test_no_learned_number_stays_zero():
    layer = randomised(combination(epilogue="sinks", position="relative").layer())
    assert all((parameter != 0).all() for parameter in layer.parameters())


def test_laws_are_sentences_and_have_names_of_their_own():
    assert len({one.name for one in LAWS}) == len(LAWS)
    assert all(one.says[0].isdigit() and one.says.endswith(".") for one in LAWS)


def test_axes_stand_in_the_order_of_the_defaults_list():
    from attnlab.config import CONF

    defaults = OmegaConf.load(CONF / "config.yaml").defaults
    order = [next(iter(one)) for one in defaults if OmegaConf.is_dict(one)]
    assert [axis for axis in order if axis in AXES] == list(AXES)
