"""Crossed designs: shares of variance against least squares, paired option means, balanced subsets."""

import itertools

import numpy as np
import pytest

from attnlab.stats import average_options, decompose_variance, find_balanced_subset


def fit_residual(values, *terms):
    """The residual sum of squares of a least-squares fit: an intercept and a dummy per level of a term."""
    indices = list(itertools.product(*map(range, values.shape)))
    columns = [[1.0] * len(indices)]
    for term in terms:
        levels = [tuple(index[axis] for axis in term) for index in indices]
        columns += [[float(level == each) for each in levels] for level in sorted(set(levels))]
    design = np.array(columns).T
    y = np.array([values[index] for index in indices])
    return float(((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum())


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 4), (2, 3, 5, 2), (2, 3, 1)])
def test_sums_of_squares_are_those_of_nested_least_squares_fits(shape):
    values = np.random.default_rng(sum(shape)).normal(3.0, 0.1, shape)
    result = decompose_variance(values)
    n_axes = len(shape) - 1
    total = fit_residual(values)
    assert result.total == pytest.approx(total)
    for axes, component in result.effects.items():
        without = [part for part in itertools.combinations(axes, len(axes) - 1) if part]
        expected = fit_residual(values, *without) - fit_residual(values, *without, axes)
        assert component.sum_of_squares == pytest.approx(expected), axes
        assert component.df == np.prod([shape[axis] - 1 for axis in axes])
    cell = tuple(range(n_axes))
    if n_axes > 2:
        pairs = list(itertools.combinations(cell, 2))
        expected = fit_residual(values, *pairs) - fit_residual(values, cell)
        assert result.higher.sum_of_squares == pytest.approx(expected)
        assert result.higher.df == np.prod([size - 1 for size in shape[:-1]])
    else:
        assert result.higher is None
    if shape[-1] == 1:
        assert (result.seeds, result.noise, result.noise_variance) == (None, None, None)
    else:
        assert result.seeds.sum_of_squares == pytest.approx(total - fit_residual(values, (n_axes,)))
        assert result.noise.sum_of_squares == pytest.approx(fit_residual(values, cell, (n_axes,)))
        assert result.noise.df == (np.prod(shape[:-1]) - 1) * (shape[-1] - 1)


@pytest.mark.parametrize("shape", [(2, 3), (3, 4, 2), (2, 2, 3, 3), (2, 3, 2, 2, 1)])
def test_shares_and_degrees_of_freedom_add_up(shape):
    values = np.random.default_rng(1).normal(size=shape)
    result = decompose_variance(values)
    parts = [*result.effects.values(), *filter(None, (result.higher, result.seeds, result.noise))]
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    assert sum(part.df for part in parts) == values.size - 1
    assert all(part.share >= 0 for part in parts)


def test_known_decomposition():
    a = np.array([-1.0, 1.0])[:, None, None]
    b = np.array([-3.0, 0.0, 3.0])[None, :, None]
    seed = np.array([-0.5, 0.5])[None, None, :]
    interaction = np.array([[1.0, -2.0, 1.0], [-1.0, 2.0, -1.0]])[:, :, None]
    result = decompose_variance(7.0 + a + b + seed + interaction)
    squares = {axes: component.sum_of_squares for axes, component in result.effects.items()}
    assert squares == pytest.approx({(0,): 12.0, (1,): 72.0, (0, 1): 24.0})
    assert result.seeds.sum_of_squares == pytest.approx(3.0)
    assert result.noise.sum_of_squares == pytest.approx(0.0, abs=1e-12)
    assert result.effects[1,].share == pytest.approx(72 / 111)


def test_noise_share_is_the_mean_share_of_an_effect_without_effects():
    rng = np.random.default_rng(3)
    shares, expected = [], []
    for _ in range(400):
        result = decompose_variance(rng.normal(size=(3, 2, 4)) + rng.normal(size=4))  # seeds differ
        shares.append(result.effects[0,].sum_of_squares / result.total)
        expected.append(result.compute_noise_share(result.effects[0,]))
    assert np.mean(shares) == pytest.approx(np.mean(expected), rel=0.1)


def test_equal_values_have_no_shares_and_incomplete_grids_are_errors():
    assert decompose_variance(np.full((2, 2, 3), 0.1)) is None
    with pytest.raises(ValueError, match="finite"):
        decompose_variance(np.array([[1.0, np.nan], [1.0, 2.0]]))
    with pytest.raises(ValueError, match="two options"):
        decompose_variance(np.ones((1, 3, 2)))


def test_option_means_use_complete_blocks_only():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(3, 2, 4))
    present = np.ones(values.shape, dtype=bool)
    present[1, 0, 3] = present[2, 1, 0] = present[2, 1, 2] = False
    blocks = [(b, s) for b in range(2) for s in range(4) if (b, s) not in [(0, 3), (1, 0), (1, 2)]]
    result = average_options(np.where(present, values, np.nan), present, 0)
    assert (result.n_blocks, result.n_combinations) == (5, 2)
    for option in range(3):
        assert result.means[option] == pytest.approx(np.mean([values[option, b, s] for b, s in blocks]))
        differences = [values[option, b, s] - values[0, b, s] for b, s in blocks]
        assert result.differences[option] == pytest.approx(np.mean(differences))
        by_cell = [
            np.mean([d for d, (b, _) in zip(differences, blocks, strict=True) if b == cell])
            for cell in (0, 1)
        ]
        assert result.ranges[option] == pytest.approx((min(by_cell), max(by_cell)))
    second = average_options(values, present, 1)
    assert second.means[1] == pytest.approx(
        np.mean([values[a, 1, s] for a in range(3) for s in range(4) if present[a, :, s].all()])
    )


def test_option_means_without_a_complete_block():
    present = np.array([[[True], [False]], [[False], [True]]])
    assert average_options(np.ones(present.shape), present, 0) is None


def test_balanced_subset_drops_the_seed_or_option_that_misses_most():
    present = np.ones((3, 2, 4), dtype=bool)
    assert find_balanced_subset(present) == [[0, 1, 2], [0, 1], [0, 1, 2, 3]]
    present[2, 1, 3] = False
    assert find_balanced_subset(present) == [[0, 1, 2], [0, 1], [0, 1, 2]]
    present[2, 1] = False
    assert find_balanced_subset(present) == [[0, 1], [0, 1], [0, 1, 2, 3]]
    present[0, 0, 1] = False
    assert find_balanced_subset(present) == [[0, 1], [0, 1], [0, 2, 3]]


def test_no_balanced_subset_keeps_two_options_of_each_axis():
    present = np.ones((2, 2, 3), dtype=bool)
    present[1, 1] = False
    assert find_balanced_subset(present) is None
    assert find_balanced_subset(np.ones((1, 3, 2), dtype=bool)) is None
    assert find_balanced_subset(np.zeros((3, 3, 2), dtype=bool)) is None
