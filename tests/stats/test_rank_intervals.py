"""Simultaneous intervals for ranks: hand-computed examples, error rate, stopping rules."""

import numpy as np
import pytest

from attnlab import stats
from attnlab.stats import RankInterval, compute_rank_intervals

WIGGLE = np.array([0.01, -0.01, 0.02, -0.02, 0.0, 0.01, -0.01, 0.0])


def test_clear_gaps_give_every_arm_its_rank() -> None:
    values = np.stack([2 + WIGGLE, 1 - WIGGLE, 3 + WIGGLE[::-1]])
    assert compute_rank_intervals(values) == [RankInterval(2, 2), RankInterval(1, 1), RankInterval(3, 3)]


def test_equal_arms_share_all_their_ranks() -> None:
    values = np.stack([1 + WIGGLE, 1 - WIGGLE, 3 + WIGGLE[::-1]])
    assert compute_rank_intervals(values) == [RankInterval(1, 2), RankInterval(1, 2), RankInterval(3, 3)]


def test_pairs_are_tested_at_the_levels_of_holm() -> None:
    # Three arms have six tests: the largest t is tested at 0.05 / 6, then at 0.05 / 5 and 0.05 / 4.
    steps = np.array([-3.0, -1.0, 1.0, 3.0])

    def separate(distance: float) -> list[RankInterval]:
        return compute_rank_intervals(np.stack([0 * steps, distance + steps, 1000 - steps]))

    standard_error = steps.std(ddof=1) / 2
    critical = [stats.FIXED_SAMPLE.critical_value(4, 0.05 / count) for count in (6, 5, 4)]
    assert critical == sorted(critical, reverse=True)
    # both clear pairs are shown first, so the last pair is tested at 0.05 / 4
    assert separate(1.001 * critical[2] * standard_error)[0] == RankInterval(1, 1)
    assert separate(0.999 * critical[2] * standard_error)[0] == RankInterval(1, 2)


def test_pairing_removes_the_noise_that_arms_share() -> None:
    shared = np.random.default_rng(0).normal(0, 5, 8)
    values = np.stack([shared + WIGGLE, shared + 1 - WIGGLE])
    assert compute_rank_intervals(values) == [RankInterval(1, 1), RankInterval(2, 2)]


def test_arm_without_all_values_may_have_any_rank_and_orders_no_other() -> None:
    missing = 2 + WIGGLE
    missing[3] = np.nan
    ranks = compute_rank_intervals(np.stack([1 + WIGGLE, missing, 3 - WIGGLE]))
    assert ranks == [RankInterval(1, 2), RankInterval(1, 3), RankInterval(2, 3)]


def test_equal_differences_show_nothing() -> None:
    assert compute_rank_intervals(np.stack([WIGGLE, WIGGLE + 1])) == [RankInterval(1, 2)] * 2


@pytest.mark.parametrize("seeds", [0, 1])
def test_too_few_seeds_show_nothing(seeds: int) -> None:
    values = np.arange(3.0)[:, None].repeat(seeds, axis=1)
    assert compute_rank_intervals(values) == [RankInterval(1, 3)] * 3


def test_interim_analyses_are_stricter_than_a_fixed_sample() -> None:
    values = np.stack([WIGGLE[:4], 0.11 - WIGGLE[:4], 0.5 + WIGGLE[4:]])
    interim = compute_rank_intervals(values, stopping_rule=stats.GroupSequential((4, 12), 0))
    before = compute_rank_intervals(values, stopping_rule=stats.BeforeFirstAnalysis())
    widths = [
        [row.high - row.low for row in rows] for rows in (compute_rank_intervals(values), interim, before)
    ]
    assert sum(widths[0]) < sum(widths[1]) <= sum(widths[2]) == 6


@pytest.mark.parametrize("values", [np.zeros(3), np.array([[0.0, np.inf], [1.0, 2.0]])])
def test_invalid_values_are_rejected(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="arms x seeds"):
        compute_rank_intervals(values)


@pytest.mark.parametrize("analyses", [(8,), (4, 8)])
def test_tables_with_a_wrong_rank_are_at_most_five_in_a_hundred(analyses: tuple[int, ...]) -> None:
    """Ten arms, four of them equal, of unequal spread and with noise that they share, at any analysis."""
    rng = np.random.default_rng(1)
    means = np.array([0, 0, 0, 0, 1, 2, 3, 4, 6, 8.0])
    spreads = np.array([1, 3, 1, 0.3, 1, 2, 1, 1, 0.5, 1])
    lowest, highest = zip(*((1 + (means < m).sum(), (means <= m).sum()) for m in means), strict=True)
    wrong, narrow, tables = 0, 0, 500
    for _ in range(tables):
        values = means[:, None] + rng.normal(0, 2, 8) + spreads[:, None] * rng.normal(size=(10, 8))
        ranks_by_analysis = [
            compute_rank_intervals(values[:, :count], stopping_rule=rule)
            for count, rule in stats.list_stopping_rules(analyses, 8)
        ]
        wrong += any(
            row.low > low or row.high < high
            for ranks in ranks_by_analysis
            for row, low, high in zip(ranks, lowest, highest, strict=True)
        )
        narrow += sum(row.high - row.low < 9 for row in ranks_by_analysis[-1])
    # equal arms share their ranks, so an interval must contain all of them
    assert wrong / tables < 0.05 + 3 * (0.05 * 0.95 / tables) ** 0.5
    assert narrow / tables > 6, "most arms are shown to differ from some other"
