"""Counts equal values computed by hand."""

import pytest
import torch

from attnlab.measure import resources
from attnlab.model.build import build_model

torch.set_num_threads(1)


def test_parameter_counts_equal_the_formula(compose):
    d, v, layers = 16, 31, 2
    counts = resources.count_parameters(build_model(compose("heads=mqa"), v))
    attention = layers * (d * d + 2 * d * 4 + d * d)  # q, one head of k and v, out
    ffn, norms = layers * 2 * d * 4 * d, (2 * layers + 1) * d
    assert counts["parameters_attention"] == attention
    assert counts["parameters_non_embedding"] == attention + ffn + norms
    assert counts["parameters"] == attention + ffn + norms + v * d  # the head is the embedding


def test_flops_per_token_equal_the_formula(compose):
    d, v, T, layers = 16, 31, 13, 2
    with torch.device("meta"):
        model = build_model(compose("heads=mha"), v)
    products = layers * (4 * d * d + 8 * d * d) + v * d
    forward = 2 * products + layers * 2 * 2 * T * d  # scores and weighted values, the whole square
    backward = 2 * forward
    assert resources.count_flops_per_token(model, T) == forward + backward


def test_saved_bytes_count_each_storage_once_and_no_parameter():
    layer = torch.nn.Linear(5, 3, bias=False)
    x = torch.randn(7, 5)
    # x is saved by the product, its output by the square (twice, one storage): 35 + 21 floats
    assert resources.count_saved_bytes(lambda: (layer(x) ** 2).sum() + 0 * x.sum(), layer) == (35 + 21) * 4


@pytest.mark.parametrize(
    ("heads", "per_layer"),
    [("mha", 2 * 16), ("gqa", 2 * 8), ("mqa", 2 * 4), ("single", 2 * 16), ("mla", 8 + 2)],
)
def test_live_cache_bytes_equal_the_formula(compose, heads, per_layer):
    model = build_model(compose(f"heads={heads}"), 31).eval()
    assert model.state_size() == 2 * per_layer * 4
    assert resources.count_live_cache_bytes(model, torch.arange(11)[None]) == 2 * per_layer * 4
