import pytest

from attnlab.errors import Refused
from attnlab.sweep.plan.matching import solve


@pytest.mark.parametrize(
    ("target", "value"), [(1000, 99), (1004, 99), (1006, 100), (20, 1), (1_000_010, 100_000)]
)
def test_an_affine_figure_is_met_as_nearly_as_an_integer_can(target, value):
    asked = []

    def figure(value):
        asked.append(value)
        return 10 + 10 * value

    assert solve(figure, target, 64, what="parameters") == value
    assert len(asked) < 30


def test_a_curved_figure_is_met_too():
    assert solve(lambda value: value**2 + value, 7**2 + 7, 100, what="flops") == 7


def test_a_figure_out_of_reach_is_refused():
    with pytest.raises(Refused, match="above the baseline's even at 1"):
        solve(lambda value: 100 + value, 50, 8, what="parameters")
    with pytest.raises(Refused, match="does not grow"):
        solve(lambda value: 5, 50, 8, what="kv_bytes_per_token")
