"""The search finds the known best learning rate, also beyond the edges of the grid."""

import math

import pytest
import torch

from attnlab.measure.studies.learning_rates import LearningRateSearch, interpolate_minimum, search_grid
from attnlab.model.build import build_model, instantiate_config

torch.set_num_threads(1)


@pytest.mark.parametrize("best", [-5.3, 0.2, 1.4, 7.6])
def test_the_minimum_of_a_parabola_is_found_at_any_position(best):
    evaluated_points = []
    losses = search_grid(lambda n: evaluated_points.append(n) or (n - best) ** 2, 4)
    assert interpolate_minimum(losses) == pytest.approx(best)
    assert len(evaluated_points) == len(set(evaluated_points))


def test_next_to_a_diverged_rate_the_best_is_a_grid_point():
    losses = search_grid(lambda n: math.inf if n > 2 else (n - 5.0) ** 2, 4)
    assert interpolate_minimum(losses) == 2


def test_smaller_rates_are_tried_if_all_diverged():
    losses = search_grid(lambda n: math.inf if n > -3 else (n + 5.0) ** 2, 3)
    assert interpolate_minimum(losses) == pytest.approx(-5)


def test_a_best_rate_beyond_all_extensions_is_an_error():
    with pytest.raises(FloatingPointError, match="the best of 15 learning rates is at the edge of the grid"):
        search_grid(lambda n: float(-n), 3)


def test_every_rate_starts_from_the_same_weights(compose):
    config = compose("data.val_windows=8")
    data = instantiate_config(config["data"])
    curves = []
    for count in (3, 4):
        module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size)).eval()
        result = LearningRateSearch(4, 0.001, count, 1.0)(module, data, "cpu")
        curves.append(result.series["loss_by_millionths"])
        assert set(result.metrics) == {metric.name for metric in LearningRateSearch.metrics}
        assert not module.training
    shared = curves[0].keys() & curves[1].keys()
    assert len(shared) >= 3
    assert all(curves[0][rate] == curves[1][rate] for rate in shared)
    assert len(set(curves[0].values())) == len(curves[0])


@pytest.mark.parametrize(("first", "count"), [(0.0, 3), (0.1, 2)])
def test_an_invalid_grid_is_rejected(first, count):
    with pytest.raises(ValueError, match="needs first > 0 and count >= 3"):
        LearningRateSearch(4, first, count, None)
