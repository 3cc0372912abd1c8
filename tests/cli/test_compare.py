"""`compare`: arms, defaults and claims of an experiment from the command line."""

import pytest
from omegaconf import OmegaConf

from attnlab.cli.verbs.compare import build_experiment, format_experiment_yaml, split_arms
from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.sweep.plan import overrides


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


@pytest.mark.parametrize(
    ("arms", "rest", "message"),
    [
        ([["heads=mha"], ["heads=gqa"]], ["margin=0.1", "margin=0.2"], "margin is set twice"),
        ([["heads=mha"], ["heads=gqa"]], ["size=debug", "size=mini"], "size is set twice"),
        (
            [["heads=mha", "heads=gqa"], ["heads=mqa"]],
            [],
            "heads is set twice, heads=mha and heads=gqa: remove",
        ),
    ],
)
def test_a_key_with_two_values_is_rejected(arms, rest, message):
    with pytest.raises(InvalidConfig, match=message):
        build_experiment(arms, rest)


def test_an_unknown_option_of_an_arm_is_rejected_before_anything_is_composed(tmp_path):
    with pytest.raises(InvalidConfig, match=r"^heads has no option gqaa \(nearest: gqa"):
        build_experiment([["heads=mha"], ["heads=gqaa"]], ["data.path=missing.txt"])
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "gqaa.yaml").touch()
    build_experiment([["heads=mha"], ["heads=gqaa"]], [], [CONF, tmp_path])
    build_experiment([["heads=mha"], ["heads=gqaa"]], ["hydra.searchpath=[file://x]"])


@pytest.mark.parametrize(
    ("arm", "remedy"),
    [
        ("heads=gqa,mqa", "write heads=gqa heads=mqa"),
        ("heads=gqa,mqa mask=full", "write 'heads=gqa mask=full' 'heads=mqa mask=full'"),
        ("model.dim=range(8,24,8)", "write model.dim=8 model.dim=16"),
    ],
)
def test_several_values_in_an_arm_are_rejected(arm, remedy):
    with pytest.raises(InvalidConfig) as error:
        build_experiment([["heads=mha"], arm.split()], [])
    assert str(error.value) == f"{arm}: an arm has one value per key: {remedy}"


@pytest.mark.parametrize("setting", ["margin=0.03", "margin={training:3%}", "corpora=[pydocs]"])
def test_settings_that_a_ladder_would_replace_are_left_for_planning_to_reject(setting):
    arms = [["heads=mha"], ["heads=gqa"]]
    assert build_experiment(arms, ["ladder=two_cores", setting])[1] == [setting]
    assert build_experiment(arms, [setting])[1] == []


def test_one_arm_is_rejected():
    with pytest.raises(InvalidConfig, match="two or more arms"):
        split_arms(["heads=mha"])


def test_settings_enter_the_experiment_and_other_overrides_remain():
    arms = [["heads=mha"], ["heads=gqa", "position=rope"]]
    experiment, remaining = build_experiment(arms, ["margin=0.01", "seed=range(2)", "size=M", "match=params"])
    assert (remaining, experiment["overrides"]) == ([], ["size=M"])
    assert (experiment["margin"], experiment["seeds"], experiment["match"]) == (0.01, [0, 1], "params")
    assert experiment["claims"][0]["threshold"] == 0.01
    assert experiment["name"].startswith("mha_vs_gqa_rope_")
    parsed = OmegaConf.to_container(OmegaConf.create(format_experiment_yaml(experiment)))
    assert parsed == experiment


def test_comparisons_on_other_terms_have_other_names():
    def name(*words, arms=(["heads=mha"], ["heads=gqa"])):
        return build_experiment(arms, words)[0]["name"]

    lines = [(), ("margin=0.01",), ("margin=0.02",), ("size=M",), ("size=M", "margin=0.01"), ("looks=null",)]
    lines += [
        ("looks=null", "seed=0,1"),
        ("looks=[2,4]",),
        ("controlled=[parameters]",),
        ("tune={lr:[1,2]}",),
    ]
    assert len({name(*words) for words in lines}) == len(lines)
    assert name("margin=0.01", "size=M") == name("size=M", "margin=0.01")
    same_report = ["seed=0,1", "paths.runs=here", "metrics=[a]", "looks=anytime"]
    assert {name(word) for word in same_report} == {"mha_vs_gqa"}


@pytest.mark.parametrize(
    ("arm", "other_arm"),
    [
        (["schedule=linear"], ["model=linear"]),
        (["mask=window", "epilogue=sinks"], ["mask=window_sinks"]),
        (["model.dim=64"], ["model.attention.dim=64"]),
        (["data.path=a.txt"], ["data.path=A.txt"]),
        (["optim.lr=1e-3"], ["optim.lr=1e+3"]),
    ],
)
def test_arms_with_the_same_name_are_other_comparisons(arm, other_arm):
    comparisons = [[["heads=mha"], arm], [["heads=mha"], other_arm], [arm, other_arm], [other_arm, arm]]
    first, second, *pairs = (build_experiment(arms, [])[0] for arms in comparisons)
    assert first["arms"] == second["arms"]
    assert len({experiment["name"] for experiment in (first, second, *pairs)}) == 4


