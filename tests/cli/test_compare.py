"""`compare`: arms, defaults and claims of an experiment from the command line."""

import itertools
import re

import pytest
from omegaconf import OmegaConf

from attnlab.cli.verbs.compare import build_experiment, format_experiment_yaml, split_arms
from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.sweep.plan import overrides


def build(words="", arms="heads=mha | heads=gqa", *folders):
    """Build the experiment of some arms; return it and the remaining overrides."""
    return build_experiment([arm.split() for arm in arms.split("|")], words.split(), *folders)


@pytest.mark.parametrize(
    ("words", "arms", "rest"),
    [
        (["heads=mha", "heads=gqa"], [["heads=mha"], ["heads=gqa"]], []),
        (["heads=mha", "heads=gqa position=rope", "size=M"], [["heads=mha"], ["heads=gqa", "position=rope"]],
         ["size=M"]),
        (["heads=mha", "heads=gqa", "heads=mqa", "kernel=eager"],
         [["heads=mha"], ["heads=gqa"], ["heads=mqa"]],
         ["kernel=eager"]),
        (["optim.lr=1", "optim.lr=2", "mask=full kernel=sdpa"],
         [["optim.lr=1"], ["optim.lr=2"], ["mask=full", "kernel=sdpa"]], []),
    ],
)  # fmt: skip
def test_words_that_set_keys_of_an_arm_are_arms_and_others_overrides(words, arms, rest):
    assert split_arms(words) == (arms, rest)


ONE_VALUE = "an arm has one value per key: write"
NUMBER = "give the margin as a number, as in margin=0.03"


@pytest.mark.parametrize(
    ("words", "arm", "message"),
    [
        ("margin=0.1 margin=0.2", "heads=gqa", "margin is set twice"),
        ("size=debug size=mini", "heads=gqa", "size is set twice"),
        ("", "heads=gqa heads=mqa", "heads is set twice, heads=gqa and heads=mqa: remove"),
        ("data.path=missing.txt", "heads=gqaa", "heads has no option gqaa (nearest: gqa"),
        ("", "heads=gqa,mqa", f"heads=gqa,mqa: {ONE_VALUE} heads=gqa heads=mqa"),
        (
            "",
            "heads=gqa,mqa mask=full",
            f"heads=gqa,mqa mask=full: {ONE_VALUE} 'heads=gqa mask=full' 'heads=mqa mask=full'",
        ),
        ("", "model.dim=range(8,24,8)", f"model.dim=range(8,24,8): {ONE_VALUE} model.dim=8 model.dim=16"),
        ("metric=val/accuracy", "heads=gqa", NUMBER),
        ("direction=higher", "heads=gqa", NUMBER),
        ("margin=abc direction=higher", "heads=gqa", "give a number"),
        ("margin=null direction=higher", "heads=gqa", "give a number"),
        ("margin=true direction=higher", "heads=gqa", "give a number"),
    ],
)
def test_words_that_give_no_comparison_are_rejected(words, arm, message):
    with pytest.raises(InvalidConfig, match=re.escape(message)):
        build(words, f"heads=mha | {arm}")


def test_one_arm_is_rejected_and_options_of_added_folders_are_known(tmp_path):
    with pytest.raises(InvalidConfig, match="two or more arms"):
        split_arms(["heads=mha"])
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "gqaa.yaml").touch()
    build("", "heads=mha | heads=gqaa", [CONF, tmp_path])
    build("hydra.searchpath=[file://x]", "heads=mha | heads=gqaa")


@pytest.mark.parametrize("setting", ["margin=0.03", "margin={training:3%}", "corpora=[pydocs]"])
def test_settings_that_a_ladder_would_replace_are_left_for_planning_to_reject(setting):
    assert build(f"ladder=two_cores {setting}")[1] == [setting]
    assert build(setting)[1] == []


