"""Learning-rate search on made-up losses."""

import math
import random
from statistics import median

import pytest

from attnlab.sweep.plan.tuning.lr_search import RateGrid, run_search

SEEDS = (100, 101, 102)


def make_grid(*rates, seeds=SEEDS, extend=3, robust=None):
    return RateGrid(rates, seeds, extend, 1 / 3, robust)


def make_losses(best, outliers=None):
    """Make losses in octaves from `best`; `outliers` adds to some, by (rate, seed)."""
    return lambda rate, seed: (
        abs(math.log2(rate / best)) + seed / 1000 + (outliers or {}).get((rate, seed), 0)
    )


def test_median_ignores_one_outlier_seed():
    for seeds in (SEEDS, (*SEEDS, 103)):  # an odd count and an even one
        search = run_search(make_grid(1, 2, 4, seeds=seeds), make_losses(2, {(2, 101): 50}))
        assert search.best_rate == 2
        means = {rate: sum(search.list_losses(rate, seeds)) for rate in (1, 2, 4)}
        assert min(means, key=means.get) != 2


@pytest.mark.parametrize("excess", [9, math.inf])
def test_robust_search_avoids_rate_with_failed_seed(excess):
    outliers = {(2, 101): excess}
    assert run_search(make_grid(1, 2, 4), make_losses(2, outliers)).best_rate == 2, "the median ignores it"
    assert run_search(make_grid(1, 2, 4, robust=0.0), make_losses(2, outliers)).best_rate == 1
    assert run_search(make_grid(1, 2, 4, robust=0.0), make_losses(2)).best_rate == 2


def test_seed_bad_at_every_rate_leaves_robust_pick():
    outliers = {(rate, 101): 50 for rate in (1, 2, 4, 8, 16)}
    assert run_search(make_grid(1, 2, 4, robust=0.1), make_losses(4, outliers)).best_rate == 4


@pytest.mark.parametrize(("robust", "best"), [(0.0, 4), (0.4, 4), (0.6, 2), (5.0, 2)])
def test_robust_search_picks_lowest_of_nearly_equal_rates(robust, best):
    search = run_search(
        make_grid(1, 2, 4, 8, robust=robust), lambda rate, _: {1: 9, 2: 1.5, 4: 1, 8: 2}[rate]
    )
    assert search.best_rate == best, "1 was tried with one seed alone"


@pytest.mark.parametrize("excess", [9, -9, math.inf])
def test_outlier_in_first_seed_does_not_change_pick(excess):
    rates = (1, 2, 4, 8, 16)
    for rate in rates:
        search = run_search(make_grid(*rates), make_losses(4, {(rate, 100): excess}))
        assert search.best_rate == 4, f"outlier at {rate}"


def test_best_rate_and_neighbors_get_all_seeds():
    search = run_search(make_grid(1, 2, 4, 8), make_losses(4))
    assert [len([1 for rate, _ in search.requested_losses if rate == one]) for one in (1, 2, 4, 8)] == [
        1,
        3,
        3,
        3,
    ]
    assert search.rates == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("best", "rates"), [(8, (1, 2, 4, 8, 16)), (16, (1, 2, 4, 8, 16, 32)), (0.5, (0.25, 0.5, 1, 2, 4))]
)
def test_pick_at_grid_end_is_bracketed(best, rates):
    search = run_search(make_grid(1, 2, 4), make_losses(best))
    assert (search.best_rate, search.rates) == (best, rates)
    at = rates.index(best)
    for near in rates[at - 1 : at + 2]:
        assert None not in search.list_losses(near, SEEDS), "the bracket is judged on all seeds"


def test_added_rate_keeps_spacing():
    assert run_search(make_grid(1e-3, 3e-3, 1e-2), make_losses(3e-2)).rates == (
        1e-3,
        3e-3,
        1e-2,
        0.03333,
        0.1111,
    )
    assert run_search(make_grid(1e-3, 3e-3, 1e-2), make_losses(3e-4)).rates == (
        1.111e-4,
        3.333e-4,
        1e-3,
        3e-3,
        1e-2,
    )


def test_grid_extension_is_limited():
    assert run_search(make_grid(1, 2, 4, extend=2), make_losses(1000)).rates == (1, 2, 4, 8, 16)
    assert run_search(make_grid(1, 2, 4, extend=2), make_losses(1000)).best_rate == 16
    assert run_search(make_grid(1, 2, 4, extend=0), make_losses(0.01)).rates == (1, 2, 4)


def test_second_rung_follows_medians():
    first = {1: 0, 2: 1, 4: 2, 8: 3}
    search = run_search(
        make_grid(1, 2, 4, 8), lambda rate, seed: first.get(rate, 9) if seed == 100 else 10 - rate
    )
    assert search.best_rate == search.rates[-1] > 8
    assert len(search.rates) == 4 + 3, "both ends were extended, within the declared total"
    assert search.rates[0] < 1


