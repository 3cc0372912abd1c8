"""Validation of claims against run estimates: a claim that no run could answer fails, with its key path."""

import sys

import pytest

from attnlab import stats
from attnlab.errors import InvalidConfig
from attnlab.store.experiment_schema import RELATIONS, Experiment
from attnlab.store.run_schema import Metric, RunEstimate, index_by_name
from attnlab.sweep.plan.validate_claims import validate_against_estimates

METRICS = index_by_name(
    Metric("val/loss", unit="nats"), Metric("val/accuracy", kind="share"),
    Metric("time", kind="time"), Metric("steps_to_90", kind="censored"), Metric("peak", unit="B"),
)  # fmt: skip


def find_claim_error(*claims, seeds=6, looks=None, baseline_kv_bytes=8):
    """Return message and key path of the validation error, or None.

    Each claim is about arm b against arm a, on val/accuracy; arm a has `baseline_kv_bytes` bytes per token.
    """
    raw_claims = [
        {"says": f"claim {i}", "arm": "b", "metric": "val/accuracy", **claim}
        for i, claim in enumerate(claims)
    ]
    experiment = Experiment.model_validate({
        "name": "mine", "arms": ["a", "b"], "arm_overrides": {"a": [], "b": []}, "baseline": "a",
        "seeds": list(range(seeds)), "looks": looks, "metric": "val/loss", "margin": 0.1,
        "margin_reason": "r", "claims": raw_claims,
    })  # fmt: skip
    names = tuple(METRICS)
    estimate = RunEstimate(metric_definitions=METRICS, metric_names=names, kv_bytes_per_token=8)
    baseline_estimate = RunEstimate(
        metric_definitions=METRICS, metric_names=names, kv_bytes_per_token=baseline_kv_bytes
    )
    try:
        validate_against_estimates(experiment, raw_claims, {"a": baseline_estimate, "b": estimate})
    except InvalidConfig as error:
        return str(error), error.key_path
    return None


HIGHER = {"is": "above", "threshold": 0.0}
NON_INFERIOR = {"is": "above", "threshold": -0.1}


def test_proportion_claim_needs_enough_seeds_for_perfect_outcomes():
    assert find_claim_error(HIGHER, seeds=6) is None
    line, at = find_claim_error(HIGHER, seeds=5)
    assert "claim 1 of mine is about a proportion, and 5 seeds cannot decide it" in line
    assert "it needs 6. Use a loss" in line
    assert at == ("claims", 0, "threshold")
    assert find_claim_error(NON_INFERIOR, seeds=31) is None
    assert "it needs 31." in find_claim_error(NON_INFERIOR, seeds=30)[0]
    assert "it needs 31." in find_claim_error({"is": "below", "threshold": 0.1}, seeds=30)[0], "of failures"
    assert "it needs 63." in find_claim_error({"is": "within", "threshold": 0.05}, seeds=62)[0]
    assert "no number of seeds suffices" in find_claim_error({"is": "above", "threshold": 1.0}, seeds=30)[0]


@pytest.mark.parametrize("seeds", [6, 7, 8, 9])
def test_validation_agrees_with_decision_on_perfect_seeds(seeds):
    """Compare the validation with the decision of the whole family on seeds that are all perfect."""
    claims = [HIGHER, HIGHER, {"is": "below", "threshold": 0.0}]
    perfect = [
        stats.ProportionDifferences([1.0] * seeds),
        stats.ProportionDifferences([1.0] * seeds),
        stats.ProportionDifferences([-1.0] * seeds),
    ]
    regions = [RELATIONS[claim["is"]].compute_region(claim["threshold"]) for claim in claims]
    tests = [stats.ClaimTest(*each) for each in zip(perfect, regions, strict=True)]
    is_decidable = all(decision.holds for decision in stats.decide_claims(tests))
    assert (find_claim_error(*claims, seeds=seeds) is None) == is_decidable


def test_one_sided_identity_claim_of_trained_arm_fails(monkeypatch):
    estimate = RunEstimate(metric_definitions=METRICS, metric_names=tuple(METRICS), steps=400)
    monkeypatch.setattr(sys.modules[__name__], "RunEstimate", lambda **_: estimate)
    line, at = find_claim_error({**HIGHER, "identity": True})
    assert "only an equality of trained arms holds by construction" in line
    assert at == ("claims", 0, "identity")
    assert find_claim_error({"is": "within", "threshold": 0.1, "identity": True}) is None


def test_extensible_seeds_and_identities_need_no_minimum():
    assert find_claim_error(HIGHER, seeds=2, looks="anytime") is None
    assert find_claim_error({**HIGHER, "identity": True}, seeds=1) is None
    assert find_claim_error({**HIGHER, "metric": "val/loss"}, seeds=2) is None
    assert find_claim_error(HIGHER, seeds=16, looks=[4, 16]) is None


RATIO = {"compare": "ratio", "is": "below", "threshold": 0.5}


@pytest.mark.parametrize("metric", ["val/loss", "val/accuracy"])
def test_ratio_of_possibly_zero_metric_fails(metric):
    line, at = find_claim_error({**RATIO, "metric": metric})
    assert line == f"claim 1 of mine: a ratio of {metric}, which may be 0: use compare: difference"
    assert at == ("claims", 0, "compare")


@pytest.mark.parametrize("metric", ["time", "steps_to_90", "kv_bytes", "kv_bytes_per_token", "peak"])
def test_ratio_of_positive_metric_passes(metric):
    assert find_claim_error({**RATIO, "metric": metric}) is None


def test_ratio_to_zero_count_fails():
    line, at = find_claim_error({**RATIO, "metric": "kv_bytes"}, baseline_kv_bytes=0)
    assert "kv_bytes_per_token, which is 0 in arm a" in line
    assert at == ("claims", 0, "metric")
