"""A rule that is right keeps its rate of false positives; one that is not is found out."""

import math

import numpy as np
import pytest

from attnlab.stats.null import RULES, false_positives


def runs(seed=0, count=16):
    return np.random.default_rng(seed).normal(2.0, 0.02, count)


@pytest.mark.rare
def test_the_rules_in_use_accept_what_is_false_about_as_often_as_they_say():
    found = false_positives(runs(), margin=0.03)
    assert set(found) == set(RULES)
    assert all(one.passed and one.low <= one.rate <= 0.075 and one.rounds == 1000 for one in found.values())
    assert found["a difference"].rate > 0.03  # it is a rate, not a nought
    assert found["above a threshold, in looks"].rate > 0.015


def test_a_rule_that_forgets_how_few_the_pairs_are_is_found_out():
    def normal(fake, margin, alpha):
        return abs(fake.mean()) > 1.96 * fake.std() / math.sqrt(len(fake))

    assert not false_positives(runs(count=12), 0.03, {"normal": normal})["normal"].passed


def test_the_same_runs_give_the_same_rates():
    rule = {"a difference": RULES["a difference"]}
    assert false_positives(runs(), 0.03, rule) == false_positives(runs(), 0.03, rule)


def test_few_runs_or_a_failed_one_are_refused():
    with pytest.raises(ValueError, match="at least 8"):
        false_positives(runs(count=6), 0.03)
    with pytest.raises(ValueError, match="nan"):
        false_positives([*runs(), math.nan], 0.03)
