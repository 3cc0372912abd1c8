"""Crossed designs: paired means of options."""

import numpy as np
import pytest

from attnlab.stats import average_options


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
