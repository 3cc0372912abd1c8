"""Validation of experiment files: an invalid experiment fails before any run, with the line at fault."""

import pytest
import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from attnlab.cli.hydra_errors import format_hydra_error
from attnlab.errors import InvalidConfig
from attnlab.store.experiment_schema import Experiment, expand_claims

VALID = """\
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
controlled: [parameters]
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
model: {metric_names: [val/loss, train/loss, length/1.5]}
"""


@pytest.fixture
def plan_file(plan_toy, tmp_path):
    """`plan_file(text, ...)`: the plan of the user's experiment file with this text, by default mine.yaml."""

    def call(text, *more, name="mine"):
        file = tmp_path / "own" / "experiment" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        search_path = f"hydra.searchpath=['file://{tmp_path / 'own'}']"
        [plan] = plan_toy(search_path, f"+experiment='{name}'", *more)
        return plan

    return call


def get_error(plan_file, text, *more):
    """Return the error that planning the text raises, after checking that it is one line."""
    with pytest.raises(InvalidConfig) as error:
        plan_file(text, *more)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_overrides_of_all_arms_yield_to_command_line_and_arms(plan_file):
    text = VALID + "overrides: [trainer.max_steps=7, model.width=11]\n"
    plan = plan_file(text)
    assert {run.config["trainer"]["max_steps"] for run in plan.runs} == {7}
    assert plan.changed == ()
    assert plan_file(text, "trainer.max_steps=7").changed == (), "the file has this value"
    changed = plan_file(text, "trainer.max_steps=8")
    assert {run.config["trainer"]["max_steps"] for run in changed.runs} == {8}
    assert changed.changed == ("trainer.max_steps=8",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("trainer.max_steps=7", "overrides='trainer.max_steps=7': give a list of overrides"),
        ("[1]", "overrides=[1]: give a list of overrides"),
        ("['trainer.max_steps']", "trainer.max_steps: not an override: write key=value"),
        ("['paths.runs=here']", "paths.runs=here: execution settings are no part of an experiment"),
        ("['model.width=1,2']", "model.width=1,2: gives several values"),
        ("['margin=0.1']", "margin=0.1: the experiment file sets margin as a key of its own"),
        ("['seed=1']", "seed=1: the experiment file sets seed as a key of its own"),
    ],
)
def test_invalid_overrides_of_all_arms_are_located(plan_file, value, message):
    error = get_error(plan_file, VALID + f"overrides: {value}\n")
    assert message in error
    assert error.startswith(f"own/experiment/mine.yaml:{len(VALID.splitlines()) + 1}: ")


CONTRASTS = VALID[: VALID.index("claims:")] + "claims:\n  - {says: s, is: within, threshold: 0.5, FORM}\n"


def test_short_forms_of_claims_add_the_arms_that_they_combine(plan_file):
    text = CONTRASTS.replace("[heads=four]", "[+model.scale=2]").replace("seeds: [0]", "seeds: [0, 1]")
    experiment = plan_file(text.replace("FORM", "interaction: [one, four]")).experiment
    assert experiment.arms == ["two", "one", "four", "one_four"]
    assert experiment.arm_overrides["one_four"] == ["heads=one", "+model.scale=2"]
    [claim] = experiment.claims
    assert experiment.get_claim_weights(claim) == {"one_four": 1, "one": -1, "four": -1, "two": 1}
    assert experiment.get_claim_arms(claim) == ("one_four", "two", "one", "four")
    chain = plan_file(
        text.replace("says: s", "says: '{arm} equals {against}'").replace("FORM", "chain: [two, one, four]")
    )
    assert [claim.says for claim in chain.experiment.claims] == [
        "one equals two", "four equals one", "four equals two",
    ]  # fmt: skip
    assert chain.changed == (), "short forms are no deviation"
    part = plan_file(text.replace("FORM", "interaction: [one, four]"), "arms=[two,one]").experiment
    assert (part.arms, part.claims) == (["two", "one"], []), "a claim about an arm left out is left out"


