"""Forecasts of training time, peak memory and required seeds from finished runs."""

import json

import pytest

from attnlab.measure.resources import THROUGHPUT
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import RunConfig, RunEstimate, RunResult, Use
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast, forecast_runs
from attnlab.sweep.status.margin_seeds import describe_margin_seeds
from attnlab.sweep.status.states import RunState

FIGURES = {"device_kind": "cpu", "flops_per_token": 100, "tokens": 30, "memory_bytes": 77}
UNTRAINED = RunState("to train", "", 0.0)


def make_run(arm="a", seed=0, **figures):
    estimate = RunEstimate.model_validate(FIGURES | figures)
    return RunConfig(id=f"{arm}{seed}", config={"seed": seed}, estimate=estimate, use=Use(arm=arm))


def make_result(run, seconds=4.0, peak=100, loss=1.0):
    return RunResult(
        id=run.id, status="done", seed=run.seed, config=run.config, seconds=seconds,
        metrics={"val/loss": loss}, memory={"peak_cuda_bytes": None, "peak_rss_bytes": peak},
        estimate=run.estimate,
    )  # fmt: skip


def forecast_states(runs, finished=(), root=None, **states):
    return forecast_runs(
        Plan(None, runs), {run.id: states.get(run.id, UNTRAINED) for run in runs}, finished, root
    )


def test_forecast_is_the_median_time_and_peak_memory_of_the_arms_finished_runs():
    runs = [make_run(seed=seed) for seed in range(4)]
    finished = [
        make_result(runs[0], 3.0, 10),
        make_result(runs[1], 4.0, 30),
        make_result(runs[2], 900.0, 20),  # the machine was suspended
        make_result(make_run("other"), 40.0, 50),
    ]
    assert forecast_states(runs, finished)["a3"] == Forecast(4.0, 30)


def test_tuning_runs_give_the_time_of_their_arm():
    tuned = make_run("a lr=0.1").with_provenance(base_arm="a")
    finished = [make_result(tuned, 4.0, 10), make_result(make_run("other"), 40.0, 50)]
    assert forecast_states([tuned, make_run(seed=7)], finished)["a7"] == Forecast(4.0, 10)


def test_runs_of_other_experiments_give_a_guess_of_the_time_only():
    forecasts = forecast_states(
        [make_run("bigger", flops_per_token=400)], [make_result(make_run("of another experiment"))]
    )
    assert forecasts["bigger0"] == Forecast(8.0, 77, is_guess=True), "between 4 and 16 seconds"


def test_the_training_throughput_separates_the_steps_from_the_start_up():
    short, long = make_run(tokens=40, steps=4), make_run("b", tokens=4000, steps=400)
    record = make_result(short, seconds=3.0).model_copy(update={"speed": {THROUGHPUT.name: 80.0}})
    assert forecast_states([long], [record])["b0"].seconds == pytest.approx(2.5 + 400 * 0.125)


def test_time_is_unknown_without_finished_runs_on_the_device_kind():
    assert forecast_states([make_run()])["a0"].seconds is None
    assert forecast_states([make_run(device_kind="H200")], [make_result(make_run("b"))])["a0"].seconds is None


def test_first_steps_of_a_running_run_give_the_time_of_all_runs(tmp_path):
    (tmp_path / "a0").mkdir()
    steps = {"step": 3, "max_steps": 10, "timed_steps": 2, "timed_seconds": 8.0}
    (tmp_path / "a0" / "progress.json").write_text(json.dumps(steps))
    runs = [make_run(steps=10), make_run("b", flops_per_token=200, tokens=30, steps=20)]
    forecasts = forecast_states(runs, root=tmp_path, a0=RunState("running", "", 0.3))
    assert (forecasts["a0"].seconds, forecasts["b0"].seconds) == (pytest.approx(40.0), pytest.approx(80.0))


@pytest.mark.parametrize(
    ("pairs", "baseline_runs", "message"),
    [
        (1, 1, "1 finished pairs, so the standard deviation is not yet known"),
        (4, 4, "4 finished pairs, sd 0.0816; margin 0.1 requires"),
        (1, 3, "1 finished pairs, sd 0.141 expected from 3 runs of base; margin 0.1 requires"),
    ],
)
def test_required_seeds_of_a_margin_follow_from_finished_runs(
    pairs, baseline_runs, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # the cache is relative to it
    runs = [make_run(arm, seed) for seed in range(6) for arm in ("base", "a")]
    experiment = Experiment(
        name="it", arms=["base", "a"], baseline="base", metric="val/loss", margin=0.1, margin_reason="none",
        seeds=list(range(6)),
    )  # fmt: skip
    offsets = (0.1, 0.2, 0.3, 0.2)
    spread = 0.1 if baseline_runs > pairs else 0
    results = {run.id: make_result(run, loss=1 + (offsets[run.seed] if run.arm == "a" else spread * run.seed))
            for run in runs if run.seed < (pairs if run.arm == "a" else baseline_runs)}  # fmt: skip
    [line] = describe_margin_seeds(Plan(experiment, runs), results)
    assert [line] == describe_margin_seeds(Plan(experiment, runs), results), "the cached values are equal"
    assert message in line
