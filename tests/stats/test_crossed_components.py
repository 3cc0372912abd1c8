"""Variance components of a crossed design: exact examples, recovery of known components, coverage."""

import math

import numpy as np
import pytest
from crossed_components import estimate_crossed_components, estimate_sampling_error


def draw_designs(rng, n_designs, shape, sds):
    """Values [design, row, column] with independent normal effects of these standard deviations."""
    rows, columns = shape
    return (
        sds[0] * rng.normal(size=(n_designs, rows, 1))
        + sds[1] * rng.normal(size=(n_designs, 1, columns))
        + sds[2] * rng.normal(size=(n_designs, rows, columns))
    )


def test_components_of_a_hand_computed_design():
    # mean 8; rows -4, 0, 4; columns -1, 0, 1; the rest is +-1 in the corners
    values = np.array([[4.0, 4.0, 4.0], [7.0, 8.0, 9.0], [10.0, 12.0, 14.0]])
    result = estimate_crossed_components(values)
    # mean squares: rows 3 * 32 / 2 = 48, columns 3 * 2 / 2 = 3, rest 4 / 4 = 1
    assert result.mean == 8.0
    assert result.rest == pytest.approx(1.0)
    assert result.rows == pytest.approx((48 - 1) / 3)
    assert result.columns == pytest.approx((3 - 1) / 3)
    assert result.total == pytest.approx(47 / 3 + 2 / 3 + 1)
    # terms of the total: 48 / 3, 3 / 3 and 1 * (1 - 1/3 - 1/3)
    assert result.df == pytest.approx(result.total**2 / (16**2 / 2 + 1**2 / 2 + (1 / 3) ** 2 / 4))
    assert result.truncated == ()


def test_a_negative_estimate_is_zero_and_named_but_the_total_is_unbiased():
    values = np.array([[0.0, 1.0, 2.0], [1.0, 2.0, 0.0], [2.0, 0.0, 1.0]])  # all row and column means are 1
    result = estimate_crossed_components(values)
    assert (result.rows, result.columns, result.rest) == (0.0, 0.0, 1.5)
    assert result.truncated == ("rows", "columns")
    assert result.total == pytest.approx(0.5), "-0.5 - 0.5 + 1.5"


def test_equal_values_have_no_components_and_a_missing_value_is_an_error():
    with pytest.raises(ValueError, match="all values are equal"):
        estimate_crossed_components(np.full((3, 3), 1.7))
    with pytest.raises(ValueError, match="nan at position 1"):
        estimate_crossed_components(np.array([[1.0, np.nan, 3.0]] * 3))
    with pytest.raises(ValueError, match="needs 3"):
        estimate_crossed_components(np.array([[1.0, 2.0], [3.0, 5.0]]))


def test_means_of_many_designs_recover_the_components():
    sds = (3.0, 2.0, 1.0)
    designs = draw_designs(np.random.default_rng(5), 4000, (5, 7), sds)
    results = [estimate_crossed_components(values) for values in designs]
    assert np.mean([result.rows for result in results]) == pytest.approx(9.0, rel=0.05)
    assert np.mean([result.columns for result in results]) == pytest.approx(4.0, rel=0.05)
    assert np.mean([result.rest for result in results]) == pytest.approx(1.0, rel=0.05)
    assert np.mean([result.total for result in results]) == pytest.approx(14.0, rel=0.05)


@pytest.mark.parametrize("sds", [(1.0, 1.0, 1.0), (2.0, 0.3, 1.0), (0.0, 0.0, 1.0)])
def test_the_interval_of_the_standard_deviation_covers_it(sds):
    designs = draw_designs(np.random.default_rng(6), 3000, (4, 4), sds)
    truth = math.sqrt(sum(sd**2 for sd in sds))
    intervals = [estimate_crossed_components(values).compute_sd_interval() for values in designs]
    assert 0.88 <= np.mean([low <= truth <= high for low, high in intervals]) <= 0.99


def test_sampling_error_of_equal_windows_is_that_of_their_means():
    means = np.array([1.0, 2.0, 4.0, 9.0])
    counts = np.full(4, 5.0)
    expected = means.std(ddof=1) / math.sqrt(4)
    assert estimate_sampling_error(means * counts, counts) == pytest.approx(expected)
    assert estimate_sampling_error(3.0 * counts, counts) == 0.0


def test_sampling_error_of_unequal_windows_is_that_of_the_ratio():
    sums, counts = np.array([1.0, 6.0]), np.array([1.0, 3.0])  # ratio 7 / 4, residuals -3/4 and 3/4
    assert estimate_sampling_error(sums, counts) == pytest.approx(math.sqrt(2 * 2 * (3 / 4) ** 2) / 4)
    with pytest.raises(ValueError, match="two windows"):
        estimate_sampling_error(np.array([1.0]), np.array([2.0]))