SEEDS = {"seeds": [200, 201, 202]}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", {"looks": "anytime", "seeds": [*range(6)]}),
        ("looks=null seed=0,1", {"looks": None, "seeds": [0, 1]}),
        ("looks=[2,4]", {"looks": [2, 4], "seeds": None}),
        ("seed=range(9) looks=[2,4]", {"looks": [2, 4], "seeds": [*range(9)]}),
        ("", {"margin": {"training": "5 %"}, "compute_calibration": SEEDS, "threshold": "margin"}),
        (
            "compute_calibration={seeds:[7,8]}",
            {"compute_calibration": {"seeds": [7, 8]}, "threshold": "margin"},
        ),
        ("margin={training:2%}", {"margin": {"training": "2%"}, "compute_calibration": SEEDS}),
        ("margin=0.04", {"margin": 0.04, "compute_calibration": None, "threshold": 0.04}),
        ("margin=0.04 compute_calibration={seeds:[7,8]}", {"compute_calibration": {"seeds": [7, 8]}}),
        ("direction=higher metric=val/accuracy margin=0.03", {"is": "above", "threshold": -0.03}),
        ("size=M match=params", {"overrides": ["size=M"], "match": "params"}),
        ("data=text tune=null metrics=[a]", {"overrides": ["data=text"], "metrics": ["a"]}),
    ],
)
def test_settings_and_defaults_enter_the_experiment(words, values):
    experiment, remaining = build(words)
    known = experiment["claims"][0] | experiment
    assert ({key: known.get(key) for key in values}, remaining) == (values, [])
    assert OmegaConf.to_container(OmegaConf.create(format_experiment_yaml(experiment))) == experiment


def test_execution_settings_and_swept_values_stay_on_the_command_line():
    words = "paths.runs=here logger=none optim.lr=1e-3,3e-3"
    assert build(f"{words} data=text")[1] == words.split()


def test_comparisons_on_other_terms_have_other_names():
    lines = [
        "", "margin=0.01", "margin=0.02", "size=M", "size=M margin=0.01", "looks=null", "looks=null seed=0,1",
        "looks=[2,4]", "controlled=[parameters]", "tune={lr:[1,2]}",
    ]  # fmt: skip
    assert len({build(line)[0]["name"] for line in lines}) == len(lines)
    assert build("margin=0.01 size=M")[0]["name"] == build("size=M margin=0.01")[0]["name"]
    same_report = ["seed=0,1", "paths.runs=here", "metrics=[a]", "looks=anytime"]
    assert {build(word)[0]["name"] for word in same_report} == {"mha_vs_gqa"}


@pytest.mark.parametrize(
    ("arm", "other_arm"),
    [
        ("schedule=linear", "model=linear"),
        ("mask=window epilogue=sinks", "mask=window_sinks"),
        ("model.dim=64", "model.attention.dim=64"),
        ("data.path=a.txt", "data.path=A.txt"),
        ("optim.lr=1e-3", "optim.lr=1e+3"),
    ],
)
def test_arms_with_the_same_name_are_other_comparisons(arm, other_arm):
    pairs = itertools.permutations(["heads=mha", arm, other_arm], 2)
    experiments = [build("", " | ".join(pair))[0] for pair in pairs]
    assert experiments[0]["arms"] == experiments[1]["arms"]
    assert len({experiment["name"] for experiment in experiments}) == 6


@pytest.mark.parametrize(
    ("arms", "names"),
    [
        ("optim.lr=1e-3 | optim.lr=3e-3", ["lr_1e_3", "lr_3e_3"]),
        ("mask=full | mask=full", ["full_0", "full_1"]),
        ("heads=mha | heads=gqa position=rope", ["mha", "gqa_rope"]),
        ("optim.lr=1e-3 | parent=01ab", ["lr_1e_3", "parent_01ab"]),  # the key, since a run id is no name
    ],
)
def test_arms_are_named_by_their_overrides(arms, names):
    assert build("", arms)[0]["arms"] == names


def test_a_comparison_never_has_the_name_of_an_experiment(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mha_vs_gqa.yaml").touch()
    assert build("", "heads=gqa | heads=mha")[0]["name"] == "compare_gqa_vs_mha"
    assert build()[0]["name"] == "mha_vs_gqa"
    assert build("", "heads=mha | heads=gqa", [CONF, tmp_path])[0]["name"] == "compare_mha_vs_gqa"


@pytest.mark.parametrize(
    "text",
    [
        "python -m attnlab compare heads=mha 'heads=gqa position=rope' 'data.path=a b'",
        """it's "${model.dim}" and '${times:2,${seed}}'""",
        "ends in \\",
        r"\${seed} \\${seed} \' a\b",
        "a,b [c] {d: e} = +f ~g",
    ],
)
def test_text_survives_quoting_as_an_override(text):
    line = ["heads=mha", f"++sweep.command={overrides.quote_value(text)}", "seed=0,1"]
    assert overrides.get_override_text(line, "sweep.command") == text
    assert overrides.get_override_text(line, "sweep.slots") is None
