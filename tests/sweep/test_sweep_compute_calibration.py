"""Compute calibration: the toy's baseline at 2 and at 6 steps instead of 3, trained before all else."""

import math

import pytest

from attnlab.errors import InvalidConfig
from attnlab.report.schema import load_report
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult
from attnlab.sweep import reporting
from attnlab.sweep.plan.compute_calibration.compute_calibration import (
    CalibrationRuns,
    compute_slope,
    describe_calibration,
)
from attnlab.sweep.status import interim_status
from attnlab.sweep.status.margin_seeds import describe_margin_seeds

CALIBRATION = "compute_calibration={seeds:[200,201,202]}"
TRAINING_MARGIN = "margin={training:5%}"
CLAIM = "{says:s,arm:four,is:below,threshold:%s}"


def make_result(run, loss, **changes):
    result = RunResult(id=run.id, status="done", seed=run.seed, config={}, metrics={"val/loss": loss})
    return result.model_copy(update=changes)


def make_calibration_results(plan, *slopes):
    """Make results of the calibration runs, with one slope in nats per doubling for each seed."""
    doublings = math.log2(6 / 2)
    return {
        run.id: make_result(run, 2.0 + run.seed + (slope * doublings if "half" in run.arm else 0.0))
        for run, slope in zip(
            plan.compute_calibration.runs, [slope for slope in slopes for _ in range(2)], strict=True
        )
    }


def test_plan_adds_baseline_at_half_and_twice_steps(plan_toy):
    [plan] = plan_toy("+experiment=heads", CALIBRATION)
    steps_by_run = {
        (run.arm, run.seed): run.config["trainer"]["max_steps"] for run in plan.compute_calibration.runs
    }
    assert steps_by_run == {
        (f"two {label} training", seed): steps
        for label, steps in (("half", 2), ("twice", 6))  # half of 3, rounded up
        for seed in (200, 201, 202)
    }
    [uncalibrated] = plan_toy("+experiment=heads")
    assert [run.id for run in plan.runs] == [run.id for run in uncalibrated.runs]
    assert plan.all_runs == [*plan.compute_calibration.runs, *plan.runs]
    first = plan.compute_calibration.runs[0].config
    assert {key for key in first if first[key] != plan.runs[0].config[key]} == {"id", "seed", "trainer"}


