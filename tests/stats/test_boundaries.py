"""Boundaries of interim analyses: together they spend a level once."""

import json

import numpy as np
import pytest

from attnlab.stats import boundaries
from attnlab.stats.boundaries import (
    COMMON_ANALYSES,
    LEVELS,
    PATH_COUNT,
    STORED_PATH_COUNT,
    compute_tails,
    find_level,
)

ANALYSES = (4, 8, 12, 16, 24)


def has_error_rate(analyses, level, path_count=STORED_PATH_COUNT):
    """Whether any analysis rejects at the nominal level, by an independent simulation.

    Each path counts in both directions. `path_count` paths gave the boundaries, which err with them.
    """
    tails = boundaries._simulate_paths(analyses, 200_000, np.random.default_rng(7))
    limit = np.array(compute_tails(analyses, level))
    rate = ((tails <= limit).any(1).mean() + (tails >= 1 - limit).any(1).mean()) / 2
    boundary_error = np.sqrt(level * (1 - level) / (2 * path_count))
    return rate == pytest.approx(level, abs=3.5 * np.hypot(boundary_error, np.sqrt(level / 400_000)))


@pytest.mark.parametrize(
    "analyses", [ANALYSES, (3, 4), pytest.param((6, 12, 18, 24), marks=pytest.mark.rare)], ids=str
)
def test_all_analyses_together_spend_the_level_once(analyses):
    for level in (0.2, 0.05, 0.025, 0.005):
        assert has_error_rate(analyses, level), level


def test_unstored_schedules_are_simulated_and_spend_the_level_once():
    analyses = (2, 4)
    assert analyses not in COMMON_ANALYSES
    assert has_error_rate(analyses, 0.05, PATH_COUNT)


def test_stored_boundaries_are_those_of_common_schedules():
    stored = json.loads(boundaries._FILE.read_text("utf-8"))
    assert list(stored) == [",".join(map(str, analyses)) for analyses in COMMON_ANALYSES]
    for analyses, gains in zip(COMMON_ANALYSES, stored.values(), strict=True):
        assert np.shape(gains) == (len(LEVELS), len(analyses))
        assert not np.array(gains)[:, 0].any()  # nothing is rejected before the first analysis


def test_simulation_reproduces_stored_boundaries():
    analyses = (4, 8)
    simulated, stored = (
        boundaries._simulate_gains(analyses, PATH_COUNT, seed=3),
        boundaries._get_gains(analyses),
    )
    share = np.array(LEVELS) / 2
    assert not simulated[:, 0].any()
    # the last tail is a quantile: its error is relative to the number of paths beyond it
    assert (np.abs(simulated - stored)[:, 1] < 4 / np.sqrt(2 * PATH_COUNT * share)).all()


@pytest.mark.rare
def test_stored_boundaries_are_reproduced_exactly():
    repeated = np.round(boundaries._simulate_gains((2, 3), STORED_PATH_COUNT), 5)
    assert repeated == pytest.approx(boundaries._get_gains((2, 3)), abs=2e-5)


@pytest.mark.parametrize("analyses", COMMON_ANALYSES, ids=str)
def test_find_level_inverts_compute_tails(analyses):
    for level in np.geomspace(1e-6, 0.24, 40):
        for index, tail in enumerate(compute_tails(analyses, level)):
            assert find_level(analyses, index, tail) == pytest.approx(level, rel=1e-9)


@pytest.mark.parametrize("analyses", COMMON_ANALYSES, ids=str)
def test_tails_increase_with_the_level_and_stay_below_it(analyses):
    levels = np.geomspace(1e-6, LEVELS[-1], 500)
    tails = np.array([compute_tails(analyses, level) for level in levels])
    assert (np.diff(tails, axis=0) > 0).all()
    assert (tails < levels[:, None]).all()


def test_tail_that_no_level_rejects_has_p_one():
    assert find_level(ANALYSES, 0, 0.1) == find_level(ANALYSES, 4, 0.7) == 1.0
    assert find_level(ANALYSES, 4, 0.0) == 0.0


def test_below_simulated_levels_tails_are_the_allocated_alpha():
    assert compute_tails(ANALYSES, 1e-5) == pytest.approx([1e-5 * seeds / 24 for seeds in (4, 4, 4, 4, 8)])
    gap = (
        compute_tails(ANALYSES, LEVELS[0])[4] * 0.999
    )  # more than is left just below the first simulated level
    assert find_level(ANALYSES, 4, gap) == LEVELS[0]


def test_single_analysis_has_the_whole_level():
    assert compute_tails([8], 0.03) == [0.03]
    assert [find_level([8], 0, tail) for tail in (0.0, 0.03, 0.7)] == [0.0, 0.03, 0.7]
