"""The search for a learning rate: pure, on losses that are made up."""

import math
import random
from statistics import median

import pytest

from attnlab.sweep.plan.tuning.search import Grid, search

SEEDS = (100, 101, 102)


def grid(*rates, seeds=SEEDS, widen=3, steady=None):
    return Grid(rates, seeds, widen, 1 / 3, steady)


def bowl(best, wild=None):
    """Losses that are least at `best`, in octaves; `wild` adds to some, by rate and seed."""
    return lambda rate, seed: abs(math.log2(rate / best)) + seed / 1000 + (wild or {}).get((rate, seed), 0)


def test_one_wild_seed_picks_nothing_where_the_mean_would_have_followed_it():
    for seeds in (SEEDS, (*SEEDS, 103)):  # an odd count and an even one
        found = search(grid(1, 2, 4, seeds=seeds), bowl(2, {(2, 101): 50}))
        assert found.best == 2
        means = {rate: sum(found.losses(rate, seeds)) for rate in (1, 2, 4)}
        assert min(means, key=means.get) != 2


@pytest.mark.parametrize("wild", [9, math.inf])
def test_a_steady_search_leaves_a_rate_at_which_a_seed_went_wrong(wild):
    wrong = {(2, 101): wild}
    assert search(grid(1, 2, 4), bowl(2, wrong)).best == 2, "the median does not see it"
    assert search(grid(1, 2, 4, steady=0.0), bowl(2, wrong)).best == 1
    assert search(grid(1, 2, 4, steady=0.0), bowl(2)).best == 2


def test_a_seed_that_is_bad_at_every_rate_moves_no_steady_pick():
    everywhere = {(rate, 101): 50 for rate in (1, 2, 4, 8, 16)}
    assert search(grid(1, 2, 4, steady=0.1), bowl(4, everywhere)).best == 4


@pytest.mark.parametrize(("steady", "best"), [(0.0, 4), (0.4, 4), (0.6, 2), (5.0, 2)])
def test_a_steady_search_picks_the_lowest_of_those_that_are_nearly_as_good(steady, best):
    found = search(grid(1, 2, 4, 8, steady=steady), lambda rate, _: {1: 9, 2: 1.5, 4: 1, 8: 2}[rate])
    assert found.best == best, "1 was tried with one seed alone"


@pytest.mark.parametrize("wild", [9, -9, math.inf])
def test_a_wild_first_seed_picks_nothing_though_it_alone_decides_the_first_rung(wild):
    rates = (1, 2, 4, 8, 16)
    for rate in rates:
        found = search(grid(*rates), bowl(4, {(rate, 100): wild}))
        assert found.best == 4, f"wild at {rate}"


def test_the_best_and_its_neighbours_get_all_seeds_and_the_others_one():
    found = search(grid(1, 2, 4, 8), bowl(4))
    assert [len([1 for rate, _ in found.asked if rate == one]) for one in (1, 2, 4, 8)] == [1, 3, 3, 3]
    assert found.rates == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("best", "rates"), [(8, (1, 2, 4, 8, 16)), (16, (1, 2, 4, 8, 16, 32)), (0.5, (0.25, 0.5, 1, 2, 4))]
)
def test_a_pick_at_either_end_of_the_grid_is_bracketed_by_rates_beyond_it(best, rates):
    found = search(grid(1, 2, 4), bowl(best))
    assert (found.best, found.rates) == (best, rates)
    at = rates.index(best)
    for near in rates[at - 1 : at + 2]:
        assert None not in found.losses(near, SEEDS), "the bracket is judged on all seeds"


def test_the_next_rate_is_as_far_from_the_end_as_the_end_is_from_its_neighbour():
    assert search(grid(1e-3, 3e-3, 1e-2), bowl(3e-2)).rates == (1e-3, 3e-3, 1e-2, 0.03333, 0.1111)
    assert search(grid(1e-3, 3e-3, 1e-2), bowl(3e-4)).rates == (1.111e-4, 3.333e-4, 1e-3, 3e-3, 1e-2)


def test_the_grid_is_widened_no_further_than_was_declared():
    assert search(grid(1, 2, 4, widen=2), bowl(1000)).rates == (1, 2, 4, 8, 16)
    assert search(grid(1, 2, 4, widen=2), bowl(1000)).best == 16
    assert search(grid(1, 2, 4, widen=0), bowl(0.01)).rates == (1, 2, 4)


