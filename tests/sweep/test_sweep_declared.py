"""An experiment that cannot be decided is refused before its first run, with the line on which it says so."""

import pytest

from attnlab.cli.hydra_errors import one_line
from attnlab.errors import Refused

GOOD = """\
# @package _global_
# Question: is it checked?
name: mine
question: Is it checked?
arms: [two, one, four]
arm_overrides:
  one: [heads=one]
  two: [heads=two]
  four: [heads=four]
baseline: two
seeds: [0]
held: [parameters]
match: params
match_by: model.width
metric: val/loss
metrics: [train/loss]
direction: lower
margin: 0.5
margin_reason: the toy moves in steps of one.
claims:
  - {says: one is no worse, arm: one, is: below, threshold: 0.5}
  - says: four heads are no worse
    arm: four
    metric: train/loss
    compare: difference
    is: below
    threshold: 0.5
model: {figures: [val/loss, train/loss, length/1.5]}
"""


@pytest.fixture
def mine(planned, tmp_path):
    """`mine(text, ...)`: the plan of an experiment file of a user's own."""

    def call(text, *more):
        file = tmp_path / "own" / "experiment" / "mine.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        where = f"hydra.searchpath=['file://{tmp_path / 'own'}']"
        [plan] = planned(where, "+experiment=mine", *more)
        return plan

    return call


def refusal(mine, text, *more):
    with pytest.raises(Refused) as refused:
        mine(text, *more)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_is_right_is_planned(mine):
    assert mine(GOOD).title == "mine"


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("[parameters]", "[paramters]", 12, "no run has a resource paramters (nearest: parameters"),
        ("[parameters]", "[params, tokns]", 12, "no run has a resource tokns (nearest: tokens"),
        ("metric: val/loss", "metric: val/los", 15, "no run measures val/los (nearest: val/loss"),
        ("[train/loss]", "[trian/loss]", 16, "no run measures trian/loss (nearest: train/loss"),
        ("direction: lower", "direction: lowr", 17, "direction='lowr' is not one of lower, higher"),
        ("margin: 0.5", "margin: small", 18, "mine: margin: "),
        ("margin: 0.5", "margin: -0.5", 18, "no margin is below 0"),
        ("is: below, th", "is: under, th", 21, "is: must be one of below, above, within, got 'under'"),
        ("arm: one,", "arm: onne,", 21, "about arm onne, which it lacks (nearest: one"),
        ("threshold: 0.5}", "treshold: 0.5}", 21, "claim 1 of mine"),
        ("{says: one is no worse, ", "{", 21, "claim 1 of mine has no says"),
        ("says: one is no worse", "says: ''", 21, "says nothing"),
        ("is: below, threshold: 0.5}", "is: within, threshold: 0}", 21, "claim 1 of mine: is: within"),
        ("is: below, threshold: 0.5}", "is: within, threshold: -1}", 21, "give a number above 0"),
        ("threshold: 0.5}", "threshold: 0, compare: ratio}", 21, "a ratio is never below 0"),
        ("is: below, threshold", "threshold", 21, "claim 1 of mine has no is"),
        ("is: below, threshold: 0.5}", "is: below}", 21, "claim 1 of mine has no threshold"),
        ("arm: one,", "arm: two,", 21, "compares arm two with the baseline, which it is"),
        ("arm: one,", "arm: one, against: one,", 21, "compares arm one with itself"),
        ("metric: train/loss\n", "metric: val/lost\n", 24, "no run of arm four measures val/lost"),
        ("metric: train/loss\n", "metric: length/2\n", 24, "for length/2, add it to measure.lengths"),
        ("compare: difference", "compare: diffrence", 25, "compare='diffrence' is not one of difference"),
        ("    is: below\n", "    is: below\n    maring: 0.1\n", 27, "maring is no key of it"),
        ("one: [heads=one]", "one: heads=one", 7, "give a list of overrides"),
        ("one: [heads=one]", "one: ['seed=3']", 7, "arm one of mine sets seed"),
        ("one: [heads=one]", "one: [heads]", 7, "heads: not an override"),
        ("one: [heads=one]", "one: [+model.scale=inf]", 7, "model.scale=inf is not a finite"),
        ("[two, one, four]", "[two, oen]", 5, "no arm oen (nearest: one"),
        ("baseline: two", "baseline: tow", 10, "is not among arms"),
        ("seeds: [0]", "seeds: [0, 0]", 11, "name a seed twice"),
        ("seeds: [0]", "seeds: [0]\ntune: {lr: [0.1], seeds: [100]}", 12, "two or more rates above 0"),
        ("match: params", "match: parms", 13, "nearest: params"),
        ("name: mine", "name: ../evil", 3, "name='../evil' is no plain word"),
        ("name: mine", "name: /tmp/evil", 3, "no plain word"),
        ("name: mine", "name: ${size}", 3, "no plain word"),
        ("name: mine", "name: [mine]", 3, "no plain word"),
    ],
)  # fmt: skip
def test_a_misspelt_declaration_is_refused_with_the_line_that_has_it(mine, old, new, line, told):
    assert old in GOOD
    text = refusal(mine, GOOD.replace(old, new, 1))
    assert text.startswith(f"own/experiment/mine.yaml:{line}: ")
    assert told in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "mine.yaml: empty"),
        ("- a list\n", "mine.yaml:1: a list"),
        (GOOD.partition("\n")[2], "mine.yaml:1: the first line must be # @package _global_"),
        (f"# Prose comes first.\n{GOOD}", "mine.yaml:1: the first line must be # @package _global_"),
        (GOOD.replace("seeds: [0]", "seeds: [0]\nmetric: x"), "mine.yaml:16: metric comes a second time"),
        (GOOD.replace("    arm: four\n", "    arm: four\n    arm: x\n"), "mine.yaml:24: arm comes a second"),
        (GOOD.replace("  one: [", "\tone: ["), "mine.yaml:7: not YAML"),
        (GOOD.replace("name: mine", 'name: "mine'), "mine.yaml:3: not YAML: a quote is opened here"),
        (GOOD.replace("arms: [two", "arms: [[two"), "mine.yaml:6: not YAML"),
        (b"# @package _global_\nname: \xff\n", "mine.yaml: not UTF-8"),
        (GOOD.replace("name:", "defaults: [mine]\nname:"), "mine.yaml:3: its defaults lead back to it"),
        (GOOD.replace("arms: [two, one, four]\n", ""), "mine.yaml: "),
    ],
)  # fmt: skip
def test_a_file_that_is_no_experiment_is_refused_in_one_line(mine, text, told):
    assert told in refusal(mine, text)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("held=[paramters]", "on the command line (held=[paramters]): held of mine"),
        ("metric=val/los", "on the command line (metric=val/los): metric of mine"),
        ("name=../evil", "on the command line (name=../evil): name='../evil' is no plain word"),
        ("seed=1,1", "on the command line (seed=1,1): seeds [1, 1]"),
        ("margin=null", "on the command line (margin=null): mine has no margin"),
    ],
)
def test_what_the_command_line_sets_is_said_to_come_from_there(mine, line, told):
    assert refusal(mine, GOOD, line).startswith(told)


