"""The best rate is found where it was planted, beyond a grid's ends too, and never at one."""

import math

import pytest
import torch

from attnlab.measure.studies.rates import Rates, lowest, searched
from attnlab.model.build import build_model, make

torch.set_num_threads(1)


@pytest.mark.parametrize("best", [-5.3, 0.2, 1.4, 7.6])
def test_the_lowest_point_of_a_parabola_is_found_wherever_it_lies(best):
    asked = []
    losses = searched(lambda n: asked.append(n) or (n - best) ** 2, 4)
    assert lowest(losses) == pytest.approx(best)
    assert len(asked) == len(set(asked))


def test_beside_a_rate_that_diverged_the_best_is_a_point_of_the_grid():
    losses = searched(lambda n: math.inf if n > 2 else (n - 5.0) ** 2, 4)
    assert lowest(losses) == 2


def test_where_all_diverged_smaller_rates_are_tried():
    losses = searched(lambda n: math.inf if n > -3 else (n + 5.0) ** 2, 3)
    assert lowest(losses) == pytest.approx(-5)


def test_a_best_rate_that_has_no_end_is_none():
    with pytest.raises(FloatingPointError, match="the best of 15 rates lies at an end of them"):
        searched(lambda n: float(-n), 3)


def test_every_rate_starts_from_the_same_weights_and_the_run_has_them_back_in_evaluation(compose):
    config = compose("data.val_windows=8")
    data = make(config["data"])
    found = []
    for count in (3, 4):
        module = make(config["optim"], model=build_model(config, data.task.vocab_size)).eval()
        measured = Rates(4, 0.001, count, 1.0)(module, data, "cpu")
        found.append(measured.series["loss_by_millionths"])
        assert set(measured.metrics) == set(Rates(4, 0.001, count, 1.0).measures())
        assert not module.training
    shared = found[0].keys() & found[1].keys()
    assert len(shared) >= 3
    assert all(found[0][rate] == found[1][rate] for rate in shared)
    assert len(set(found[0].values())) == len(found[0])


@pytest.mark.parametrize(("first", "count"), [(0.0, 3), (0.1, 2)])
def test_a_grid_that_is_none_is_refused(first, count):
    with pytest.raises(ValueError, match="a first rate above 0 and a count of 3 or more"):
        Rates(4, first, count, None)
