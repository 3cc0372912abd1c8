"""Costs counted in built models equal live caches and the formulas of generation, for every kind of layer."""

import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache
from attnlab.cli.run_config import compose_run_config
from attnlab.inference_cost.serving_cost import Serving, compute_serving_cost
from attnlab.measure.generation_costs import predict_generation_cost
from attnlab.measure.module_costs import count_module_cost
from attnlab.measure.resources import reference_kernel
from attnlab.model.build import build_model

VOCABULARY, LENGTH, BATCH = 31, 23, 3
SIZE = ["model.dim=32", "model.n_heads=4", "model.n_layers=4", "model.ffn_width=37"]
KINDS = {
    "heads=gqa": {"full"},
    "heads=mla": {"latent"},
    "mask=window_sinks": {"sliding window"},
    "layers=yoco": {"sliding window", "full", "shared K/V"},
    "layers=cross_layer": {"full", "shared K/V"},
    "model=linear_decay": {"linear state"},
    "model=gated_delta": {"delta state, convolution"},
    "layers=delta_one_in_two": {"delta state, convolution", "full"},
    "+preset=kimi_linear": {"delta state, convolution", "latent"},
    "convolution=kv": {"full, convolution"},
    "score=forget": {"full"},
    "score=multi_token": {"full"},
    "position=learned": {"full"},
    "values=embedding": {"full"},
}


def compose(override):
    return compose_run_config([override, *SIZE])


@pytest.fixture(scope="module", params=KINDS)
def case(request):
    config = compose(request.param)
    return request.param, config, build_model(config, VOCABULARY).eval().bfloat16()


@pytest.mark.rare
@torch.no_grad()
def test_cached_bytes_equal_the_live_caches(case):
    override, config, model = case
    cost = count_module_cost(config, VOCABULARY, torch.bfloat16)
    assert {layer.kind for layer in cost.layers} == KINDS[override]
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    caches = [
        DynamicCache() if layer.window is None else SlidingWindowCache(layer.window - 1)
        for layer in cost.layers
    ]
    with reference_kernel(model):
        model(torch.zeros(BATCH, LENGTH, dtype=torch.long), caches=caches)
    served = compute_serving_cost(cost, Serving(LENGTH, BATCH, "bf16", "bf16", None))
    assert served.cache_bytes == sum(cache.live_bytes() for cache in caches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_a_forget_gate_are_cached_in_float32_in_any_format(dtype):
    [layer, *_] = count_module_cost(compose("score=forget"), VOCABULARY, dtype).layers
    assert layer.cached_widths == (32, 32)
    assert layer.fixed_bytes_per_token == 4 * 4


@pytest.mark.rare
@pytest.mark.parametrize(
    "override",
    [
        "heads=gqa",
        "heads=mla",
        "heads=tpa",
        "score=forget",
        "normalizer=talking",
        "residual=hyper_connections",
    ],
)
def test_flops_of_a_step_equal_the_formula_of_generation(override):
    config = compose(override)
    served = compute_serving_cost(
        count_module_cost(config, VOCABULARY, torch.float32), Serving(LENGTH, BATCH, "fp32", "fp32", None)
    )
    model = build_model(config, VOCABULARY)
    first, both = (
        predict_generation_cost(model, BATCH, LENGTH, new_tokens, cached=True).flops for new_tokens in (1, 2)
    )
    assert served.decode_flops == both - first


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("mask=moba", "selection"),
        ("mask=full", "masks"),
        ("mask=random_blocks", "selection"),
        ("position=path", "not linear"),
        ("model=lstm", "decode=none"),
        ("position=rope_dynamic_ntk", "decode=none"),
    ],
)
def test_models_without_a_formula_are_refused_by_their_key(override, key):
    with pytest.raises(ValueError, match=key):
        count_module_cost(compose(override), VOCABULARY, torch.float32)
