"""False-positive rates: a valid rule keeps its level, an invalid one is detected."""

import math

import numpy as np
import pytest
from false_positives import DECISION_RULES, measure_false_positives


def draw_runs(seed=0, count=16):
    return np.random.default_rng(seed).normal(2.0, 0.02, count)


@pytest.mark.rare
def test_decision_rules_have_nominal_false_positive_rates():
    result = measure_false_positives(draw_runs(), margin=0.03)
    assert set(result) == set(DECISION_RULES)
    assert all(
        one.low <= 0.05 and one.low <= one.rate <= 0.075 and one.rounds == 1000 for one in result.values()
    )
    assert result["a difference"].rate > 0.03  # neither rate is trivially 0
    assert result["above a threshold, interim analyses"].rate > 0.015


def test_normal_approximation_fails_for_few_pairs():
    def accept_by_normal_approximation(fake, margin, alpha):
        return abs(fake.mean()) > 1.96 * fake.std() / math.sqrt(len(fake))

    rules = {"normal": accept_by_normal_approximation}
    assert measure_false_positives(draw_runs(count=12), 0.03, rules)["normal"].low > 0.05


def test_false_positive_rates_are_reproducible():
    rule = {"a difference": DECISION_RULES["a difference"]}
    assert measure_false_positives(draw_runs(), 0.03, rule) == measure_false_positives(
        draw_runs(), 0.03, rule
    )


def test_few_runs_or_a_failed_run_are_rejected():
    with pytest.raises(ValueError, match="at least 8"):
        measure_false_positives(draw_runs(count=6), 0.03)
    with pytest.raises(ValueError, match="nan"):
        measure_false_positives([*draw_runs(), math.nan], 0.03)
