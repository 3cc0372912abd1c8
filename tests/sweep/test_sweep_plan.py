"""Plans of the toy command: arms, seeds, matching, parents, report titles and errors."""

import re

import pytest
from hydra.errors import HydraException

from attnlab.errors import InvalidConfig
from attnlab.sweep.plan.plan import select_size_overrides


def test_plan_has_every_arm_and_seed_in_seed_order(plan_toy):
    [plan] = plan_toy("+experiment=heads")
    assert [(run.arm, run.seed) for run in plan.runs] == [
        (arm, seed) for seed in (0, 1) for arm in ("two", "one", "four")
    ]
    assert len({run.id for run in plan.runs}) == 6
    assert plan.title == "heads"


@pytest.mark.parametrize(
    ("line", "seeds"),
    [("seed=5", [5]), ("seed=0,3", [0, 3]), ("seed=range(4)", [0, 1, 2, 3]), ("seeds=[7]", [7])],
)
def test_seed_override_replaces_seeds(plan_toy, line, seeds):
    [plan] = plan_toy("+experiment=heads", line)
    assert plan.experiment.seeds == seeds
    assert {run.seed for run in plan.runs} == set(seeds)
    assert plan.title.startswith("heads~")


def test_swept_key_gives_one_report_per_value_and_overrides_size(plan_toy):
    plans = plan_toy("+experiment=heads", "trainer.max_steps=5,6", "size=M")
    assert [{run.config["trainer"]["max_steps"] for run in plan.runs} for plan in plans] == [{5}, {6}]
    assert len({plan.title for plan in plans}) == 2
    [plan] = plan_toy("+experiment=heads", "size=M")
    assert {run.config["trainer"]["max_steps"] for run in plan.runs} == {7}


def test_command_without_experiment_is_one_run_per_seed(plan_toy):
    [plan] = plan_toy("heads=four", "seed=1,2")
    assert plan.experiment is None
    assert [(run.arm, run.seed, run.config["model"]["attention"]["n_heads"]) for run in plan.runs] == [
        ("run", 1, 4),
        ("run", 2, 4),
    ]


def test_arms_match_baseline_parameters(plan_toy):
    [plan] = plan_toy("+experiment=heads", "seed=0")
    widths = {run.arm: run.config["model"]["width"] for run in plan.runs}
    assert widths == {"two": 12, "one": 14, "four": 8}  # 10 parameters a width, 20 a head
    assert len({run.estimate.parameters for run in plan.runs}) == 1


def test_unmatched_arm_keeps_its_width(plan_toy):
    [plan] = plan_toy("+experiment=heads", "seed=0", "+unmatched=[four]")
    widths = {run.arm: run.config["model"]["width"] for run in plan.runs}
    assert widths == {"two": 12, "one": 14, "four": 12}


def test_seed_interpolation_in_arm_override_follows_each_run(plan_toy):
    [plan] = plan_toy("+experiment=heads", "arms=[two,seeded]", "seed=3,5")
    assert [run.config["replica"] for run in plan.group_runs_by_arm()["seeded"]] == [3, 5]


def test_child_arm_continues_from_parent_with_same_seed(plan_toy):
    [plan] = plan_toy("+experiment=heads", "arms=[child,two]", "match=none", "claims=[]")
    ids = {(run.arm, run.seed): run for run in plan.runs}
    for seed in (0, 1):
        assert ids["child", seed].config["parent"] == ids["two", seed].id
        assert ids["child", seed].id not in (ids["two", seed].id, ids["child", 1 - seed].id)


SPLIT_FACTS = {"sha256": "{heads}", "val_text": "{heads}", "train_tokens": "{heads}"}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"vocabulary": "of {heads}"}, r"vocabulary differs from this run's \(100 tok"),
        ({"unit": "unit {heads}"}, r"vocabulary differs from this run's \(100 tok"),
        (SPLIT_FACTS, r"split of \w+ \(.* differs from this run's"),
    ],
)
def test_child_arm_needs_vocabulary_and_split_of_parent(plan_toy, monkeypatch, facts, message):
    import toy_trainer

    check = toy_trainer.check

    def check_with_vocabulary(config):
        estimate, heads = check(config), config["model"]["attention"].get("n_heads")
        changes = {key: value.format(heads=heads) for key, value in facts.items()}
        return {**estimate, "data": {**estimate["data"], **changes}}

    monkeypatch.setattr(toy_trainer, "check", check_with_vocabulary)
    with pytest.raises(InvalidConfig, match=rf"arm child: parent=two: its {message}"):
        plan_toy("+experiment=heads", "arms=[child,two]", "match=none", "claims=[]")


def test_overrides_of_run_compose_same_run(plan_toy):
    [plan] = plan_toy("+experiment=heads", "seed=1")
    for run in plan.runs:
        [replanned] = plan_toy(*[line for line in run.overrides if "experiment" not in line])
        assert replanned.runs[0].id == run.id


def test_replica_has_own_run_id(plan_toy):
    [plan] = plan_toy("+experiment=heads", "arms=[two,copy]", "claims=[]", "seed=0")
    assert len({run.id for run in plan.runs}) == 2


def test_only_experiment_changes_rename_report(plan_toy):
    neutral = [
        "size=S",
        "seed=0,1",
        "paths.runs=there",
        "sweep.slots=1",
        "logger.mode=online",
        "trainer.max_steps=3",
    ]
    assert plan_toy("+experiment=heads", *neutral)[0].title == "heads"
    titles = {plan_toy("+experiment=heads", line)[0].title for line in ("size=M", "seed=0", "margin=0.1")}
    assert len(titles) == 3
    assert "heads" not in titles


