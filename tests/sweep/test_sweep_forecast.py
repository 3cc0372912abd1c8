import pytest

from attnlab.store.declarations import Experiment
from attnlab.store.schema import Estimate, RunRecord, RunSpec, Use
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast, Forecaster, seeds_asked
from attnlab.sweep.status.trials import like

FIGURES = {"device_kind": "cpu", "flops_per_token": 100, "tokens": 30}


def run(arm="a", seed=0, dim=7, figures=FIGURES):
    config = {
        "seed": seed,
        "model": {"dim": dim},
        "optim": {"seed": seed},
        "data": {"seed": seed},
        "margin": 1,
    }
    estimate = Estimate.model_validate(figures)
    return RunSpec(id=f"{arm}{seed}", config=config, estimate=estimate, use=Use(arm=arm))


def record(run, seconds=4.0, peak=100, loss=1.0):
    return RunRecord(
        id=run.id, status="done", seed=run.seed, config={**run.config, "margin": 2}, seconds=seconds,
        metrics={"val/loss": loss}, memory={"peak_cuda_bytes": None, "peak_rss_bytes": peak},
        estimate=Estimate.model_validate(FIGURES),
    )  # fmt: skip


def test_a_run_takes_what_its_twins_with_other_seeds_took():
    told = Forecaster([record(run(seed=s), seconds, peak) for s, seconds, peak in
                       ((1, 3.0, 10), (2, 5.0, 30), (3, 40.0, 20))]).of(run(seed=9))  # fmt: skip
    assert (told.seconds, told.bytes, told.guess) == (5.0, 30, False)


def test_without_twins_the_nearest_run_is_scaled_by_its_flops_and_marked():
    bigger = run(dim=9, figures={**FIGURES, "flops_per_token": 300})
    told = Forecaster([record(run(), seconds=4.0)]).of(bigger)
    assert (told.seconds, told.bytes, told.guess) == (12.0, None, True)


def test_nothing_is_predicted_from_nothing_or_from_another_device():
    assert Forecaster([]).of(run()).seconds is None
    card = run(dim=9, figures={**FIGURES, "device_kind": "H200"})
    assert Forecaster([record(run())]).of(card).seconds is None


TIMED = {**FIGURES, "steps": 10, "tokens": 1000}


def timed(dim=7, seconds=6.0):
    """A finished run of 10 steps, which took 4 of its seconds."""
    done = record(asked(dim, steps=10), seconds=seconds)
    speed = {"train_tokens_per_s": 1000 / 4.0}
    return done.model_copy(update={"estimate": Estimate.model_validate(TIMED), "speed": speed})


def asked(dim=7, steps=40, **changes):
    spec = run(dim=dim, figures={**TIMED, "steps": steps, "tokens": 100 * steps, **changes})
    return spec.but(config={**spec.config, "trainer": {"max_steps": steps}, "measure": {"every": 20}})


def test_other_steps_go_at_the_same_pace_after_the_same_start():
    """Its 6 seconds: 4 of steps, and of the others 1 as another run has it, which leaves 1 for 44 rows."""
    quick, like_it = timed(dim=8, seconds=5.0), timed()
    told = Forecaster([quick, like_it])
    assert told.of(asked(steps=40)).seconds == pytest.approx(1.0 + 40 * 0.4 + 1.0)
    assert told.of(asked(steps=40)).bytes == 100
    assert told.knows(asked(steps=100))
    assert not told.knows(asked(steps=101)), "a few steps tell nothing of many"


def test_what_another_device_took_tells_nothing():
    there = timed().model_copy(update={"estimate": Estimate.model_validate({**TIMED, "device_kind": "H200"})})
    assert Forecaster([there]).of(asked(steps=10)).seconds is None
    assert not Forecaster([there]).knows(asked(steps=40))


def test_a_trial_tells_the_pace_and_the_quickest_finished_run_the_start():
    """Whatever the quickest one trained; the steps of the others do not matter."""
    wanted = asked(dim=9, data={"val_windows": 30})
    wanted.config["data"]["batch_size"] = 4
    tried = {like(wanted.config): {"start": 5.0, "step": 0.5, "row": 0.01}}
    rows = 2 * 30 + 500 + 4  # of two validations, of what is measured at the end, and a batch
    told, alone = Forecaster([timed(), timed(dim=8, seconds=60.0)], tried), Forecaster([], tried)
    assert told.of(wanted).seconds == pytest.approx(2.0 + 40 * 0.5 + rows * 0.01)
    assert alone.of(wanted).seconds == pytest.approx(5.0 + 40 * 0.5 + rows * 0.01)
    assert (told.of(wanted).guess, told.knows(wanted)) == (False, False)


def test_without_a_trial_steps_are_scaled_and_start_up_is_not():
    told = Forecaster([timed()]).of(asked(dim=9, flops_per_token=300))
    assert told == Forecast(2.0 + 4.0 * 4 * 3, None, guess=True)


def test_memory_is_that_of_the_like_else_what_the_shapes_say():
    wanted = run(seed=9, dim=8, figures={**FIGURES, "memory_bytes": 77})
    assert Forecaster([]).of(wanted).bytes == 77
    assert Forecaster([record(run(dim=8), peak=60)]).of(wanted).bytes == 60


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
    [line] = seeds_asked(Plan(experiment, runs), done)
    assert [line] == seeds_asked(Plan(experiment, runs), done), "what is kept says the same"
    assert told in line
    assert f"{pairs} finished pairs" in line