def test_the_second_rung_goes_on_where_the_medians_point_elsewhere_than_the_first_seed():
    first = {1: 0, 2: 1, 4: 2, 8: 3}
    found = search(grid(1, 2, 4, 8), lambda rate, seed: first.get(rate, 9) if seed == 100 else 10 - rate)
    assert found.best == found.rates[-1] > 8
    assert len(found.rates) == 4 + 3, "both ends were widened, and no more than declared in all"
    assert found.rates[0] < 1


def test_what_diverges_is_the_worst_and_where_all_do_the_way_is_down():
    def found(rate, seed):
        return math.inf if rate > 0.6 or (rate, seed) == (0.5, 101) else 1 / rate

    assert search(grid(1, 2, 4), found).best == 0.5
    assert search(grid(1, 2, 4, widen=0), found).best == 1, "the lowest, and nothing says that it is any good"
    assert math.isinf(search(grid(1, 2, 4, widen=0), found).median(1, SEEDS))


def test_a_search_asks_for_a_rung_at_a_time_and_goes_on_where_it_was_left():
    truth, known, rounds = bowl(8), dict[tuple[float, int], float](), []

    def found(rate, seed):
        return known.get((rate, seed))

    while (step := search(grid(1, 2, 4), found)).best is None:
        missing = [key for key, loss in step.asked.items() if loss is None]
        rounds.append(missing)
        known[missing[0]] = truth(*missing[0])  # interrupted after one
        assert set(search(grid(1, 2, 4), found).asked) >= set(step.asked), (
            "what is asked for once stays asked for"
        )
        known.update({key: truth(*key) for key in missing})
    whole = search(grid(1, 2, 4), truth)
    assert step == whole
    assert set(known) == set(whole.asked), "nothing is trained that the whole search does not ask for"
    assert rounds[0] == [(1, 100), (2, 100), (4, 100)]
    assert rounds[1:3] == [[(8, 100)], [(16, 100)]]


def test_any_losses_end_in_a_pick_between_worse_ones_within_the_cost_that_was_told():
    for case in range(500):
        draw = random.Random(case)
        rates = tuple(2.0**n for n in range(draw.randint(2, 6)))
        seeds, widen = tuple(range(100, 100 + draw.randint(3, 5))), draw.randint(0, 3)
        losses: dict[tuple[float, int], float] = {}

        def found(rate, seed, draw=draw, losses=losses):
            return losses.setdefault((rate, seed), draw.choice([math.inf, draw.gauss(0, 1), 2.0]))

        asked = grid(*rates, seeds=seeds, widen=widen)
        end = search(asked, found)
        assert len(end.asked) <= asked.most
        assert len(end.rates) <= len(rates) + widen
        at = end.rates.index(end.best)
        if at in (0, len(end.rates) - 1):
            assert len(end.rates) == len(rates) + widen
        for near in end.rates[max(at - 1, 0) : at + 2]:
            assert median(losses[near, seed] for seed in seeds) >= end.median(end.best, seeds)


def test_of_equals_the_lowest_is_picked_and_bracketed_like_any_other():
    assert search(grid(1, 2, 4, 8), lambda rate, seed: max(3 - rate, 0)).best == 4
    flat = search(grid(1, 2, 4, widen=2), lambda rate, seed: 1.0)
    assert (flat.best, flat.rates) == (0.25, (0.25, 0.5, 1, 2, 4))


def test_of_two_valleys_the_one_that_the_first_seed_finds_deeper_is_searched_to_its_floor():
    depth = {1: 5, 2: 1, 4: 5, 8: 5, 16: 0, 32: 5}
    found = search(grid(*depth), lambda rate, seed: depth[rate])
    assert found.best == 16
    assert found.losses(2, SEEDS) == [1, None, None]


def test_what_is_lost_stops_the_search_where_it_is_needed_and_nowhere_else():
    far = search(grid(1, 2, 4, 8), lambda rate, seed: None if (rate, seed) == (1, 101) else abs(rate - 4))
    assert far.best == 4, "nobody asks for it"
    for lost in ((1, 100), (2, 101)):
        found = search(
            grid(1, 2, 4, 8), lambda rate, seed, lost=lost: None if (rate, seed) == lost else abs(rate - 4)
        )
        assert found.best is None
        assert [key for key, loss in found.asked.items() if loss is None] == [lost]
