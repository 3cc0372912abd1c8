"""Budget verdict: exact examples, and error rates with correlated trajectories of known truth."""

import math

import numpy as np
import pytest

from attnlab.stats.replications.budget_verdict import (
    BUDGET_VERDICTS,
    PERSISTS,
    SAME_PLATEAU,
    BudgetTrajectories,
    apply_budget_rule,
    decide_budget_verdict,
)
from attnlab.stats.replications.scaling_verdict import GROWS, INCONCLUSIVE

BUDGETS = [1, 2, 4, 8]
MARGIN = 0.02
T_95_DF_2 = 4.302652729911275


def test_slope_change_and_line_by_hand():
    # seed slopes: 1, 2, 3 per doubling, exactly linear in log2 of the budget
    differences = [[1, 2, 3, 4], [0, 2, 4, 6], [-1, 2, 5, 8]]
    trajectories = BudgetTrajectories(BUDGETS, differences)
    assert trajectories.slopes == pytest.approx([1, 2, 3])
    half_width = T_95_DF_2 / math.sqrt(3)  # the sd of the slopes is 1
    slope = trajectories.estimate_slope()
    assert (slope.mean, slope.low, slope.high) == pytest.approx((2, 2 - half_width, 2 + half_width))
    change = trajectories.estimate_change()
    assert (change.mean, change.low) == pytest.approx((6, 6 - 3 * half_width))
    line = trajectories.estimate_line(3.0)  # at 8x, the lines end at 4, 6 and 8
    assert (line.mean, line.low) == pytest.approx((6, 6 - 2 * half_width))
    assert trajectories.estimate_effect(1).mean == 2
    assert trajectories.estimate_effect(1).low is None  # equal differences: the noise is unknown


def make_trajectories(means, sd=0.005, correlation=0.8, seeds=8, seed=0):
    n = len(means)
    covariance = sd**2 * (correlation * np.ones((n, n)) + (1 - correlation) * np.eye(n))
    return np.random.default_rng(seed).multivariate_normal(means, covariance, seeds)


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ([-0.10, -0.06, -0.03, -0.002], SAME_PLATEAU),
        ([0.10, 0.06, 0.03, 0.002], SAME_PLATEAU),
        ([-0.06, -0.06, -0.06, -0.06], PERSISTS),
        ([-0.12, -0.10, -0.08, -0.06], PERSISTS),  # it shrinks, but stays beyond the margin
        ([0.03, 0.05, 0.07, 0.09], GROWS),
        ([0.0, 0.03, 0.06, 0.09], GROWS),
        ([0.0, 0.0, 0.0, 0.0], INCONCLUSIVE),
        ([-0.06, -0.02, 0.02, 0.06], INCONCLUSIVE),  # the sign changes
        ([-0.10, -0.07, -0.05, -0.02], INCONCLUSIVE),  # the end is at the margin
        ([0.0, 0.004, 0.008, 0.012], INCONCLUSIVE),  # it grows within the margin
    ],
)
def test_the_rule_on_clear_cases(means, verdict):
    trajectories = BudgetTrajectories(BUDGETS, make_trajectories(means))
    assert decide_budget_verdict(trajectories, MARGIN).verdict == verdict


def test_growth_from_a_noisy_start_is_not_shown():
    noise = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    means = np.array([0.0, 0.04, 0.08, 0.12])
    differences = np.outer(noise, [0.04, 0.001, 0.001, 0.001]) + means
    verdict = decide_budget_verdict(BudgetTrajectories(BUDGETS, differences), MARGIN)
    assert verdict.verdict == INCONCLUSIVE
    assert "on the other side" in verdict.reason


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(
    ("means", "wrong", "limit"),
    [
        ([0.06, 0.05, 0.03, 0.02], {SAME_PLATEAU}, 0.025),  # the end is at the margin
        ([0.06, 0.05, 0.03, 0.02], {GROWS, PERSISTS}, 0.025),
        ([0.03, 0.03, 0.03, 0.03], {GROWS}, 0.025),
    ],
)
def test_wrong_words_are_rare_whatever_the_correlation(correlation, means, wrong, limit):
    worlds = 20_000
    flat = make_trajectories(means, correlation=correlation, seeds=8 * worlds)
    differences = flat.reshape(worlds, 8, len(BUDGETS))
    indices = apply_budget_rule(np.log2(BUDGETS), differences, MARGIN)
    rate = np.isin(indices, [BUDGET_VERDICTS.index(word) for word in wrong]).mean()
    assert rate <= limit + 3 * math.sqrt(limit * (1 - limit) / worlds)
    assert rate > 0.005 or correlation, "an effect at the limit is named wrongly at about that rate"


def test_one_report_and_many_simulated_ones_follow_the_same_rule():
    rng = np.random.default_rng(0)
    means = rng.choice([-0.06, -0.02, 0.0, 0.02, 0.06], (200, len(BUDGETS)))
    differences = np.stack([make_trajectories(row, seeds=4, seed=i) for i, row in enumerate(means)])
    words = [decide_budget_verdict(BudgetTrajectories(BUDGETS, each), MARGIN).verdict for each in differences]
    indices = apply_budget_rule(np.log2(BUDGETS), differences, MARGIN)
    assert [BUDGET_VERDICTS[index] for index in indices] == words
    assert len(set(words)) == len(BUDGET_VERDICTS)


def test_unknown_noise_gives_no_word():
    assert decide_budget_verdict(BudgetTrajectories(BUDGETS, [[1, 1, 1, 1]]), MARGIN).verdict == INCONCLUSIVE
    equal = BudgetTrajectories(BUDGETS, [[1, 1, 1, 1]] * 3)
    assert decide_budget_verdict(equal, MARGIN).verdict == INCONCLUSIVE


@pytest.mark.parametrize(
    ("budgets", "differences", "message"),
    [
        ([1], [[1.0]], "at least 2"),
        ([2, 1], [[1.0, 2.0]], "must ascend"),
        ([1, 2], [[1.0, 2.0, 3.0]], r"shape \[seeds, 2\]"),
        ([1, 2], [[1.0, math.nan]], "nan at position 1"),
        ([1, 2], [], r"shape \[seeds, 2\]"),
    ],
)
def test_invalid_trajectories_are_rejected(budgets, differences, message):
    with pytest.raises(ValueError, match=message):
        BudgetTrajectories(budgets, differences)
