"""A sweep without an experiment: what differs is an arm, and one page compares them, as exploratory."""

import pytest

from attnlab.errors import Refused
from attnlab.report.schema import load


def test_the_combinations_are_the_arms_of_one_plan_and_the_first_is_the_baseline(planned):
    [plan] = planned("heads=four,one", "model.width=8,9", "optim.lr=0.2")
    assert plan.experiment.arms == ["four width=8", "four width=9", "one width=8", "one width=9"]
    assert plan.experiment.baseline == "four width=8"
    assert plan.experiment.seeds == [0]
    assert plan.declared is None
    assert [(run.config["model"]["width"], run.config["optim"]["lr"]) for run in plan.runs] == [
        (8, 0.2), (9, 0.2), (8, 0.2), (9, 0.2),
    ]  # fmt: skip
    assert plan.runs[1].use.overrides == ("optim.lr=0.2", "heads=four", "model.width=9", "seed=0")
    assert plan.title.startswith("sweep_heads_four_one-width_8_9~")


def test_its_runs_are_those_of_the_single_commands(planned):
    [plan] = planned("heads=four,one", "seed=3,4")
    for run in plan.runs:
        [alone] = planned(f"heads={run.arm}", f"seed={run.seed}")
        assert alone.runs[0].id == run.id
    assert [(run.arm, run.seed) for run in plan.runs] == [(arm, n) for n in (3, 4) for arm in ("four", "one")]


def test_its_name_is_what_differs_and_another_setting_is_another_page(planned):
    lines = ([], ["optim.lr=0.2"], ["seed=0,1"], ["seed=1,2"])
    titles = [planned("heads=four,one", *line)[0].title for line in lines]
    assert titles[0] == "sweep_heads_four_one"
    assert len(set(titles)) == 4
    assert planned("heads=four,one", "sweep.slots=1")[0].title == titles[0]
    [odd] = planned("model.act='tr ain',other")
    assert odd.experiment.name.startswith("sweep_act_")
    assert odd.experiment.name.replace("-", "_").isidentifier()


def test_what_is_swept_may_lie_in_an_option_that_the_command_chooses(planned):
    [plan] = planned("data=other", "data.batch_size=4,6")
    assert [run.config["data"] for run in plan.runs] == [{"batch_size": n, "name": "other"} for n in (4, 6)]
    [plan] = planned("data=other,plain", "data.batch_size=4")
    assert [run.config["data"]["batch_size"] for run in plan.runs] == [4, 4]
    with pytest.raises(Refused, match="would be hidden by arm width=8"):
        planned("model={width: 7}", "model.width=8,9")


def test_an_option_that_two_groups_have_is_named_with_its_group(planned):
    [plan] = planned("heads=one,two", "+tail=two,three")
    assert plan.experiment.arms[:2] == ["heads=one tail=two", "heads=one tail=three"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["heads=one,one"], "two values of a swept key are the same"),
        (["heads=one,two", "seeds=[0,1]"], "without an experiment nothing is declared"),
        (["sweep.slots=1,2"], "are one and the same run"),
        (["logger=csv,wandb"], "a comma sweeps; for all at once: 'logger=[csv,wandb]'"),
    ],
)
def test_what_is_no_comparison_is_refused(planned, line, told):
    with pytest.raises(Refused) as refused:
        planned(*line)
    assert told in str(refused.value)


@pytest.mark.parametrize("flag", [[], pytest.param(["-m"], marks=pytest.mark.rare)])
def test_the_page_says_exploratory_who_is_the_baseline_and_what_a_seed_cannot_tell(attnlab, flag):
    status, out, err = attnlab(*flag, "heads=two,one", "optim.lr=0.2")
    assert status == 0, err
    assert "EXPLORATORY: What changes with heads? The baseline is what stands first, two." in out
    assert "\n  one vs two: Δ val/loss = −0.240 nats, no interval\n" in out
    [page] = attnlab.folder.glob("reports/sweep_heads_two_one~*/report.json")
    report = load(page)
    assert report.verdict.headline == "EXPLORATORY"
    assert (report.verdict.exploratory, report.verdict.undeclared) == (True, True)
    assert report.experiment.margin is None
    assert report.declared is None
    assert "one seed, so no difference has an interval" in report.verdict.departures[1]
    assert "nothing was declared before the runs" in (page.parent / "report.html").read_text()
    assert not (attnlab.folder / "runs" / "declarations.jsonl").exists()
    assert len(list(page.parent.parent.iterdir())) == 2  # the index beside it
