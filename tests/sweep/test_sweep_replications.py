"""An experiment asked once more: of several texts, and at the rungs of a ladder."""

import pytest

from attnlab.errors import Refused
from attnlab.store.schema import RunRecord

LADDER = (
    "+ladder={name:steps,rungs:{low:['trainer.max_steps=2'],high:['trainer.max_steps=6']},seeds:{low:2,high:1},"
    "rates:{rung:low,power:-0.5},margin:0.25,margin_reason:r}"
)
TUNE = "+tune={lr:[0.1,0.2,0.4],seeds:[7,8,9],widen:0}"


def test_a_text_is_a_comparison_of_its_own_and_the_first_that_is_declared_is_the_reports_own(planned):
    alone, other = planned("+experiment=texts")
    assert [plan.title for plan in (alone, other)] == [plan.name for plan in (alone, other)]
    assert (alone.name, other.name) == ("texts", "texts@other")  # what is declared on record
    assert {plan.together for plan in (alone, other)} == {"texts"}
    assert [plan.runs[0].config["data"]["name"] for plan in (alone, other)] == ["plain", "other"]
    assert alone.changed == other.changed == ()
    [once] = planned("+experiment=heads", "data=plain")
    assert [run.id for run in alone.runs] == [run.id for run in once.runs]


def test_which_texts_are_asked_changes_nothing_of_what_is_asked_on_each(planned):
    [other] = planned("+experiment=texts", "texts=[other]")
    assert (other.title, other.changed) == ("texts@other", ())  # nothing has the report of the declared first
    plain, new = planned("+experiment=heads", "+texts=[plain,other]")
    assert (plain.title, new.title) == ("heads@plain", "heads@other")


def test_a_command_that_names_its_data_asks_that_alone(planned):
    [plan] = planned("+experiment=heads", "+texts=[plain,other]", "data=other")
    assert plan.replication is None
    assert plan.runs[0].config["data"]["name"] == "other"


def test_each_rung_is_a_comparison_with_its_own_size_seeds_and_the_ladders_margin(planned):
    low, high = planned("+experiment=heads", LADDER)
    assert [plan.title for plan in (low, high)] == ["heads@steps.low", "heads@steps.high"]
    assert [plan.experiment.size for plan in (low, high)] == ["low", "high"]
    assert [plan.experiment.seeds for plan in (low, high)] == [[0, 1], [1000]]  # none is another rung's too
    assert [run.config["trainer"]["max_steps"] for run in high.runs] == [6] * len(high.runs)
    assert {plan.experiment.margin for plan in (low, high)} == {0.25}
    assert low.changed == high.changed == ()  # a ladder is a place to ask, and no change of what is asked


def test_a_ladder_stands_in_the_place_of_what_is_set_by_size(planned):
    by_size = "+size_overrides={S:['trainer.max_steps=9'],low:['trainer.max_steps=9']}"
    [alone] = planned("+experiment=heads", "size=S", by_size)
    assert alone.runs[0].config["trainer"]["max_steps"] == 9
    rungs = planned("+experiment=heads", by_size, LADDER)
    assert [plan.runs[0].config["trainer"]["max_steps"] for plan in rungs] == [2, 6]


def test_rates_are_tuned_at_one_rung_and_go_with_the_compute_to_the_others(planned):
    found = {}

    def record(run):
        loss = abs(run.config["optim"]["lr"] - (0.2 if run.arm.startswith("two") else 0.1))
        return RunRecord(id=run.id, status="done", seed=run.seed, config={}, metrics={"val/loss": loss})

    low, high = planned("+experiment=heads", LADDER, TUNE)
    assert not high.grid
    assert set(high.untuned) == set(low.untuned) == set(low.experiment.arms)
    while any(run.id not in found for run in low.grid):
        found |= {run.id: record(run) for run in low.grid}
        low, high = planned("+experiment=heads", LADDER, TUNE, lookup=found.get)
    assert not low.untuned
    assert not high.untuned
    factor = (high.runs[0].estimate.training_flops / low.runs[0].estimate.training_flops) ** -0.5
    assert factor == pytest.approx(3**-0.5)
    for arm, runs in high.arms().items():
        rate = low.arms()[arm][0].config["optim"]["lr"]
        assert runs[0].config["optim"]["lr"] == pytest.approx(rate * factor, rel=1e-2)
        assert runs[0].estimate.lr == runs[0].config["optim"]["lr"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("+experiment=heads", LADDER, "size=S"), "a ladder sets it"),
        (("+experiment=heads", LADDER.replace("high:1", "top:1")), "has not both"),
        (("+experiment=heads", LADDER.replace("rung:low", "rung:lwo")), "no rung of steps (nearest: low"),
        (("+experiment=heads", LADDER.replace("margin:0.25,", "")), "margin"),
        (("+experiment=heads", LADDER.replace("high:1", "high:0")), "give at least 1"),
        (("+experiment=heads", LADDER.replace("max_steps=6", "max_steps=0")), "rung high of steps: arm"),
        (("+experiment=heads", "+texts=[plain,plain]"), "each once"),
        (("+texts=[plain]",), "without an experiment"),
        ((LADDER,), "without an experiment"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_line(planned, words, says):
    with pytest.raises(Refused, match=says.replace("(", r"\(")):
        planned(*words)