def test_divergence_is_worst_and_search_moves_down():
    def look_up_loss(rate, seed):
        return math.inf if rate > 0.6 or (rate, seed) == (0.5, 101) else 1 / rate

    assert run_search(make_grid(1, 2, 4), look_up_loss).best_rate == 0.5
    assert run_search(make_grid(1, 2, 4, extend=0), look_up_loss).best_rate == 1, (
        "the lowest, although it diverges too"
    )
    assert math.isinf(run_search(make_grid(1, 2, 4, extend=0), look_up_loss).compute_median(1, SEEDS))


def test_search_requests_one_rung_at_a_time_and_resumes():
    truth, known, rounds = make_losses(8), dict[tuple[float, int], float](), []

    def look_up_loss(rate, seed):
        return known.get((rate, seed))

    while (step := run_search(make_grid(1, 2, 4), look_up_loss)).best_rate is None:
        missing = [key for key, loss in step.requested_losses.items() if loss is None]
        rounds.append(missing)
        known[missing[0]] = truth(*missing[0])  # interrupted after one
        assert set(run_search(make_grid(1, 2, 4), look_up_loss).requested_losses) >= set(
            step.requested_losses
        ), "a request is never withdrawn"
        known.update({key: truth(*key) for key in missing})
    complete = run_search(make_grid(1, 2, 4), truth)
    assert step == complete
    assert set(known) == set(complete.requested_losses), (
        "nothing is trained beyond the requests of a complete search"
    )
    assert rounds[0] == [(1, 100), (2, 100), (4, 100)]
    assert rounds[1:3] == [[(8, 100)], [(16, 100)]]


def test_any_losses_end_in_bracketed_pick_within_max_runs():
    for case in range(500):
        draw = random.Random(case)
        rates = tuple(2.0**n for n in range(draw.randint(2, 6)))
        seeds, extend = tuple(range(100, 100 + draw.randint(3, 5))), draw.randint(0, 3)
        losses: dict[tuple[float, int], float] = {}

        def look_up_loss(rate, seed, draw=draw, losses=losses):
            return losses.setdefault((rate, seed), draw.choice([math.inf, draw.gauss(0, 1), 2.0]))

        grid = make_grid(*rates, seeds=seeds, extend=extend)
        search = run_search(grid, look_up_loss)
        assert len(search.requested_losses) <= grid.max_runs
        assert len(search.rates) <= len(rates) + extend
        at = search.rates.index(search.best_rate)
        if at in (0, len(search.rates) - 1):
            assert len(search.rates) == len(rates) + extend
        for near in search.rates[max(at - 1, 0) : at + 2]:
            assert median(losses[near, seed] for seed in seeds) >= search.compute_median(
                search.best_rate, seeds
            )


def test_lowest_of_equal_rates_is_picked_and_bracketed():
    assert run_search(make_grid(1, 2, 4, 8), lambda rate, seed: max(3 - rate, 0)).best_rate == 4
    flat = run_search(make_grid(1, 2, 4, extend=2), lambda rate, seed: 1.0)
    assert (flat.best_rate, flat.rates) == (0.25, (0.25, 0.5, 1, 2, 4))


def test_deeper_valley_of_first_seed_is_searched():
    depth = {1: 5, 2: 1, 4: 5, 8: 5, 16: 0, 32: 5}
    search = run_search(make_grid(*depth), lambda rate, seed: depth[rate])
    assert search.best_rate == 16
    assert search.list_losses(2, SEEDS) == [1, None, None]


def test_missing_result_stops_search_only_where_needed():
    far = run_search(
        make_grid(1, 2, 4, 8), lambda rate, seed: None if (rate, seed) == (1, 101) else abs(rate - 4)
    )
    assert far.best_rate == 4, "the search does not request it"
    for lost in ((1, 100), (2, 101)):
        search = run_search(
            make_grid(1, 2, 4, 8),
            lambda rate, seed, lost=lost: None if (rate, seed) == lost else abs(rate - 4),
        )
        assert search.best_rate is None
        assert [key for key, loss in search.requested_losses.items() if loss is None] == [lost]


def test_lower_pick_within_the_tolerance_is_not_at_the_edge_of_the_search():
    losses = {1: 1.805, 2: 1.8, 4: 1.9}
    search = run_search(make_grid(1, 2, 4, extend=1, robust=0.01), lambda rate, seed: losses[rate])
    assert (search.best_rate, search.rates, search.at_grid_edge) == (1, (1, 2, 4), False)
    search = run_search(make_grid(1, 2, 4, extend=1), lambda rate, seed: rate)
    assert (search.best_rate, search.rates, search.at_grid_edge) == (0.5, (0.5, 1, 2, 4), True)
