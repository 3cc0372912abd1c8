"""Budget matching: solving for the config value with the closest budget."""

import pytest

from attnlab.errors import InvalidConfig
from attnlab.sweep.plan.budget_matching import solve_for_target


@pytest.mark.parametrize(
    ("target", "value"), [(1000, 99), (1004, 99), (1006, 100), (20, 1), (1_000_010, 100_000)]
)
def test_affine_figure_is_matched_to_nearest_integer(target, value):
    evaluated = []

    def figure(value):
        evaluated.append(value)
        return 10 + 10 * value

    assert solve_for_target(figure, target, 64, figure_name="parameters") == value
    assert len(evaluated) < 30


def test_curved_figure_is_matched():
    assert solve_for_target(lambda value: value**2 + value, 7**2 + 7, 100, figure_name="flops") == 7


def test_unreachable_target_fails():
    with pytest.raises(InvalidConfig, match="exceeds the baseline's even with the key at 1"):
        solve_for_target(lambda value: 100 + value, 50, 8, figure_name="parameters")
    with pytest.raises(InvalidConfig, match="does not grow"):
        solve_for_target(lambda value: 5, 50, 8, figure_name="kv_bytes_per_token")
