"""What looks take: the average where arms do not differ, under what was assumed, and the most."""

import pytest

from attnlab.store.declarations import Experiment
from attnlab.store.schema import Estimate, Metric, RunRecord, RunSpec, Use
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status import costs
from attnlab.sweep.status.forecast import Forecast
from attnlab.sweep.status.states import State

LOOKS, ARMS = [4, 8, 12, 16], ("base", "a", "b")
SMALL = {"says": "small", "arm": "a", "is": "below", "threshold": 0.033}
ABOVE = {"says": "above", "arm": "b", "is": "above", "threshold": 0.0}
SHARE = {"says": "share", "arm": "a", "metric": "accuracy", "is": "above", "threshold": -0.1}
BYTES = {"says": "bytes", "arm": "b", "metric": "tokens", "compare": "ratio", "is": "below", "threshold": 0.5}


@pytest.fixture
def told(tmp_path, monkeypatch):
    """`told(*claims, done, stands)`: the line of a plan of which the first seeds are done."""
    monkeypatch.chdir(tmp_path)  # where its cache is

    def call(*claims, done=0, stands=(), noise=0.02):
        declared = {"accuracy": Metric("accuracy", kind="share")}
        runs = [
            RunSpec(id=f"{arm}{seed}", config={"seed": seed}, use=Use(arm=arm),
                    estimate=Estimate(tokens=30, declared=declared))
            for seed in range(16) for arm in ARMS
        ]  # fmt: skip
        experiment = Experiment.model_validate(
            {"name": "it", "arms": [*ARMS], "baseline": "base", "metric": "val/loss", "margin": 0.033,
             "margin_reason": "none", "seeds": list(range(16)), "looks": LOOKS, "claims": list(claims)}
        )  # fmt: skip
        records = {
            run.id: RunRecord(id=run.id, status="done", seed=run.seed, config=run.config,
                              metrics={"val/loss": 1 + noise * (run.arm != "base") * (-1) ** run.seed})
            for run in runs if run.seed < done
        }  # fmt: skip
        open_ = [run for run in runs if run.seed >= done]
        forecasts = {run.id: Forecast(seconds=60.0) for run in runs}
        return costs.line(Plan(experiment, runs), LOOKS, stands, records, open_, forecasts, slots=2)

    return call


def test_where_nothing_is_known_the_margin_says_how_far_differences_spread(told):
    line = told(SMALL)
    assert line.startswith("looks at 4, 8, 12, 16 seeds: if arms do not differ, about 4 to 6.")
    assert "at most 48 more runs, 24 min on 2 slots" in line
    assert "sd of a difference taken as margin / 1.65 = 0.02" in line
    assert line == told(SMALL), "what is kept says the same"


def test_a_claim_that_asserts_a_difference_goes_on_to_the_last_look(told):
    assert "about 4 to 15.7 of 16 seeds per arm" in told(ABOVE)


def test_what_is_counted_needs_no_more_and_what_t_does_not_decide_is_counted_to_the_last_look(told):
    assert "about 4 of 16 seeds per arm, 12 more runs, 6 min on 2 slots;" in told(BYTES)
    assert "about 4 to 16 of 16 seeds per arm" in told(SHARE)
    assert "claim 1 counted to the last look" in told(SHARE)


def test_runs_that_exist_are_done_and_their_pairs_say_how_far_differences_spread(told):
    stand = {"arm": "a", "against": "base", "kind": "seeds", "verdict": "INCONCLUSIVE", "made": 1, "seeds": 8,
             "open": True}  # fmt: skip
    line = told(SMALL, done=4, stands=[stand], noise=0.02)
    assert "at most 36 more runs" in line
    assert "sd of the differences as in the finished pairs" in line
    assert "about 4 to 8." in line, "it is open after its first look, so it takes the second at least"
    wild = told(SMALL, done=4, stands=[stand], noise=0.2)
    assert "about 4 to 15." in wild
    over = told(SMALL, done=4, stands=[{**stand, "verdict": "SUPPORTED", "seeds": 4, "open": False}])
    assert "about 4 of 16 seeds per arm, 0 more runs;" in over


def test_several_comparisons_are_told_together_by_now_and_at_most():
    def one(word, seconds):
        return State(word, "", 0.0), Forecast(seconds)

    runs = [one("to train", 100.0), one("running", 300.0), one("later", 500.0), one("done", 9.0)]
    [line] = costs.together([*runs, one("to train", None)], 2)
    assert (
        line == "together: 3 to train by now, about 3 min on 2 slots, and with every later look 7 min at most"
    )
    assert costs.together(runs[:2], 4) == ["together: 2 to train by now, about 3 min on 4 slots"]
    assert costs.together(runs[3:], 2) == []