def test_execution_settings_and_swept_values_stay_on_the_command_line():
    words = ["paths.runs=here", "logger=none", "optim.lr=1e-3,3e-3", "data=text", "tune=null", "metrics=[a]"]
    experiment, remaining = build_experiment([["heads=mha"], ["heads=gqa"]], words)
    assert remaining == ["paths.runs=here", "logger=none", "optim.lr=1e-3,3e-3"]
    assert (experiment["overrides"], experiment["metrics"]) == (["data=text"], ["a"])


@pytest.mark.parametrize(
    ("words", "looks", "seeds"),
    [
        ([], "anytime", [0, 1, 2, 3, 4, 5]),
        (["looks=null", "seed=0,1"], None, [0, 1]),
        (["looks=[2,4]"], [2, 4], None),
        (["seed=range(9)", "looks=[2,4]"], [2, 4], list(range(9))),
    ],
)
def test_analyses_are_anytime_valid_unless_looks_are_given(words, looks, seeds):
    experiment, remaining = build_experiment([["heads=mha"], ["heads=gqa"]], words)
    assert (experiment["looks"], experiment.get("seeds"), remaining) == (looks, seeds, [])


def test_noninferiority_is_above_minus_margin_for_higher_is_better():
    words = ["direction=higher", "metric=val/accuracy", "margin=0.03"]
    experiment, _ = build_experiment([["heads=mha"], ["heads=gqa"]], words)
    assert (experiment["claims"][0]["is"], experiment["claims"][0]["threshold"]) == ("above", -0.03)


@pytest.mark.parametrize(
    ("words", "margin", "compute_calibration", "threshold"),
    [
        ([], {"training": "5 %"}, {"seeds": [200, 201, 202]}, "margin"),
        (["compute_calibration={seeds:[7,8]}"], {"training": "5 %"}, {"seeds": [7, 8]}, "margin"),
        (["margin={training:2%}"], {"training": "2%"}, {"seeds": [200, 201, 202]}, "margin"),
        (["margin=0.04"], 0.04, None, 0.04),
        (["margin=0.04", "compute_calibration={seeds:[7,8]}"], 0.04, {"seeds": [7, 8]}, 0.04),
    ],
)
def test_default_margin_is_5_percent_of_training_compute(words, margin, compute_calibration, threshold):
    experiment, remaining = build_experiment([["heads=mha"], ["heads=gqa"]], words)
    claim_threshold = experiment["claims"][0]["threshold"]
    assert (experiment["margin"], experiment["compute_calibration"], claim_threshold, remaining) == (
        margin,
        compute_calibration,
        threshold,
        [],
    )


@pytest.mark.parametrize("words", [["metric=val/accuracy"], ["direction=higher"]])
def test_metric_other_than_loss_requires_a_margin(words):
    with pytest.raises(InvalidConfig, match=r"give the margin as a number, as in margin=0\.03"):
        build_experiment([["heads=mha"], ["heads=gqa"]], words)


@pytest.mark.parametrize(
    ("arms", "names"),
    [
        ([["optim.lr=1e-3"], ["optim.lr=3e-3"]], ["lr_1e_3", "lr_3e_3"]),
        ([["mask=full"], ["mask=full"]], ["full_0", "full_1"]),
        (
            [["optim.lr=1e-3"], ["parent=01ab"]],
            ["lr_1e_3", "parent_01ab"],
        ),  # the key, since a bare run id is no name
    ],
)
def test_arms_are_named_by_their_overrides(arms, names):
    assert build_experiment(arms, [])[0]["arms"] == names


def test_a_comparison_never_has_the_name_of_an_experiment(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mha_vs_gqa.yaml").touch()
    assert build_experiment([["heads=gqa"], ["heads=mha"]], [])[0]["name"] == "compare_gqa_vs_mha"
    arms = [["heads=mha"], ["heads=gqa"]]
    assert build_experiment(arms, [])[0]["name"] == "mha_vs_gqa"
    assert build_experiment(arms, [], [CONF, tmp_path])[0]["name"] == "compare_mha_vs_gqa"


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


@pytest.mark.parametrize("margin", ["abc", "null", "true"])
def test_margin_that_is_no_number_is_rejected(margin):
    with pytest.raises(InvalidConfig, match="give a number"):
        build_experiment([["heads=mha"], ["heads=gqa"]], [f"margin={margin}", "direction=higher"])
