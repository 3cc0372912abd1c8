"""What a difference is as training: the toy's baseline at 2 and at 6 steps for its 3, before all else."""

import math

import pytest

from attnlab.errors import Refused
from attnlab.report.schema import load
from attnlab.store import runs
from attnlab.store.schema import RunRecord
from attnlab.sweep import reporting
from attnlab.sweep.plan.exchange.told import Exchange, lines, slope
from attnlab.sweep.status import looks
from attnlab.sweep.status.margin_seeds import describe_margin_seeds

EXCHANGE = "exchange={seeds:[200,201,202]}"
SHARE = "margin={training:5%}"
CLAIM = "{says:s,arm:four,is:below,threshold:%s}"


def record(run, loss, **changes):
    made = RunRecord(id=run.id, status="done", seed=run.seed, config={}, metrics={"val/loss": loss})
    return made.model_copy(update=changes)


def trained(plan, *slopes):
    """Records of the exchange's runs, with so many nats per doubling from seed to seed."""
    doublings = math.log2(6 / 2)
    return {
        run.id: record(run, 2.0 + run.seed + (per * doublings if "half" in run.arm else 0.0))
        for run, per in zip(plan.exchange.runs, [per for per in slopes for _ in range(2)], strict=True)
    }


def test_the_baseline_is_planned_at_half_and_at_twice_its_steps_and_no_arm_is_mixed_with_it(planned):
    [plan] = planned("+experiment=heads", EXCHANGE)
    asked = {(run.arm, run.seed): run.config["trainer"]["max_steps"] for run in plan.exchange.runs}
    assert asked == {
        (f"two {words} training", seed): steps
        for words, steps in (("half", 2), ("twice", 6))  # half of 3, rounded up
        for seed in (200, 201, 202)
    }
    [without] = planned("+experiment=heads")
    assert [run.id for run in plan.runs] == [run.id for run in without.runs]
    assert plan.all_runs == [*plan.exchange.runs, *plan.runs]
    first = plan.exchange.runs[0].config
    assert {key for key in first if first[key] != plan.runs[0].config[key]} == {"id", "seed", "trainer"}


def test_it_waits_for_the_baselines_own_learning_rate(planned):
    tune = "+tune={lr:[0.1,0.2,0.4],seeds:[7,8,9],widen:0}"
    [after] = planned("+experiment=heads", EXCHANGE, tune)
    found = {}
    while any(run.id not in found for run in after.grid):
        assert after.trading == []
        found |= {run.id: record(run, abs(run.config["optim"]["lr"] - 0.2)) for run in after.grid}
        [after] = planned("+experiment=heads", EXCHANGE, tune, lookup=found.get)
    assert len(after.trading) == 6
    assert {run.config["optim"]["lr"] for run in after.trading} == {0.2}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([SHARE], "5 % of training, and trains nothing that tells what that is in nats: declare exchange"),
        ([f"claims=[{CLAIM % '{training:2%}'}]"], "says 2 % of training, and trains nothing"),
        (["exchange={seeds:[200]}"], "two or more different seeds"),
        (["exchange={seeds:[200,200]}"], "two or more different seeds"),
        (["exchange={seeds:[200,1]}"], "has seed 1 of the comparison"),
        (["exchange={seeds:[200,7]}", "+tune={lr:[0.2,0.4],seeds:[7,8,9]}"], "has seed 7 of tune"),
        (["exchange={steps:[200]}"], "exchange.seeds"),
        ([EXCHANGE, "metric=parameters"], "no loss in nats (it is declared without a unit, lower is better)"),
        ([EXCHANGE, "direction=higher"], "higher is better), so a difference is no amount of training"),
        ([EXCHANGE, "+measurement={_target_: toy_variant}"], "two only measures and trains nothing"),
        ([EXCHANGE, "parent=0123456789abcdef"], "goes on from another run"),
        ([EXCHANGE, "trainer.max_steps=1"], "half of trainer.max_steps=1 is no training"),
        ([EXCHANGE, "margin={training:0%}"], "above 0 % and below 100 %, as in 5 %"),
        ([EXCHANGE, "margin={training:-0.05}"], "above 0 % and below 100 %"),
        ([EXCHANGE, "margin={training:100%}"], "above 0 % and below 100 %"),
        ([EXCHANGE, "margin={training:5}"], "above 0 % and below 100 %"),
        ([EXCHANGE, "margin={training:much}"], "heads: margin.training: give a share"),
        ([EXCHANGE, "margin={training:5%,most:1}"], "margin.most"),
        ([EXCHANGE, "margin={training:5%,at_most:0}"], "margin.at_most"),
        ([EXCHANGE, f"claims=[{CLAIM % 'much'}]"], "threshold: "),
        (["claims=[{says:s,arm:four,is:within,threshold:-margin}]"], "how far from no difference"),
        (["margin=0", "claims=[{says:s,arm:four,is:within,threshold:margin}]"], "nothing lies within it"),
        (["claims=[{says:s,arm:four,is:below,threshold:margin,compare:ratio}]"], "a difference in val/loss"),
        (["claims=[{says:s,arm:four,is:below,threshold:margin,metric:parameters}]"], "is not about"),
    ],
)  # fmt: skip
def test_what_cannot_be_exchanged_is_refused_in_one_line(planned, arguments, told):
    with pytest.raises(Refused) as refused:
        planned("+experiment=heads", *arguments)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("written", ["5%", "5 %", "0.05", "'5 %'"])
