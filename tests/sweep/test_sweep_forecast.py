import json

import pytest

from attnlab.store.declarations import Experiment
from attnlab.store.schema import Estimate, RunRecord, RunSpec, Use
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast, forecast_runs
from attnlab.sweep.status.margin_seeds import describe_margin_seeds
from attnlab.sweep.status.states import State

FIGURES = {"device_kind": "cpu", "flops_per_token": 100, "tokens": 30, "memory_bytes": 77}
LEFT = State("to train", "", 0.0)


def run(arm="a", seed=0, **figures):
    estimate = Estimate.model_validate(FIGURES | figures)
    return RunSpec(id=f"{arm}{seed}", config={"seed": seed}, estimate=estimate, use=Use(arm=arm))


def record(run, seconds=4.0, peak=100, loss=1.0):
    return RunRecord(
        id=run.id, status="done", seed=run.seed, config=run.config, seconds=seconds,
        metrics={"val/loss": loss}, memory={"peak_cuda_bytes": None, "peak_rss_bytes": peak},
        estimate=run.estimate,
    )  # fmt: skip


def forecast(runs, finished=(), root=None, **states):
    return forecast_runs(Plan(None, runs), {one.id: states.get(one.id, LEFT) for one in runs}, finished, root)


def test_a_run_takes_the_time_and_the_most_memory_of_its_arms_finished_runs():
    runs = [run(seed=seed) for seed in range(3)]
    finished = [record(runs[0], 3.0, 10), record(runs[1], 5.0, 30), record(run("other"), 40.0, 50)]
    assert forecast(runs, finished)["a2"] == Forecast(4.0, 30)


def test_other_runs_of_the_store_give_a_guess_of_the_time_and_none_of_the_memory():
    told = forecast([run("bigger", flops_per_token=300)], [record(run("of another experiment"))])
    assert told["bigger0"] == Forecast(12.0, 77, guess=True)


def test_without_finished_runs_on_such_a_device_the_time_is_unknown():
    assert forecast([run()])["a0"].seconds is None
    assert forecast([run(device_kind="H200")], [record(run("b"))])["a0"].seconds is None


def test_the_first_steps_of_a_running_run_tell_the_time_of_all(tmp_path):
    (tmp_path / "a0").mkdir()
    steps = {"step": 3, "max_steps": 10, "timed_steps": 2, "timed_seconds": 8.0}
    (tmp_path / "a0" / "progress.json").write_text(json.dumps(steps))
    runs = [run(), run("b", flops_per_token=200)]
    told = forecast(runs, root=tmp_path, a0=State("running", "", 0.3))
    assert (told["a0"].seconds, told["b0"].seconds) == (pytest.approx(40.0), pytest.approx(80.0))


@pytest.mark.parametrize(
    ("pairs", "told"), [(1, "spread is not known"), (4, "sd 0.0816; margin 0.1 asks for")]
)
def test_the_seeds_that_a_margin_asks_for_come_from_finished_pairs(pairs, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where its cache is
    runs = [run(arm, seed) for seed in range(6) for arm in ("base", "a")]
    experiment = Experiment(
        name="it", arms=["base", "a"], baseline="base", metric="val/loss", margin=0.1, margin_reason="none",
        seeds=list(range(6)),
    )  # fmt: skip
    offsets = (0.1, 0.2, 0.3, 0.2)
    done = {one.id: record(one, loss=1 + (offsets[one.seed] if one.arm == "a" else 0))
            for one in runs if one.seed < pairs}  # fmt: skip
    [line] = describe_margin_seeds(Plan(experiment, runs), done)
    assert [line] == describe_margin_seeds(Plan(experiment, runs), done), "what is kept says the same"
    assert told in line
    assert f"{pairs} finished pairs" in line