def test_two_claims_never_share_an_arm_of_one_name():
    says = {"says": "{arm} is worse than {against}", "is": "above", "threshold": 0}
    arms = {"base": [], "a": ["x=1", "y=1"], "b": ["x=2", "z=1"]}
    claims = [{**says, "leave_one_out": "a"}, {**says, "leave_one_out": "b"}]
    message = r"claim 2: leave_one_out: it needs an arm without_x with \['z=1'\]"
    with pytest.raises(InvalidConfig, match=message):
        expand_claims(claims, [*arms], arms, "base")
    same = expand_claims([claims[0], claims[0]], [*arms], arms, "base")
    assert same.arm_overrides["without_x"] == ["y=1"]
    own = expand_claims(claims[:1], [*arms], {**arms, "without_x": ["y=3"]}, "base")
    assert own.arm_overrides["without_x"] == ["y=3"], "an arm of the file keeps its overrides"
    arms = {"base": [], "k": ["x=1"], "k_v": ["y=1"], "v_q": ["z=1"], "q": ["w=1"]}
    claims = [{"is": "within", "interaction": pair} for pair in (["k", "v_q"], ["k_v", "q"])]
    with pytest.raises(InvalidConfig, match="claim 2: interaction: it needs an arm k_v_q"):
        expand_claims(claims, [*arms], arms, "base")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("contrast: {one: 1, four: -0.5}", "claim 1: contrast: the weights add up to 0.5"),
        ("contrast: {one: 1, fuor: -1}", "claim 1: contrast: unknown arm fuor (nearest: four"),
        ("contrast: {one: 1, four: a}", "claim 1: contrast: the weight of four is 'a': give a number"),
        ("contrast: {one: 1, four: -1, two: 0}", "the weight of two is 0: leave it out"),
        ("contrast: [one, four]", "give weights of arms, as in {a: 1"),
        ("contrast: {one: 1, four: -1}, compare: ratio", "contrast is a sum of differences"),
        ("contrast: {one: 1, four: -1}, against: two", "against belongs to arm, not to contrast"),
        ("contrast: {one: 1, four: -1}, arm: one", "claim 1 has arm and contrast: give one of arm, contrast"),
        ("interaction: [one, two]", "give two arms, without the baseline two"),
        ("interaction: [one, four]", "one and four both set heads: write an arm one_four"),
        ("interaction: [one, one]", "one, one: an arm is repeated"),
        ("chain: [two, one]", "give at least three arms"),
        ("chain: [two, one, four]", "says needs {arm} and {against}"),
        ("leave_one_out: one", "arm one has fewer than two overrides"),
        ("identity: true", "a claim of mine names no arm: give one of arm, contrast"),
    ],
)
def test_invalid_contrasts_are_located(plan_file, form, message):
    error = get_error(plan_file, CONTRASTS.replace("FORM", form))
    assert message in error
    assert error.startswith("own/experiment/mine.yaml:21: ")


