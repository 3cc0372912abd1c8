import pytest
from omegaconf import OmegaConf

from attnlab.cli.verbs.compare import declare, split, yaml
from attnlab.errors import Refused
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
def test_a_word_that_sets_what_an_arm_sets_is_an_arm_and_another_is_an_override(words, arms, rest):
    assert split(words) == (arms, rest)


def test_one_arm_is_no_comparison():
    with pytest.raises(Refused, match="two arms or more"):
        split(["heads=mha"])


def test_the_file_declares_what_the_line_says_and_the_rest_stays_on_the_line():
    arms = [["heads=mha"], ["heads=gqa", "position=rope"]]
    found, left = declare(arms, ["margin=0.01", "seed=range(2)", "size=M", "match=params"])
    assert left == ["size=M"]
    assert (found["margin"], found["seeds"], found["match"]) == (0.01, [0, 1], "params")
    assert found["claims"][0]["threshold"] == 0.01
    assert found["name"] == "mha_vs_gqa_rope"
    read = OmegaConf.to_container(OmegaConf.create(yaml(found)))
    assert read == found


@pytest.mark.parametrize(
    ("words", "looks", "seeds"),
    [
        ([], "anytime", [0, 1, 2, 3, 4, 5]),
        (["looks=null", "seed=0,1"], None, [0, 1]),
        (["looks=[2,4]"], [2, 4], None),
        (["seed=range(9)", "looks=[2,4]"], [2, 4], list(range(9))),
    ],
)
def test_any_number_of_seeds_may_be_looked_at_unless_looks_are_declared(words, looks, seeds):
    found, left = declare([["heads=mha"], ["heads=gqa"]], words)
    assert (found["looks"], found.get("seeds"), left) == (looks, seeds, [])


def test_where_more_is_better_no_worse_means_above_minus_the_margin():
    words = ["direction=higher", "metric=val/accuracy", "margin=0.03"]
    found, _ = declare([["heads=mha"], ["heads=gqa"]], words)
    assert (found["claims"][0]["is"], found["claims"][0]["threshold"]) == ("above", -0.03)


@pytest.mark.parametrize(
    ("words", "margin", "exchange", "threshold"),
    [
        ([], {"training": "5 %"}, {"seeds": [200, 201, 202]}, "margin"),
        (["exchange={seeds:[7,8]}"], {"training": "5 %"}, {"seeds": [7, 8]}, "margin"),
        (["margin={training:2%}"], {"training": "2%"}, {"seeds": [200, 201, 202]}, "margin"),
        (["margin=0.04"], 0.04, None, 0.04),
        (["margin=0.04", "exchange={seeds:[7,8]}"], 0.04, {"seeds": [7, 8]}, 0.04),
    ],
)
def test_a_margin_is_5_percent_of_the_training_unless_a_number_is_given(words, margin, exchange, threshold):
    found, left = declare([["heads=mha"], ["heads=gqa"]], words)
    asked = found["claims"][0]["threshold"]
    assert (found["margin"], found["exchange"], asked, left) == (margin, exchange, threshold, [])


@pytest.mark.parametrize("words", [["metric=val/accuracy"], ["direction=higher"]])
def test_what_is_no_loss_needs_a_margin_of_its_own(words):
    with pytest.raises(Refused, match=r"give its margin as a number, as in margin=0\.03"):
        declare([["heads=mha"], ["heads=gqa"]], words)


@pytest.mark.parametrize(
    ("arms", "names"),
    [
        ([["optim.lr=1e-3"], ["optim.lr=3e-3"]], ["lr_1e_3", "lr_3e_3"]),
        ([["mask=full"], ["mask=full"]], ["full_0", "full_1"]),
        ([["optim.lr=1e-3"], ["parent=01ab"]], ["lr_1e_3", "parent_01ab"]),  # not a run's id alone
    ],
)
def test_arms_are_named_by_what_they_set(arms, names):
    assert declare(arms, [])[0]["arms"] == names


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
def test_a_text_comes_back_from_an_override_as_it_was(text):
    line = ["heads=mha", f"++sweep.command={overrides.quoted(text)}", "seed=0,1"]
    assert overrides.text(line, "sweep.command") == text
    assert overrides.text(line, "sweep.slots") is None


@pytest.mark.parametrize("margin", ["abc", "null", "true"])
def test_a_margin_that_is_no_number_is_refused_before_anything_is_written(margin):
    with pytest.raises(Refused, match="give a number"):
        declare([["heads=mha"], ["heads=gqa"]], [f"margin={margin}", "direction=higher"])
