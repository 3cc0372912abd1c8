"""What no run could answer is refused before one is trained, with the claim at fault."""

import sys

import pytest

from attnlab import stats
from attnlab.errors import Refused
from attnlab.store.declarations import RELATIONS, Experiment
from attnlab.store.schema import Estimate, Metric, named
from attnlab.sweep.plan.answerable import refuse_unanswerable

DECLARED = named(
    Metric("val/loss", unit="nats"), Metric("val/accuracy", kind="share"),
    Metric("time", kind="time"), Metric("steps_to_90", kind="censored"),
)  # fmt: skip


def refused(*claims, seeds=6, looks=None, none=8):
    """The line and the key of the refusal, or None; each claim is of arm b against a, on val/accuracy."""
    written = [
        {"says": f"claim {i}", "arm": "b", "metric": "val/accuracy", **claim}
        for i, claim in enumerate(claims)
    ]
    experiment = Experiment.model_validate({
        "name": "mine", "arms": ["a", "b"], "arm_overrides": {"a": [], "b": []}, "baseline": "a",
        "seeds": list(range(seeds)), "looks": looks, "metric": "val/loss", "margin": 0.1,
        "margin_reason": "r", "claims": written,
    })  # fmt: skip
    figures = tuple(DECLARED)
    estimate = Estimate(declared=DECLARED, figures=figures, kv_bytes_per_token=8)
    other = Estimate(declared=DECLARED, figures=figures, kv_bytes_per_token=none)
    try:
        refuse_unanswerable(experiment, written, {"a": other, "b": estimate})
    except Refused as error:
        return str(error), error.at
    return None


MORE = {"is": "above", "threshold": 0.0}
AS_GOOD = {"is": "above", "threshold": -0.1}


def test_a_share_is_claimed_only_where_perfect_seeds_could_decide_it():
    assert refused(MORE, seeds=6) is None
    line, at = refused(MORE, seeds=5)
    assert "claim 1 of mine is about a share, and 5 seeds could not decide it" in line
    assert "it takes 6. Ask for a loss" in line
    assert at == ("claims", 0, "threshold")
    assert refused(AS_GOOD, seeds=31) is None
    assert "it takes 31." in refused(AS_GOOD, seeds=30)[0]
    assert "it takes 31." in refused({"is": "below", "threshold": 0.1}, seeds=30)[0], "of failures"
    assert "it takes 63." in refused({"is": "within", "threshold": 0.05}, seeds=62)[0]
    assert "nor could any number" in refused({"is": "above", "threshold": 1.0}, seeds=30)[0]


@pytest.mark.parametrize("seeds", [6, 7, 8, 9])
def test_what_passes_is_what_perfect_seeds_are_decided_by(seeds):
    """The other way round: the family's own decision, on seeds of which each is perfect."""
    claims = [MORE, MORE, {"is": "below", "threshold": 0.0}]
    perfect = [stats.Shares([1.0] * seeds), stats.Shares([1.0] * seeds), stats.Shares([-1.0] * seeds)]
    regions = [RELATIONS[claim["is"]].region(claim["threshold"]) for claim in claims]
    asked = [stats.Question(*each) for each in zip(perfect, regions, strict=True)]
    could = all(decision.holds for decision in stats.decide(asked))
    assert (refused(*claims, seeds=seeds) is None) == could


def test_that_a_trained_arm_is_better_does_not_hold_by_construction(monkeypatch):
    estimate = Estimate(declared=DECLARED, figures=tuple(DECLARED), steps=400)
    monkeypatch.setattr(sys.modules[__name__], "Estimate", lambda **_: estimate)
    line, at = refused({**MORE, "identity": True})
    assert "only an equality holds by construction" in line
    assert at == ("claims", 0, "identity")
    assert refused({"is": "within", "threshold": 0.1, "identity": True}) is None


def test_seeds_that_may_be_added_and_what_is_no_hypothesis_are_let_pass():
    assert refused(MORE, seeds=2, looks="anytime") is None
    assert refused({**MORE, "identity": True}, seeds=1) is None
    assert refused({**MORE, "metric": "val/loss"}, seeds=2) is None
    assert refused(MORE, seeds=16, looks=[4, 16]) is None


RATIO = {"compare": "ratio", "is": "below", "threshold": 0.5}


@pytest.mark.parametrize("metric", ["val/loss", "val/accuracy"])
def test_a_ratio_of_what_may_be_zero_is_refused(metric):
    line, at = refused({**RATIO, "metric": metric})
    assert line == f"claim 1 of mine: a ratio of {metric}, which may be 0: compare differences"
    assert at == ("claims", 0, "compare")


@pytest.mark.parametrize("metric", ["time", "steps_to_90", "kv_bytes", "kv_bytes_per_token"])
def test_a_ratio_of_what_is_above_zero_is_asked(metric):
    assert refused({**RATIO, "metric": metric}) is None


def test_a_ratio_to_a_count_of_zero_is_refused():
    line, at = refused({**RATIO, "metric": "kv_bytes"}, none=0)
    assert "kv_bytes_per_token, which is 0 in arm a" in line
    assert at == ("claims", 0, "metric")