def test_valid_experiment_is_planned(plan_file):
    assert plan_file(VALID).title == "mine"


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("[parameters]", "[paramters]", 12, "no run has a resource paramters (nearest: parameters"),
        ("[parameters]", "[params, tokns]", 12, "no run has a resource tokns (nearest: tokens"),
        ("metric: val/loss", "metric: val/los", 15, "no run measures val/los (nearest: val/loss"),
        ("[train/loss]", "[trian/loss]", 16, "no run measures trian/loss (nearest: train/loss"),
        ("direction: lower", "direction: lowr", 17, "direction='lowr' must be one of lower, higher"),
        ("margin: 0.5", "margin: small", 18, "mine: margin: "),
        ("margin: 0.5", "margin: -0.5", 18, "a margin must not be negative; give a number above 0"),
        ("is: below, th", "is: under, th", 21, "is: must be one of below, above, within, got 'under'"),
        ("arm: one,", "arm: onne,", 21, "has the unknown arm onne (nearest: one"),
        ("threshold: 0.5}", "treshold: 0.5}", 21, "claim 1 of mine"),
        ("{says: one is no worse, ", "{", 21, "claim 1 of mine has no says"),
        ("says: one is no worse", "says: ''", 21, "has an empty `says`"),
        ("is: below, threshold: 0.5}", "is: within, threshold: 0}", 21, "claim 1 of mine: is: within"),
        ("is: below, threshold: 0.5}", "is: within, threshold: -1}", 21, "give a number above 0"),
        ("threshold: 0.5}", "threshold: 0, compare: ratio}", 21, "a ratio is never below 0"),
        ("is: below, threshold", "threshold", 21, "claim 1 of mine has no is"),
        ("is: below, threshold: 0.5}", "is: below}", 21, "claim 1 of mine has no threshold"),
        ("arm: one,", "arm: two,", 21, "compares arm two with itself, because it is the baseline"),
        ("arm: one,", "arm: one, against: one,", 21, "compares arm one with itself"),
        ("metric: train/loss\n", "metric: val/lost\n", 24, "no run of arm four measures val/lost"),
        ("metric: train/loss\n", "metric: length/2\n", 24, "for length/2, add 2 to measure.lengths"),
        ("metric: train/loss\n", "metric: length/excess/2\n", 24, "add 1 and 2 to measure.lengths"),
        ("compare: difference", "compare: diffrence", 25, "compare='diffrence' must be one of difference"),
        ("    is: below\n", "    is: below\n    maring: 0.1\n", 27, "unknown key maring"),
        ("one: [heads=one]", "one: heads=one", 7, "give a list of overrides"),
        ("one: [heads=one]", "one: ['seed=3']", 7, "arm one of mine sets seed"),
        ("one: [heads=one]", "one: [heads]", 7, "heads: not an override"),
        ("one: [heads=one]", "one: [+model.scale=inf]", 7, "model.scale=inf is not a finite"),
        ("[two, one, four]", "[two, oen]", 5, "no arm oen (nearest: one"),
        ("baseline: two", "baseline: tow", 10, "is not among arms"),
        ("seeds: [0]", "seeds: [0, 0]", 11, "contain a duplicate"),
        ("seeds: [0]", "seeds: [0]\ntune: {lr: [0.1], seeds: [100]}", 12, "two or more increasing"),
        ("match: params", "match: parms", 13, "nearest: params"),
        ("seeds: [0]", "seeds: [0]\nlooks: 3", 12, "looks=3 of mine: give increasing numbers of seeds"),
        ("seeds: [0]", "seeds: [0]\nlooks: often", 12, "as in [4,8,12,16], or anytime"),
        ("seeds: [0]", "seeds: [0]\nladder_arms: [two, oen]", 12, "ladder_arms of mine: unknown arm oen"),
        ("seeds: [0]", "seeds: [4, 5, 6]\nlooks: [2]", 11, "lists 3, but the last interim analysis"),
        ("seeds: [0]", "seeds: [0]\ncorpora: [other]\noverrides: [data=plain]", 12, "data=plain in"),
        ("name: mine", "name: ../evil", 3, "name='../evil' is not a valid folder name"),
        ("name: mine", "name: /tmp/evil", 3, "not a valid folder name"),
        ("name: mine", "name: ${size}", 3, "not a valid folder name"),
        ("name: mine", "name: [mine]", 3, "not a valid folder name"),
    ],
)  # fmt: skip
def test_invalid_key_fails_with_its_line(plan_file, old, new, line, message):
    assert old in VALID
    text = get_error(plan_file, VALID.replace(old, new, 1))
    assert text.startswith(f"own/experiment/mine.yaml:{line}: ")
    assert message in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.yaml: the file is empty"),
        ("- a list\n", "mine.yaml:1: the file contains a list"),
        (VALID.partition("\n")[2], "mine.yaml:1: the first line must be # @package _global_"),
        (f"# Prose comes first.\n{VALID}", "mine.yaml:1: the first line must be # @package _global_"),
        (VALID.replace("seeds: [0]", "seeds: [0]\nmetric: x"), "mine.yaml:16: duplicate key metric"),
        (VALID.replace("    arm: four\n", "    arm: four\n    arm: x\n"), "mine.yaml:24: duplicate key arm"),
        (VALID.replace("  one: [", "\tone: ["), "mine.yaml:7: invalid YAML"),
        (VALID.replace("name: mine", 'name: "mine'), "mine.yaml:3: invalid YAML: a quote opened here"),
        (VALID.replace("arms: [two", "arms: [[two"), "mine.yaml:6: invalid YAML"),
        (b"# @package _global_\nname: \xff\n", "mine.yaml: invalid UTF-8"),
        (VALID.replace("name:", "defaults: [mine]\nname:"), "mine.yaml:3: its defaults form a cycle"),
        (VALID.replace("arms: [two, one, four]\n", ""), "mine.yaml: "),
    ],
)  # fmt: skip
def test_invalid_file_fails_in_one_line(plan_file, text, message):
    assert message in get_error(plan_file, text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("controlled=[paramters]", "on the command line (controlled=[paramters]): controlled of mine"),
        ("metric=val/los", "on the command line (metric=val/los): metric of mine"),
        ("name=../evil", "on the command line (name=../evil): name='../evil' is not a valid folder name"),
        ("seed=1,1", "on the command line (seed=1,1): seeds [1, 1]"),
        ("margin=null", "on the command line (margin=null): mine has no margin"),
    ],
)
def test_error_names_command_line_as_origin(plan_file, line, message):
    assert get_error(plan_file, VALID, line).startswith(message)


@pytest.mark.parametrize("name", ["2024", "2024_05", "007", "1e3"])
def test_numeric_name_keeps_spelling(plan_file, name):
    assert plan_file(VALID.replace("name: mine", f"name: {name}"), name=name).title == name


def test_size_of_size_overrides_exists(plan_file, tmp_path):
    text = VALID + "size_overrides: {debug2: []}\n"
    assert plan_file(text).title == "mine", "a config tree without sizes"
    (tmp_path / "own" / "size").mkdir()
    (tmp_path / "own" / "size" / "debug.yaml").write_text("# @package _global_\nsize: debug\n")
    line = len(VALID.splitlines()) + 1
    assert get_error(plan_file, text) == (
        f"own/experiment/mine.yaml:{line}: size_overrides: no size debug2 (nearest: debug)"
    )


