"""Boundaries of looks: together they spend a level once."""

import json

import numpy as np
import pytest

from attnlab.stats import boundaries
from attnlab.stats.boundaries import LEVELS, PATHS, STORED, USUAL, error, level_of, tails

LOOKS = (4, 8, 12, 16, 24)


def rate_is(looks, level):
    """How often any look rejects, by a simulation of its own, is the level; each path counts both ways."""
    found = boundaries._path(looks, 200_000, np.random.default_rng(7))
    limit = np.array(tails(looks, level))
    rate = ((found <= limit).any(1).mean() + (found >= 1 - limit).any(1).mean()) / 2
    return rate == pytest.approx(level, abs=3.5 * np.hypot(error(looks, level), np.sqrt(level / 400_000)))


@pytest.mark.parametrize(
    "looks", [LOOKS, (3, 4), pytest.param((6, 12, 18, 24), marks=pytest.mark.rare)], ids=str
)
def test_all_looks_together_spend_the_level_once(looks):
    for level in (0.2, 0.05, 0.025, 0.005):
        assert rate_is(looks, level), level


def test_looks_that_are_not_stored_are_simulated_and_spend_it_once_too():
    looks = (2, 4)
    assert looks not in USUAL
    assert error(looks, 0.05) > error(LOOKS, 0.05) == pytest.approx(np.sqrt(0.05 * 0.95 / (2 * STORED)))
    assert rate_is(looks, 0.05)


def test_the_stored_boundaries_are_those_of_the_usual_looks():
    stored = json.loads(boundaries._FILE.read_text("utf-8"))
    assert list(stored) == [",".join(map(str, looks)) for looks in USUAL]
    for looks, gains in zip(USUAL, stored.values(), strict=True):
        assert np.shape(gains) == (len(LEVELS), len(looks))
        assert not np.array(gains)[:, 0].any()  # nothing was rejected before the first look


def test_a_simulation_finds_what_is_stored():
    looks = (4, 8)
    few, many = boundaries._simulated(looks, PATHS, seed=3), boundaries._gains(looks)
    share = np.array(LEVELS) / 2
    assert not few[:, 0].any()
    # the last look's tail is a quantile: its error is relative to how many paths it spends
    assert (np.abs(few - many)[:, 1] < 4 / np.sqrt(2 * PATHS * share)).all()


@pytest.mark.rare
def test_the_stored_boundaries_are_made_again_by_their_command():
    again = np.round(boundaries._simulated((2, 3), STORED), 5)
    assert again == pytest.approx(boundaries._gains((2, 3)), abs=2e-5)


@pytest.mark.parametrize("looks", USUAL, ids=str)
def test_a_level_is_found_back_from_what_a_look_leaves(looks):
    for level in np.geomspace(1e-6, 0.24, 40):
        for look, tail in enumerate(tails(looks, level)):
            assert level_of(looks, look, tail) == pytest.approx(level, rel=1e-9)


@pytest.mark.parametrize("looks", USUAL, ids=str)
def test_a_stricter_level_leaves_less_at_every_look_and_no_look_has_more_than_all(looks):
    levels = np.geomspace(1e-6, LEVELS[-1], 500)
    left = np.array([tails(looks, level) for level in levels])
    assert (np.diff(left, axis=0) > 0).all()
    assert (left < levels[:, None]).all()


def test_what_no_level_rejects_has_p_one():
    assert level_of(LOOKS, 0, 0.1) == level_of(LOOKS, 4, 0.7) == 1.0
    assert level_of(LOOKS, 4, 0.0) == 0.0


def test_below_the_simulated_levels_a_look_has_what_it_may_spend():
    assert tails(LOOKS, 1e-5) == pytest.approx([1e-5 * part / 24 for part in (4, 4, 4, 4, 8)])
    gap = tails(LOOKS, LEVELS[0])[4] * 0.999  # more than is left just below the first simulated level
    assert level_of(LOOKS, 4, gap) == LEVELS[0]


def test_one_look_has_the_whole_level():
    assert tails([8], 0.03) == [0.03]
    assert [level_of([8], 0, tail) for tail in (0.0, 0.03, 0.7)] == [0.0, 0.03, 0.7]
    assert error([8], 0.05) == 0