@pytest.mark.parametrize(
    ("written", "name"), [("2024", "2024"), ("2024_05", "2024_05"), ("007", "007"), ("1e3", "1e3")]
)
def test_a_number_is_a_name_as_it_is_spelt(mine, written, name):
    assert mine(GOOD.replace("name: mine", f"name: {written}")).title == name


def test_an_inherited_declaration_is_found_in_the_file_that_has_it(mine, tmp_path):
    base = tmp_path / "own" / "experiment" / "base.yaml"
    base.parent.mkdir(parents=True)
    base.write_text(GOOD.replace("[parameters]", "[paramters]"))
    text = refusal(mine, "# @package _global_\ndefaults: [base]\nname: mine\n")
    assert text.startswith("own/experiment/base.yaml:12: ")


def test_experiments_that_build_on_each_other_are_refused_with_the_line_that_closes_the_circle(
    mine, tmp_path
):
    base = tmp_path / "own" / "experiment" / "base.yaml"
    base.parent.mkdir(parents=True)
    base.write_text("# @package _global_\ndefaults:\n  - /experiment: mine\n")
    text = refusal(mine, "# @package _global_\ndefaults: [base]\nname: mine\n")
    assert text == "own/experiment/base.yaml:3: its defaults lead back to it: mine > base > mine"


def test_where_nobody_knows_what_is_measured_no_metric_is_refused(mine):
    text = GOOD.replace("model: {figures: [val/loss, train/loss, length/1.5]}\n", "")
    assert mine(text.replace("metric: train/loss", "metric: of/my/own")).title == "mine"


def test_a_claim_is_checked_where_its_arm_is_left_out_too(mine):
    text = refusal(mine, GOOD.replace("is: below, th", "is: under, th"), "arms=[two,four]")
    assert text.startswith("own/experiment/mine.yaml:21: ")


def test_a_claim_about_an_arm_that_is_left_out_is_not_asked(mine):
    assert [claim.arm for claim in mine(GOOD, "arms=[two,four]").experiment.claims] == ["four"]


def test_an_arm_that_hydra_refuses_is_named_with_its_line(mine):
    with pytest.raises(Exception, match="tow") as refused:
        mine(GOOD.replace("[heads=one]", "[heads=tow]"))
    assert one_line(refused.value, []).startswith(
        "own/experiment/mine.yaml:7: arm one: heads has no option tow"
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "[parameters]",
            "[paramters]",
            "own/experiment/mine.yaml:12: held of mine: no run has a resource param",
        ),
        ("name: mine", "name: ../evil", "own/experiment/mine.yaml:3: name='../evil' is no plain word"),
    ],
)
def test_a_command_that_is_refused_ends_in_status_2_with_nothing_trained_or_written(attnlab, old, new, told):
    file = attnlab.folder / "own" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(GOOD.replace(old, new))
    status, _, err = attnlab("--config-dir", "own", "+experiment=mine")
    assert status == 2
    assert f"attnlab: {told}" in err
    assert not attnlab.trained()
    assert {path.name for path in attnlab.folder.iterdir()} <= {"own", ".cache"}