def test_fewer_interim_analyses_use_the_first_seeds_of_the_file(plan_file):
    text = VALID.replace("seeds: [0]", "seeds: [4, 5, 6, 7]\nlooks: [2, 4]")
    assert plan_file(text, "looks=[2,3]").experiment.seeds == [4, 5, 6]


def test_experiment_has_the_name_of_its_file(plan_file):
    other = VALID.replace("name: mine", "name: other")
    message = (
        "name=other is not the name of the file, so its report could replace another one: write name: mine"
    )
    assert get_error(plan_file, other).startswith(f"own/experiment/mine.yaml: {message}")
    assert plan_file(other, name="other").title == "other"
    heir = "# @package _global_\ndefaults: [other]\n"
    assert get_error(plan_file, heir).startswith(f"own/experiment/mine.yaml: {message}")
    assert plan_file(VALID, "name=ours").title.startswith("ours~")


def test_error_in_inherited_file_names_that_file(plan_file, tmp_path):
    base = tmp_path / "own" / "experiment" / "base.yaml"
    base.parent.mkdir(parents=True)
    base.write_text(VALID.replace("[parameters]", "[paramters]"))
    text = get_error(plan_file, "# @package _global_\ndefaults: [base]\nname: mine\n")
    assert text.startswith("own/experiment/base.yaml:12: ")


def test_circular_defaults_fail_with_closing_line(plan_file, tmp_path):
    base = tmp_path / "own" / "experiment" / "base.yaml"
    base.parent.mkdir(parents=True)
    base.write_text("# @package _global_\ndefaults:\n  - /experiment: mine\n")
    text = get_error(plan_file, "# @package _global_\ndefaults: [base]\nname: mine\n")
    assert text == "own/experiment/base.yaml:3: its defaults form a cycle, mine > base > mine: remove one"


def test_unknown_metrics_pass_without_declared_metric_names(plan_file):
    text = VALID.replace("model: {metric_names: [val/loss, train/loss, length/1.5]}\n", "")
    assert plan_file(text.replace("metric: train/loss", "metric: of/my/own")).title == "mine"


def test_claim_about_excluded_arm_is_validated(plan_file):
    text = get_error(plan_file, VALID.replace("is: below, th", "is: under, th"), "arms=[two,four]")
    assert text.startswith("own/experiment/mine.yaml:21: ")


def test_list_in_place_of_an_arm_of_a_claim_is_located(plan_file):
    text = get_error(plan_file, VALID.replace("arm: four", "arm: [[1]]"))
    assert "has the unknown arm [[1]]" in text


def test_claim_about_excluded_arm_is_dropped(plan_file):
    assert [claim.arm for claim in plan_file(VALID, "arms=[two,four]").experiment.claims] == ["four"]


def test_hydra_error_names_arm_and_line(plan_file):
    with pytest.raises(Exception, match="tow") as error:
        plan_file(VALID.replace("[heads=one]", "[heads=tow]"))
    assert format_hydra_error(error.value, []).startswith(
        "own/experiment/mine.yaml:7: arm one: heads has no option tow"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[parameters]",
            "[paramters]",
            "own/experiment/mine.yaml:12: controlled of mine: no run has a resource param",
        ),
        (
            "name: mine",
            "name: ../evil",
            "own/experiment/mine.yaml:3: name='../evil' is not a valid folder name",
        ),
    ],
)
def test_invalid_experiment_exits_with_status_2_and_writes_nothing(attnlab, old, new, message):
    file = attnlab.folder / "own" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(VALID.replace(old, new))
    status, _, err = attnlab("--config-dir", "own", "+experiment=mine")
    assert status == 2
    assert f"attnlab: {message}" in err
    assert not attnlab.load_attempts()
    assert {path.name for path in attnlab.folder.iterdir()} <= {"own", ".cache"}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("value", ["[[a]]", "{a: 1}", "3"])
@pytest.mark.parametrize(
    "key", [key for key in Experiment.model_fields if key not in ("name", "margin", "tuned")]
)
def test_values_of_another_type_are_errors_in_one_line(plan_file, key, value):
    content = yaml.safe_load(VALID) | {key: yaml.safe_load(value)}
    text = "# @package _global_\n" + yaml.safe_dump(content, sort_keys=False)
    with pytest.raises((InvalidConfig, HydraException, OmegaConfBaseException)) as error:
        plan_file(text)
    if isinstance(error.value, InvalidConfig):
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", ["seed=-1", "seed=0,-3", f"seed={2**63}"])
def test_seeds_are_not_negative_and_fit_the_generator(plan_toy, line):
    with pytest.raises(InvalidConfig, match="seeds must be integers of at least 0"):
        plan_toy("heads=four", line)