LADDER = "+ladder={name:steps,KIND,seeds:{low:2,high:2},margin:0.25,margin_reason:r}"
RUNGS = LADDER.replace("KIND", "rungs:{low:['trainer.max_steps=2'],high:['trainer.max_steps=6']}")
BUDGETS = LADDER.replace("KIND", "budgets:{low:1,high:3}")


@pytest.mark.parametrize(
    ("words", "line", "is_neutral"),
    [
        (["+experiment=heads", "size=M"], "trainer.max_steps=3", False),  # size M has 7
        (["+experiment=heads", RUNGS], "trainer.max_steps=3", False),
        (["+experiment=heads", BUDGETS], "trainer.max_steps=3", True),
        (["+experiment=heads", RUNGS, "+ladder_arms=[two,one]"], "arms=[two,one,four]", False),
        (
            ["+experiment=heads", "arms=[two,one]", "arm_overrides.one=['heads=one','replica=1']"],
            "model.attention.n_heads=2",  # the option of arm one has 1
            False,
        ),
        (["heads=one", "replica=1,2"], "model.attention.n_heads=2", False),
        (["heads=one,four"], "trainer.max_steps=3", True),
        (["+experiment=corpora"], "data.batch_size=8", True),
    ],
)
def test_declared_value_renames_report_only_if_another_key_changes_it(plan_toy, words, line, is_neutral):
    titles = [plan.title for plan in plan_toy(*words)]
    assert ([plan.title for plan in plan_toy(*words, line)] == titles) is is_neutral


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("heads=four", "heads=four would be hidden by arm two, which sets heads=two"),
        ("arms=[two,fuor]", "no arm fuor (nearest: four)"),
        ("arms=[one]", "baseline=two of heads is not among arms"),
        ("arms=[two,twin]", "arms two and twin are the same run"),
        ("arms=[two,two]", "lists an arm twice: remove one"),
        ("arms=[]", "give a list of names"),
        ("seeds=[]", "has no seeds"),
        ("seed=1,1", "contain a duplicate"),
        ("+ladder_arms=[two,fuor]", "ladder_arms of heads: unknown arm fuor (nearest: four)"),
        ("seed=a", "seeds must be integers"),
        ("margin=null", "has no margin"),
        ("margin_reason=null", "has no margin_reason"),
        ("match=parms", "match=parms of heads (nearest: params)"),
        ("match_by=model.act", "is not a positive integer"),
        ("+unmatched=[thre]", "unmatched of heads: thre is not an arm: remove it"),
        ("+unmatched=[two]", "unmatched of heads: two is the baseline, which is never matched: remove it"),
        ("trainer.max_steps=0", "must be positive"),
        ("+model.scale=inf", "model.scale=inf is not a finite number"),
        ("arm_overrides.one=['seed=3']", "arm one of heads sets seed"),
        ("arm_overrides.one=['model.width=9']", "arm one sets model.width, which match_by solves for"),
        ("claims=[{arm: thre, is: below, threshold: 1}]", "a claim of heads has the unknown arm thre"),
        ("arm_overrides={two: ['parent=one'], one: ['parent=two']}", "in a cycle"),
    ],
)
def test_invalid_command_fails_in_one_line(plan_toy, line, message):
    with pytest.raises(InvalidConfig) as error:
        plan_toy("+experiment=heads", line)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("words", [["looks=[2,3]", "seeds=[5,6,7,8]"], ["looks=[2,3]", "seed=range(4)"]])
def test_every_named_seed_is_used(plan_toy, words):
    with pytest.raises(
        InvalidConfig, match=r"lists 4, but the last interim analysis of looks=\[2, 3\] needs 3"
    ):
        plan_toy("+experiment=heads", *words)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["+experiment=heads", "seeds=[0,1,2]", "seed=0"],
            "seeds=[0,1,2]: seed= replaces it: remove one of the two",
        ),
        (["heads=four", "heads=one"], "heads is set twice, heads=four and heads=one: "),
        (["optim.lr=0.1", "optim.lr=0.2"], "or sweep both with optim.lr=0.1,0.2"),
        (["seed=1", "seed=2"], "seed is set twice"),
        (
            ["model.width=9", "model={width: 7}"],
            "model.width is set twice, model.width=9 and model={width: 7}: remove",
        ),
    ],
)
def test_key_with_two_values_fails(plan_toy, lines, message):
    with pytest.raises(InvalidConfig, match=re.escape(message)):
        plan_toy(*lines)


def test_last_value_of_repeated_execution_key_counts(plan_toy):
    [plan] = plan_toy("heads=four", "sweep.slots=1", "sweep.slots=2")
    assert plan.runs[0].config["sweep"]["slots"] == 2


def test_unknown_option_of_swept_group_is_hydra_error(plan_toy):
    with pytest.raises(HydraException):
        plan_toy("heads=one,tow")


@pytest.mark.parametrize(
    ("lines_by_size", "expected"),
    [
        ({"S": ["data.pairs=4", "trainer.max_steps=650"]}, ["data.pairs=4", "trainer.max_steps=100"]),
        ({"S": ["trainer.max_steps=60"]}, ["trainer.max_steps=60"]),
        ({"S": ["data.pairs=4"], "mini": ["data.pairs=2"]}, ["data.pairs=2"]),
        ({"S": ["data.pairs=4"], "mini": []}, []),
        ({"M": ["data.pairs=4"]}, []),
        ({"S": None}, []),
    ],
)
def test_size_mini_takes_the_values_of_s_with_fewer_steps(lines_by_size, expected):
    assert select_size_overrides(lines_by_size, "mini") == expected
    assert select_size_overrides(lines_by_size, "S") == (lines_by_size.get("S") or [])
