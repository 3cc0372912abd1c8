"""Sweeps without an experiment: combinations are the arms of one exploratory report."""

import pytest

from attnlab.errors import InvalidConfig
from attnlab.report.schema import load_report


def test_combinations_are_arms_and_first_is_baseline(plan_toy):
    [plan] = plan_toy("heads=four,one", "model.width=8,9", "optim.lr=0.2")
    assert plan.experiment.arms == ["four width=8", "four width=9", "one width=8", "one width=9"]
    assert plan.experiment.baseline == "four width=8"
    assert plan.experiment.seeds == [0]
    assert plan.declared is None
    assert [(run.config["model"]["width"], run.config["optim"]["lr"]) for run in plan.runs] == [
        (8, 0.2), (9, 0.2), (8, 0.2), (9, 0.2),
    ]  # fmt: skip
    assert plan.runs[1].use.overrides == ("optim.lr=0.2", "heads=four", "model.width=9", "seed=0")
    assert plan.title.startswith("heads_x_width~")


def test_runs_equal_those_of_single_commands(plan_toy):
    [plan] = plan_toy("heads=four,one", "seed=3,4")
    for run in plan.runs:
        [alone] = plan_toy(f"heads={run.arm}", f"seed={run.seed}")
        assert alone.runs[0].id == run.id
    assert [(run.arm, run.seed) for run in plan.runs] == [(arm, n) for n in (3, 4) for arm in ("four", "one")]


def test_name_lists_swept_keys_and_settings_change_title(plan_toy):
    lines = ([], ["optim.lr=0.2"], ["seed=0,1"], ["seed=1,2"])
    titles = [plan_toy("heads=four,one", *line)[0].title for line in lines]
    assert all(title.startswith("sweep_heads~") for title in titles)
    assert len(set(titles)) == 4
    assert plan_toy("heads=four,one", "sweep.slots=1")[0].title == titles[0]
    [special] = plan_toy("model.act='tr ain',other")
    assert special.experiment.name == "sweep_act"


def test_swept_key_may_lie_in_selected_option(plan_toy):
    [plan] = plan_toy("data=other", "data.batch_size=4,6")
    assert [run.config["data"] for run in plan.runs] == [{"batch_size": n, "name": "other"} for n in (4, 6)]
    [plan] = plan_toy("data=other,plain", "data.batch_size=4")
    assert [run.config["data"]["batch_size"] for run in plan.runs] == [4, 4]
    with pytest.raises(InvalidConfig, match=r"model\.width is set twice"):
        plan_toy("model={width: 7}", "model.width=8,9")


def test_ambiguous_option_is_named_with_its_group(plan_toy):
    [plan] = plan_toy("heads=one,two", "+tail=two,three")
    assert plan.experiment.arms[:2] == ["heads=one tail=two", "heads=one tail=three"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["heads=one,one"], "two values of a swept key are the same"),
        (["heads=one,two", "seeds=[0,1]"], "only an experiment can set this key"),
        (["heads=one", "+overrides=['heads=two']"], "only an experiment can set this key"),
        (["sweep.slots=1,2"], "are the same run"),
        (
            ["logger=csv,wandb"],
            "a comma sweeps the options; to use them together, write 'logger=[csv,wandb]'",
        ),
    ],
)
def test_invalid_sweep_fails(plan_toy, line, message):
    with pytest.raises(InvalidConfig) as error:
        plan_toy(*line)
    assert message in str(error.value)


@pytest.mark.parametrize("flag", [[], pytest.param(["-m"], marks=pytest.mark.rare)])
def test_report_is_exploratory_with_baseline_and_one_seed_warning(attnlab, flag):
    status, out, err = attnlab(*flag, "heads=two,one", "optim.lr=0.2")
    assert status == 0, err
    assert "EXPLORATORY: What is the effect of heads? The baseline is the first arm, two." in out
    assert "−0.240 nats, no interval" in " ".join(out.split())
    [page] = attnlab.folder.glob("reports/sweep_heads~*/report.json")
    report = load_report(page)
    assert report.verdict.headline == "EXPLORATORY"
    assert (report.verdict.exploratory, report.verdict.not_preregistered) == (True, True)
    assert report.experiment.margin is None
    assert report.preregistration is None
    assert "one seed, so no difference has an interval" in report.verdict.deviations[1]
    assert "so nothing is preregistered" in (page.parent / "report.html").read_text()
    assert not (attnlab.folder / "runs" / "declarations.jsonl").exists()
    assert len(list(page.parent.parent.iterdir())) == 2  # the report and the index
