"""Critical values and p-values of the stopping rules."""

import math

import numpy as np
import pytest

from attnlab.stats import FIXED_SAMPLE, AnytimeValid, GroupSequential, list_stopping_rules
from attnlab.stats.boundaries import COMMON_ANALYSES

ANALYSES = (4, 8, 12, 16, 24)
STOPPING_RULES = {"fixed": FIXED_SAMPLE, "anytime": AnytimeValid(), "alone": GroupSequential((8,), 0)} | {
    f"look{i}": GroupSequential(ANALYSES, i) for i in range(5)
}


def simulate_t_paths(sweeps: int, seeds: int, seed: int = 0) -> np.ndarray:
    """[sweeps, n]: t of the first n seeds under the null hypothesis; NaN for one seed."""
    values, n = np.random.default_rng(seed).normal(size=(sweeps, seeds)), np.arange(1, seeds + 1)
    sums, squares = values.cumsum(1), (values**2).cumsum(1)
    with np.errstate(all="ignore"):
        return sums / np.sqrt(n * (squares - sums**2 / n) / (n - 1))


@pytest.mark.parametrize(
    ("level", "expected"), [(0.05, [4.86, 3.03, 2.60, 2.39, 2.04]), (0.025, [6.23, 3.56, 3.03, 2.79, 2.41])]
)
def test_boundaries_of_five_analyses(level, expected):
    result = [GroupSequential(ANALYSES, i).critical_value(n, level) for i, n in enumerate(ANALYSES)]
    assert result == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("design", STOPPING_RULES.values(), ids=STOPPING_RULES)
@pytest.mark.parametrize("n", [4, 7, 8, 24])
def test_critical_value_and_p_value_agree(design, n):
    for level in (1e-5, 0.001, 0.01, 0.05 / 3, 0.025, 0.05, 0.1, 0.2):
        t = design.critical_value(n, level)
        if math.isinf(t):
            assert design.p_value(n, 1e9) > level
        else:
            assert design.p_value(n, t) == pytest.approx(level, rel=1e-6)
            assert design.p_value(n, t * 1.0001) < level < design.p_value(n, t * 0.9999)


@pytest.mark.parametrize("design", STOPPING_RULES.values(), ids=STOPPING_RULES)
def test_critical_value_decreases_with_the_level(design):
    for n in (2, 5, 24):
        result = [design.critical_value(n, level) for level in np.geomspace(1e-6, 0.24, 60)]
        assert result == sorted(result, reverse=True)
        p = [design.p_value(n, t) for t in (-1.0, 0.0, 0.5, 2.0, 9.0)]
        assert p == sorted(p, reverse=True)
        assert p[0] > 0.5 > p[-1]


def test_single_analysis_equals_fixed_sample():
    ((count, alone),) = list_stopping_rules([8], 8)
    assert count == 8
    for n in (2, 7, 8):
        for level in (1e-4, 0.05, 0.3):
            assert alone.critical_value(n, level) == FIXED_SAMPLE.critical_value(n, level)
        for t in (-2.0, 0.0, 0.3, 1.0, 5.0):
            assert alone.p_value(n, t) == FIXED_SAMPLE.p_value(n, t)


@pytest.mark.parametrize("analyses", COMMON_ANALYSES, ids=str)
def test_interim_analyses_are_stricter_than_a_fixed_sample(analyses):
    for i, n in enumerate(analyses):
        assert GroupSequential(analyses, i).critical_value(n, 0.05) > FIXED_SAMPLE.critical_value(n, 0.05)
        assert GroupSequential(analyses, i).p_value(n, 2.5) >= FIXED_SAMPLE.p_value(n, 2.5)
    assert GroupSequential(analyses, 0).critical_value(analyses[0], 0.05) == FIXED_SAMPLE.critical_value(
        analyses[0], 0.05 * analyses[0] / analyses[-1]
    )


def test_analysis_with_a_missing_pair_keeps_the_tail():
    index = GroupSequential(ANALYSES, 1)
    assert FIXED_SAMPLE.p_value(7, index.critical_value(7, 0.05)) == pytest.approx(
        FIXED_SAMPLE.p_value(8, index.critical_value(8, 0.05)), rel=1e-9
    )
    assert index.critical_value(7, 0.05) > index.critical_value(8, 0.05)


def test_schedule_lists_seeds_of_each_analysis():
    assert list_stopping_rules(None, 6) == [(6, FIXED_SAMPLE)]
    ((count, anytime),) = list_stopping_rules("anytime", 5)
    assert count == 5
    assert isinstance(anytime, AnytimeValid)
    assert list_stopping_rules([4, 8], 8) == [
        (4, GroupSequential((4, 8), 0)),
        (8, GroupSequential((4, 8), 1)),
    ]


@pytest.mark.parametrize("level", [0.01, 0.025, 0.05, 0.25])
def test_anytime_valid_error_rate_is_at_most_nominal(level):
    t = simulate_t_paths(20_000, 30)[:, 1:]
    critical = np.array([AnytimeValid().critical_value(n, level) for n in range(2, 31)])
    for side in (t, -t):
        rate = (side >= critical).any(1).mean()
        assert 0.3 * level < rate <= level  # conservative: overshoot, and only thirty seeds


@pytest.mark.parametrize(("tail", "expected"), [(0.025, 0.11), (0.05, 0.19)])
def test_fixed_sample_t_errs_when_seeds_are_added(tail, expected):
    analyses = [5, *range(8, 31)]
    t = simulate_t_paths(20_000, 30)[:, [n - 1 for n in analyses]]
    rate = (t >= [FIXED_SAMPLE.critical_value(n, tail) for n in analyses]).any(1).mean()
    assert rate == pytest.approx(expected, abs=0.012)


def test_one_seed_is_no_anytime_valid_evidence():
    assert (AnytimeValid().critical_value(1, 0.05), AnytimeValid().p_value(1, 1e9)) == (math.inf, 1.0)


def test_two_seeds_never_reject_anytime_valid():
    assert AnytimeValid().critical_value(2, 0.05) == math.inf
    assert AnytimeValid().p_value(2, 1e200) == pytest.approx(
        1 / 6
    )  # 1 / (2 sqrt(1 + 2 * 4)), the most that they can show
