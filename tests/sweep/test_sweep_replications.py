"""Replications of an experiment: on several corpora, and at the sizes of a ladder."""

from types import SimpleNamespace

import pytest

from attnlab.errors import InvalidConfig
from attnlab.store.run_schema import RunResult, Trunk
from attnlab.sweep.plan.replications import ladder_plan

LADDER = (
    "+ladder={name:steps,rungs:{low:['trainer.max_steps=2'],high:['trainer.max_steps=6']},seeds:{low:2,high:1},"
    "rates:{rung:low,power:-0.5},margin:0.25,margin_reason:r}"
)
BUDGETS = (
    "+ladder={name:steps,budgets:{low:1,high:3},seeds:{low:2,high:2},rates:{rung:low,power:0.0},margin:0.25,"
    "margin_reason:r}"
)
TUNE = "+tune={lr:[0.1,0.2,0.4],seeds:[7,8,9],extend:0}"


def test_each_corpus_is_own_comparison_and_first_has_plain_title(plan_toy):
    alone, other = plan_toy("+experiment=corpora")
    assert [plan.title for plan in (alone, other)] == [plan.name for plan in (alone, other)]
    assert (alone.name, other.name) == ("corpora", "corpora@other")  # the names that are preregistered
    assert {plan.group_title for plan in (alone, other)} == {"corpora"}
    assert [plan.runs[0].config["data"]["name"] for plan in (alone, other)] == ["plain", "other"]
    assert alone.changed == other.changed == ()
    [once] = plan_toy("+experiment=heads", "data=plain")
    assert [run.id for run in alone.runs] == [run.id for run in once.runs]


def test_selected_corpora_do_not_change_experiment(plan_toy):
    [other] = plan_toy("+experiment=corpora", "corpora=[other]")
    assert (other.title, other.changed) == (
        "corpora@other",
        (),
    )  # only the first declared has the plain title
    plain, new = plan_toy("+experiment=heads", "+corpora=[plain,other]")
    assert (plain.title, new.title) == ("heads@plain", "heads@other")


def test_data_override_disables_corpora(plan_toy):
    [plan] = plan_toy("+experiment=corpora", "data=other")
    assert plan.replication.is_own
    assert plan.replication.make_place(plan.group_title) is None
    assert plan.runs[0].config["data"]["name"] == "other"


def test_ladder_size_has_own_seeds_and_ladder_margin(plan_toy):
    low, high = plan_toy("+experiment=heads", LADDER)
    assert [plan.title for plan in (low, high)] == ["heads@steps.low", "heads@steps.high"]
    assert [plan.experiment.size for plan in (low, high)] == ["low", "high"]
    assert [plan.experiment.seeds for plan in (low, high)] == [[0, 1], [1000]]  # sizes share no seed
    assert [run.config["trainer"]["max_steps"] for run in high.runs] == [6] * len(high.runs)
    assert {plan.experiment.margin for plan in (low, high)} == {0.25}
    assert low.changed == high.changed == ()  # a ladder does not change the experiment


def test_ladder_replaces_size_overrides(plan_toy):
    by_size = "+size_overrides={S:['trainer.max_steps=9'],low:['trainer.max_steps=9']}"
    [alone] = plan_toy("+experiment=heads", "size=S", by_size)
    assert alone.runs[0].config["trainer"]["max_steps"] == 9
    plans = plan_toy("+experiment=heads", by_size, LADDER)
    assert [plan.runs[0].config["trainer"]["max_steps"] for plan in plans] == [2, 6]


def test_rates_that_are_not_scaled_keep_all_digits():
    """Budgets share a trunk only if their learning rates are equal."""
    runs = {"one": SimpleNamespace(estimate=SimpleNamespace(lr=0.03333, training_flops=1e9))}
    arms = {"one": SimpleNamespace(estimate=SimpleNamespace(training_flops=8e9))}
    for power, rate in ((0.0, 0.03333), (-1 / 3, 0.0167)):
        ladder = SimpleNamespace(rates=SimpleNamespace(power=power))
        assert ladder_plan.transfer_learning_rates(ladder, runs, arms, "one") == {"one": rate}


def test_learning_rates_transfer_from_tuned_size(plan_toy):
    results = {}

    def make_result(run):
        loss = abs(run.config["optim"]["lr"] - (0.2 if run.arm.startswith("two") else 0.1))
        return RunResult(id=run.id, status="done", seed=run.seed, config={}, metrics={"val/loss": loss})

    low, high = plan_toy("+experiment=heads", LADDER, TUNE)
    assert not high.tuning_runs
    assert set(high.untuned_arms) == set(low.untuned_arms) == set(low.experiment.arms)
    while any(run.id not in results for run in low.tuning_runs):
        results |= {run.id: make_result(run) for run in low.tuning_runs}
        low, high = plan_toy("+experiment=heads", LADDER, TUNE, lookup=results.get)
    assert not low.untuned_arms
    assert not high.untuned_arms
    factor = (high.runs[0].estimate.training_flops / low.runs[0].estimate.training_flops) ** -0.5
    assert factor == pytest.approx(3**-0.5)
    for arm, runs in high.group_runs_by_arm().items():
        rate = low.group_runs_by_arm()[arm][0].config["optim"]["lr"]
        assert runs[0].config["optim"]["lr"] == pytest.approx(rate * factor, rel=1e-2)
        assert runs[0].estimate.lr == runs[0].config["optim"]["lr"]