def test_a_share_is_the_same_however_it_is_written(planned, written):
    [plan] = planned("+experiment=heads", EXCHANGE, f"margin={{training:{written}}}")
    assert plan.experiment.plain()["margin"] == {"training": 0.05, "at_most": None}
    assert str(plan.experiment.margin) == "5 % of training"


def test_the_slope_is_nats_per_doubling_and_a_margin_follows_from_it(planned):
    claims = ",".join(CLAIM % amount for amount in ("margin", "-margin", "{training:20%}", "0.5"))
    margin = "margin={training:5%,at_most:0.03}"
    [plan] = planned("+experiment=heads", EXCHANGE, margin, f"claims=[{claims}]")
    found = trained(plan, 0.24, 0.25, 0.26)
    per = slope(plan.exchange, found.get)
    assert per == pytest.approx(0.25)
    told = plan.exchange.told(found.get)
    assert told.why is None
    assert told.slope.low < 0.25 < told.slope.high
    asked = [claim.threshold for claim in plan.experiment.claims]
    assert [plan.experiment.nats(amount, per) for amount in asked] == [0.0185, -0.0185, 0.0805, 0.5]
    assert plan.experiment.nats(plan.experiment.margin, 0.9) == 0.03, "at most"
    said = lines(plan.experiment, plan.exchange, found.get)
    assert said[1:] == ["5 % of training, at most 0.03 nats: 0.0185 nats", "20 % of training: 0.0805 nats"]


@pytest.mark.parametrize(
    ("slopes", "lost", "why"),
    [
        ((0.24, 0.25, 0.26), 1, "2 of its 3 pairs of runs are finished"),
        ((0.9, -0.5, 0.1), 0, "which may be nothing: give exchange more seeds"),
        ((-0.24, -0.25, -0.26), 0, "which may be nothing"),
        ((0.25, 0.25, 0.25), 0, "no spread"),
    ],
)
def test_without_a_slope_to_go_by_nothing_that_is_declared_in_training_is_compared(
    planned, tmp_path, capsys, slopes, lost, why
):
    [plan] = planned("+experiment=heads", EXCHANGE, SHARE)
    for number, made in enumerate(trained(plan, *slopes).values()):
        run = plan.exchange.runs[number]
        runs.write_spec(tmp_path, run)
        ended = {"status": "crashed", "metrics": {}, "failure": {"message": "lost"}} if number < lost else {}
        runs.write_record(tmp_path / run.id, RunRecord.model_validate(made.model_dump(by_alias=True) | ended))
    assert why in looks.unpriced(plan, tmp_path)
    assert looks.needed(plan, tmp_path) == []
    reporting.tell_exchange([plan], tmp_path)
    assert (
        "nothing is compared before that is known, for the sake of 5 % of training" in capsys.readouterr().out
    )

    [plan] = planned("+experiment=heads", EXCHANGE)  # a margin in nats waits for nothing
    assert looks.unpriced(plan, tmp_path) is None
    assert looks.needed(plan, tmp_path) == plan.runs


def test_the_plan_says_what_is_not_known_yet_and_what_is(planned):
    [plan] = planned("+experiment=heads", EXCHANGE, SHARE)
    assert describe_margin_seeds(plan, {}) == [
        "5 % of training: not known in nats yet, and so not the seeds that it asks for"
    ]
    [line] = describe_margin_seeds(plan, trained(plan, 0.24, 0.25, 0.26))[1:]
    assert line.startswith("four - two: 0 finished pairs")


def test_the_runs_of_the_exchange_are_used_by_the_plan(planned):
    [plan] = planned("+experiment=heads", EXCHANGE)
    assert isinstance(plan.exchange, Exchange)
    assert {run.id for run in plan.exchange.runs} <= set(reporting._user(plan, reporting.Path("r"), []).runs)


@pytest.mark.rare
def test_a_margin_in_training_is_known_and_on_record_before_a_run_is_compared(attnlab):
    claims = f"claims=[{CLAIM % 'margin'}]"
    status, out, err = attnlab("+experiment=heads", EXCHANGE, SHARE, claims)
    assert status == 0, err
    acts = [int(seed) for _, seed, *_ in attnlab.trained()]
    assert acts[:6] == sorted(acts[:6], key=lambda seed: seed >= 200, reverse=True)
    assert set(acts[:6]) == {200, 201, 202}
    assert "what training is worth: 6 runs to train before any is compared" in out
    [folder] = (attnlab.folder / "reports").glob("heads~*")
    report = load(folder / "report.json")
    margin = report.experiment.margin
    assert report.declared.content.nats == {"5 % of training": margin}
    assert f"5 % of training: {margin:g} nats" in out
    assert f", margin +{margin:g} (5 % of training): " in out
    again = attnlab("+experiment=heads", EXCHANGE, SHARE, claims)
    assert again[0] == 0
    assert len(attnlab.trained()) == 6 + 6
