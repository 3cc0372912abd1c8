import re

import pytest
from hydra.errors import HydraException

from attnlab.errors import Refused


def test_a_plan_is_every_arm_with_every_seed_and_seeds_come_together(planned):
    [plan] = planned("+experiment=heads")
    assert [(run.arm, run.seed) for run in plan.runs] == [
        (arm, seed) for seed in (0, 1) for arm in ("two", "one", "four")
    ]
    assert len({run.id for run in plan.runs}) == 6
    assert plan.title == "heads"


@pytest.mark.parametrize(
    ("line", "seeds"),
    [("seed=5", [5]), ("seed=0,3", [0, 3]), ("seed=range(4)", [0, 1, 2, 3]), ("seeds=[7]", [7])],
)
def test_seed_on_the_command_line_replaces_the_seeds(planned, line, seeds):
    [plan] = planned("+experiment=heads", line)
    assert plan.experiment.seeds == seeds
    assert {run.seed for run in plan.runs} == set(seeds)
    assert plan.title.startswith("heads~")


def test_a_swept_key_gives_one_report_per_value_and_the_command_line_beats_the_size(planned):
    plans = planned("+experiment=heads", "trainer.max_steps=5,6", "size=M")
    assert [{run.config["trainer"]["max_steps"] for run in plan.runs} for plan in plans] == [{5}, {6}]
    assert len({plan.title for plan in plans}) == 2
    [plan] = planned("+experiment=heads", "size=M")
    assert {run.config["trainer"]["max_steps"] for run in plan.runs} == {7}


def test_without_an_experiment_a_command_is_one_run_per_seed(planned):
    [plan] = planned("heads=four", "seed=1,2")
    assert plan.experiment is None
    assert [(run.arm, run.seed, run.config["model"]["attention"]["n_heads"]) for run in plan.runs] == [
        ("run", 1, 4),
        ("run", 2, 4),
    ]


def test_arms_are_matched_to_the_baseline_by_the_key_that_is_solved_for(planned):
    [plan] = planned("+experiment=heads", "seed=0")
    widths = {run.arm: run.config["model"]["width"] for run in plan.runs}
    assert widths == {"two": 12, "one": 14, "four": 8}  # 10 parameters a width, 20 a head
    assert len({run.estimate.parameters for run in plan.runs}) == 1


def test_an_arm_may_be_left_as_it_is(planned):
    [plan] = planned("+experiment=heads", "seed=0", "+unmatched=[four]")
    widths = {run.arm: run.config["model"]["width"] for run in plan.runs}
    assert widths == {"two": 12, "one": 14, "four": 12}


def test_the_seed_in_an_arms_override_is_that_of_each_run(planned):
    [plan] = planned("+experiment=heads", "arms=[two,seeded]", "seed=3,5")
    assert [run.config["replica"] for run in plan.arms()["seeded"]] == [3, 5]


def test_an_arm_may_continue_from_another_with_the_same_seed(planned):
    [plan] = planned("+experiment=heads", "arms=[child,two]", "match=none", "claims=[]")
    ids = {(run.arm, run.seed): run for run in plan.runs}
    for seed in (0, 1):
        assert ids["child", seed].config["parent"] == ids["two", seed].id
        assert ids["child", seed].id not in (ids["two", seed].id, ids["child", 1 - seed].id)


@pytest.mark.parametrize("facts", [{"vocabulary": "of {heads}"}, {"unit": "unit {heads}"}])
def test_an_arm_continues_from_no_arm_of_another_vocabulary(planned, monkeypatch, facts):
    import toy_trainer

    check = toy_trainer.check

    def checked(config):
        found, heads = check(config), config["model"]["attention"].get("n_heads")
        own = {key: value.format(heads=heads) for key, value in facts.items()}
        return {**found, "data": {**found["data"], **own}}

    monkeypatch.setattr(toy_trainer, "check", checked)
    with pytest.raises(
        Refused, match=r"arm child: parent=two: its vocabulary differs from this run's \(100 tok"
    ):
        planned("+experiment=heads", "arms=[child,two]", "match=none", "claims=[]")


def test_a_runs_own_overrides_compose_it_again(planned):
    [plan] = planned("+experiment=heads", "seed=1")
    for run in plan.runs:
        [again] = planned(*[line for line in run.overrides if "experiment" not in line])
        assert again.runs[0].id == run.id


def test_a_replica_is_a_deliberate_twin(planned):
    [plan] = planned("+experiment=heads", "arms=[two,copy]", "claims=[]", "seed=0")
    assert len({run.id for run in plan.runs}) == 2


def test_only_what_changes_the_experiment_renames_its_report(planned):
    neutral = [
        "size=S",
        "seed=0,1",
        "paths.runs=there",
        "sweep.slots=1",
        "logger.mode=x",
        "trainer.max_steps=3",
    ]
    assert planned("+experiment=heads", *neutral)[0].title == "heads"
    titles = {planned("+experiment=heads", line)[0].title for line in ("size=M", "seed=0", "margin=0.1")}
    assert len(titles) == 3
    assert "heads" not in titles


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("heads=four", "heads=four would be hidden by arm two, which sets heads=two"),
        ("arms=[two,fuor]", "no arm fuor (nearest: four)"),
        ("arms=[one]", "baseline=two of heads is not among arms"),
        ("arms=[two,twin]", "arms two and twin are one and the same run"),
        ("arms=[two,two]", "names an arm twice"),
        ("arms=[]", "give a list of names"),
        ("seeds=[]", "has no seeds"),
        ("seed=1,1", "name a seed twice"),
        ("seed=a", "seeds are integers"),
        ("margin=null", "has no margin"),
        ("margin_reason=null", "has no margin_reason"),
        ("match=parms", "match=parms of heads (nearest: params)"),
        ("match_by=model.act", "must name a positive integer"),
        ("+unmatched=[thre]", "unmatched of heads: thre is no arm of it"),
        ("+unmatched=[two]", "unmatched of heads: two is the baseline, which nothing is made equal to"),
        ("trainer.max_steps=0", "must be positive"),
        ("+model.scale=inf", "model.scale=inf is not a finite number"),
        ("arm_overrides.one=['seed=3']", "arm one of heads sets seed"),
        ("arm_overrides.one=['model.width=9']", "arm one sets model.width, which match_by solves for"),
        ("claims=[{arm: thre, is: below, threshold: 1}]", "a claim of heads is about arm thre"),
        ("arm_overrides={two: ['parent=one'], one: ['parent=two']}", "in a circle"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_in_one_line(planned, line, told):
    with pytest.raises(Refused) as refused:
        planned("+experiment=heads", line)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["heads=four", "heads=one"], "heads is set twice, heads=four and heads=one: "),
        (["optim.lr=0.1", "optim.lr=0.2"], "or sweep both: optim.lr=0.1,0.2"),
        (["seed=1", "seed=2"], "seed is set twice"),
    ],
)
def test_a_key_with_two_values_is_refused_and_none_is_dropped_in_silence(planned, lines, told):
    with pytest.raises(Refused, match=re.escape(told)):
        planned(*lines)


def test_how_a_command_is_carried_out_may_be_said_again_and_the_last_word_counts(planned):
    [plan] = planned("heads=four", "sweep.slots=1", "sweep.slots=2")
    assert plan.runs[0].config["sweep"]["slots"] == 2


def test_an_unknown_option_of_a_swept_group_is_hydras_error(planned):
    with pytest.raises(HydraException):
        planned("heads=one,tow")