def test_a_budget_multiplies_the_steps_of_the_experiment(plan_toy):
    low, high = plan_toy("+experiment=heads", "size=M", BUDGETS)
    assert [plan.name for plan in (low, high)] == ["heads@steps.low", "heads@steps.high"]
    steps = [{run.config["trainer"]["max_steps"] for run in plan.runs} for plan in (low, high)]
    assert steps == [{7}, {21}]  # the overrides of the size stay
    assert [plan.experiment.size for plan in (low, high)] == ["M", "M"]
    assert [plan.experiment.seeds for plan in (low, high)] == [[10_000, 10_001]] * 2
    assert [plan.experiment.looks for plan in (low, high)] == [None, None]
    assert {plan.experiment.margin for plan in (low, high)} == {0.5}, (
        "the experiment's own margin is a number"
    )
    assert low.changed == high.changed == ("size=M",)


def test_keys_that_a_ladder_keeps_may_be_set(plan_toy):
    low, high = plan_toy("+experiment=heads", BUDGETS, "margin=0.1", "compute_calibration=null")
    assert {plan.experiment.margin for plan in (low, high)} == {0.1}
    [plan] = plan_toy("+experiment=corpora", "corpora=[other]", "data=other")
    assert plan.runs[0].config["data"]["name"] == "other"


def test_each_budget_continues_the_run_of_the_smaller_one(plan_toy, monkeypatch):
    import toy_trainer

    check = toy_trainer.check
    plans = plan_toy("+experiment=heads", BUDGETS)
    assert all(run.use.trunk is None for plan in plans for run in plan.runs), "this trainer shares no steps"
    monkeypatch.setattr(toy_trainer, "check", lambda config: check(config) | {"shared_steps": 1})
    low, high = plan_toy("+experiment=heads", BUDGETS)
    smaller = {(run.arm, run.seed): run for run in low.runs}
    assert all(run.use.trunk is None and run.use.keeps_trunk for run in low.runs)
    for run in high.runs:
        assert run.use.trunk == Trunk(id=smaller[run.arm, run.seed].id, step=1)
        assert not run.use.keeps_trunk
    assert [run.id for plan in (low, high) for run in plan.runs] == [
        run.id for plan in plans for run in plan.runs
    ], "a trunk changes no id"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("+experiment=heads", BUDGETS.replace("budgets:{", "rungs:{low:[]},budgets:{")), "not both"),
        (("+experiment=heads", BUDGETS.replace("high:3", "high:0.5")), "each larger than the one before"),
        (("+experiment=heads", BUDGETS.replace("seeds:{low:2", "seeds:{low:1")), "the same number of seeds"),
        (("+experiment=heads", BUDGETS.replace("low:1,high:3", "low:0.01,high:3")), "less than one step"),
        (
            ("+experiment=heads", BUDGETS, "arm_overrides.two=['heads=two','trainer.max_steps=4']"),
            "multiplies the steps of the experiment, but two sets trainer.max_steps",
        ),
        (("+experiment=heads", LADDER, "size=S"), "a ladder sets this key"),
        (("+experiment=heads", LADDER.replace("high:1", "top:1")), "is missing in rungs or in seeds"),
        (("+experiment=heads", LADDER.replace("rung:low", "rung:lwo")), "ladder steps (nearest: low"),
        (("+experiment=heads", LADDER.replace("margin:0.25,", "")), "margin"),
        (("+experiment=heads", LADDER.replace("high:1", "high:0")), "must be at least 1"),
        (("+experiment=heads", LADDER.replace("max_steps=6", "max_steps=0")), "high of ladder steps: arm"),
        (("+experiment=heads", "+corpora=[plain,plain]"), "each once"),
        (("+experiment=corpora", "corpora=[plain]", "data=other"), "data=other replaces it"),
        (("+experiment=corpora", LADDER, "corpora=[plain]"), r"corpora=\[plain\]: ladder=steps replaces"),
        (("+experiment=heads", LADDER, "margin=0.1"), "margin=0.1: ladder=steps replaces it: remove it"),
        (("+experiment=heads", BUDGETS, "looks=[2,4]"), r"looks=\[2,4\]: ladder=steps replaces it"),
        (("+experiment=heads", "+corpora=[plain,othr]"), "corpora: data has no option othr (nearest: other"),
        (("+corpora=[plain]",), "only an experiment can set"),
        ((LADDER,), "only an experiment can set"),
    ],
)  # fmt: skip
def test_invalid_replications_fail_in_one_line(plan_toy, words, message):
    with pytest.raises(InvalidConfig, match=message.replace("(", r"\(")):
        plan_toy(*words)