def test_calibration_waits_for_baseline_learning_rate(plan_toy):
    tune = "+tune={lr:[0.1,0.2,0.4],seeds:[7,8,9],extend:0}"
    [plan] = plan_toy("+experiment=heads", CALIBRATION, tune)
    results = {}
    while any(run.id not in results for run in plan.tuning_runs):
        assert plan.ready_calibration_runs == []
        results |= {
            run.id: make_result(run, abs(run.config["optim"]["lr"] - 0.2)) for run in plan.tuning_runs
        }
        [plan] = plan_toy("+experiment=heads", CALIBRATION, tune, lookup=results.get)
    assert len(plan.ready_calibration_runs) == 6
    assert {run.config["optim"]["lr"] for run in plan.ready_calibration_runs} == {0.2}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TRAINING_MARGIN], "has no compute calibration to convert it to nats: add compute_calibration"),
        ([f"claims=[{CLAIM % '{training:2%}'}]"], "uses 2% of training compute, but has no"),
        (["compute_calibration={seeds:[200]}"], "two or more different seeds"),
        (["compute_calibration={seeds:[200,200]}"], "two or more different seeds"),
        (["compute_calibration={seeds:[200,1]}"], "shares seed 1 with the comparison"),
        (["compute_calibration={seeds:[200,7]}", "+tune={lr:[0.2,0.4],seeds:[7,8,9]}"], "seed 7 with tune"),
        (["compute_calibration={steps:[200]}"], "compute_calibration.seeds"),
        ([CALIBRATION, "metric=parameters"], "unit: none; lower is better"),
        ([CALIBRATION, "direction=higher"], "higher is better), so a difference cannot be"),
        ([CALIBRATION, "+measurement={_target_: toy_variant}"], "two only measures and does not train"),
        ([CALIBRATION, "parent=0123456789abcdef"], "continues from another run"),
        ([CALIBRATION, "trainer.max_steps=1"], "trainer.max_steps=1 has no half"),
        ([CALIBRATION, "margin={training:0%}"], "above 0% and below 100%, as in 5%"),
        ([CALIBRATION, "margin={training:-0.05}"], "above 0% and below 100%"),
        ([CALIBRATION, "margin={training:100%}"], "above 0% and below 100%"),
        ([CALIBRATION, "margin={training:5}"], "above 0% and below 100%"),
        ([CALIBRATION, "margin={training:much}"], "heads: margin.training: must be a proportion"),
        ([CALIBRATION, "margin={training:5%,most:1}"], "margin.most"),
        ([CALIBRATION, "margin={training:5%,at_most:0}"], "margin.at_most"),
        ([CALIBRATION, f"claims=[{CLAIM % 'much'}]"], "threshold: "),
        (["claims=[{says:s,arm:four,is:within,threshold:-margin}]"], "bound must not be negative"),
        (["margin=0", "claims=[{says:s,arm:four,is:within,threshold:margin}]"], "no effect can satisfy"),
        (["claims=[{says:s,arm:four,is:below,threshold:margin,compare:ratio}]"], "a difference in val/loss"),
        (["claims=[{says:s,arm:four,is:below,threshold:margin,metric:parameters}]"], "uses another metric"),
    ],
)  # fmt: skip
def test_invalid_calibration_fails_in_one_line(plan_toy, arguments, message):
    with pytest.raises(InvalidConfig) as error:
        plan_toy("+experiment=heads", *arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spelling", ["5%", "5 %", "0.05", "'5 %'"])
def test_training_proportion_spellings_are_equal(plan_toy, spelling):
    [plan] = plan_toy("+experiment=heads", CALIBRATION, f"margin={{training:{spelling}}}")
    assert plan.experiment.to_dict()["margin"] == {"training": 0.05, "at_most": None}
    assert str(plan.experiment.margin) == "5 % of training"


def test_slope_in_nats_per_doubling_converts_margins(plan_toy):
    claims = ",".join(CLAIM % amount for amount in ("margin", "-margin", "{training:20%}", "0.5"))
    margin = "margin={training:5%,at_most:0.03}"
    [plan] = plan_toy("+experiment=heads", CALIBRATION, margin, f"claims=[{claims}]")
    results = make_calibration_results(plan, 0.24, 0.25, 0.26)
    slope = compute_slope(plan.compute_calibration, results.get)
    assert slope == pytest.approx(0.25)
    summary = plan.compute_calibration.summarize(results.get)
    assert summary.reason is None
    assert summary.slope.low < 0.25 < summary.slope.high
    thresholds = [claim.threshold for claim in plan.experiment.claims]
    assert [plan.experiment.amount_to_nats(amount, slope) for amount in thresholds] == [
        0.0185,
        -0.0185,
        0.0805,
        0.5,
    ]
    assert plan.experiment.amount_to_nats(plan.experiment.margin, 0.9) == 0.03, "at most"
    lines = describe_calibration(plan.experiment, plan.compute_calibration, results.get)
    assert lines[1:] == [
        "5% of training compute, at most 0.03 nats: 0.0185 nats",
        "20% of training compute: 0.0805 nats",
    ]


@pytest.mark.parametrize(
    ("slopes", "n_lost", "reason"),
    [
        ((0.24, 0.25, 0.26), 1, "2 of 3 pairs of calibration runs are finished"),
        ((0.9, -0.5, 0.1), 0, "an interval with 0: add seeds to compute_calibration"),
        ((-0.24, -0.25, -0.26), 0, "an interval with 0"),
        ((0.25, 0.25, 0.25), 0, "there is no interval"),
    ],
)
def test_comparison_waits_without_usable_slope(plan_toy, tmp_path, capsys, slopes, n_lost, reason):
    [plan] = plan_toy("+experiment=heads", CALIBRATION, TRAINING_MARGIN)
    for number, result in enumerate(make_calibration_results(plan, *slopes).values()):
        run = plan.compute_calibration.runs[number]
        run_directories.write_run_config(tmp_path, run)
        failure = (
            {"status": "crashed", "metrics": {}, "failure": {"message": "lost"}} if number < n_lost else {}
        )
        run_directories.write_run_result(
            tmp_path / run.id, RunResult.model_validate(result.model_dump(by_alias=True) | failure)
        )
    assert reason in interim_status.explain_unknown_margin(plan, tmp_path)
    assert interim_status.find_required_runs(plan, tmp_path) == []
    reporting.print_compute_calibration([plan], tmp_path)
    assert (
        "the comparison starts once it is known, because it requires 5% of training compute"
        in capsys.readouterr().out
    )

    [plan] = plan_toy("+experiment=heads", CALIBRATION)  # a margin in nats needs no calibration
    assert interim_status.explain_unknown_margin(plan, tmp_path) is None
    assert interim_status.find_required_runs(plan, tmp_path) == plan.runs


def test_margin_seeds_need_calibration(plan_toy):
    [plan] = plan_toy("+experiment=heads", CALIBRATION, TRAINING_MARGIN)
    assert describe_margin_seeds(plan, {}) == [
        "5% of training compute: not yet known in nats, so the required number of seeds is unknown"
    ]
    [line] = describe_margin_seeds(plan, make_calibration_results(plan, 0.24, 0.25, 0.26))[1:]
    assert line.startswith("four - two: 0 finished pairs")


def test_calibration_runs_are_referenced_by_plan(plan_toy):
    [plan] = plan_toy("+experiment=heads", CALIBRATION)
    assert isinstance(plan.compute_calibration, CalibrationRuns)
    assert {run.id for run in plan.compute_calibration.runs} <= set(
        reporting._build_reference(plan, reporting.Path("r"), []).runs
    )


@pytest.mark.rare
def test_training_margin_is_preregistered_before_comparison(attnlab):
    claims = f"claims=[{CLAIM % 'margin'}]"
    status, out, err = attnlab("+experiment=heads", CALIBRATION, TRAINING_MARGIN, claims)
    assert status == 0, err
    seeds = [int(seed) for _, seed, *_ in attnlab.load_attempts()]
    assert seeds[:6] == sorted(seeds[:6], key=lambda seed: seed >= 200, reverse=True)
    assert set(seeds[:6]) == {200, 201, 202}
    assert "0/12 runs (compute calibration)" in out
    [folder] = (attnlab.folder / "reports").glob("heads~*")
    report = load_report(folder / "report.json")
    margin = report.experiment.margin
    assert report.preregistration.content.nats == {"5 % of training": margin}
    assert f"5% of training compute: {margin:g} nats" in out
    assert f", margin +{margin:g} (5% of training compute): " in out
    repeated = attnlab("+experiment=heads", CALIBRATION, TRAINING_MARGIN, claims)
    assert repeated[0] == 0
    assert len(attnlab.load_attempts()) == 6 + 6
