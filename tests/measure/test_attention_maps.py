"""Attention maps equal the eager kernel's weights and leave the model unchanged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.measure.attention_maps import (
    capture_layer_inputs,
    compute_attention_maps,
    encode_weights,
    find_attention_layers,
    validate_head_counts,
)
from attnlab.measure.head_scoring import compute_head_scores
from attnlab.model.build import build_model

torch.set_num_threads(1)


def test_rows_sum_to_one_and_the_future_is_empty(compose):
    maps = compute_attention_maps(build_model(compose("heads=gqa"), 31), torch.arange(11)[None])
    assert maps.weights.shape == (2, 4, 11, 11)
    torch.testing.assert_close(maps.weights.sum(-1), torch.ones(2, 4, 11))
    assert (maps.weights.triu(1) == 0).all()
    assert torch.equal(maps.visible, torch.ones(2, 11, 11, dtype=torch.bool).tril())
    assert maps.kv_groups.tolist() == [[0, 0, 1, 1]] * 2


def test_the_difference_between_eager_and_configured_kernel_is_reported(compose):
    fused = compute_attention_maps(build_model(compose("kernel=sdpa"), 31), torch.arange(11)[None])
    same = compute_attention_maps(build_model(compose("kernel=eager"), 31), torch.arange(11)[None])
    assert 0 <= fused.kernel_difference < 1e-5
    assert same.kernel_difference == 0


def test_computing_maps_leaves_the_model_unchanged(compose):
    model = build_model(compose("model.dropout=0.5"), 31).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    kernels = [block.mixer.kernel for block in model.blocks]
    compute_attention_maps(model, torch.arange(11)[None])
    assert model.training
    assert [block.mixer.kernel for block in model.blocks] == kernels
    assert not any(block.mixer._forward_pre_hooks for block in model.blocks)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_a_model_without_attention_has_no_maps(compose):
    assert (
        compute_attention_maps(build_model(compose("model=gru", "position=none"), 31), torch.arange(5)[None])
        is None
    )


def test_a_hybrid_has_maps_and_scores_of_its_attention_layers(compose):
    model = build_model(compose("layers=delta_one_in_two", "model.n_layers=4", "heads=gqa"), 31)
    maps = compute_attention_maps(model, torch.arange(16)[None])
    assert maps.layers == [1, 3]
    assert maps.weights.shape == (2, 4, 16, 16)
    scores = compute_head_scores(model, [torch.arange(16)[None] % 7], 16)
    for name in ("previous", "induction", "copying", "positional"):
        assert [len(row) for row in scores[name]] == [0, 4, 0, 4]


def test_encoded_weights_have_an_error_below_0_004():
    weights = torch.linspace(0, 1, 10007)
    decoded = (encode_weights(weights).astype(np.float64) / 255) ** 2
    assert np.abs(decoded - weights.numpy()).max() < 0.004


def test_keys_visible_to_any_head_are_visible(compose):
    def by_head(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & ((h > 0) | (kv_idx == q_idx))

    model = build_model(compose(), 31)
    for block in model.blocks:
        block.mixer.mask = by_head
    maps = compute_attention_maps(model, torch.arange(11)[None])
    assert torch.equal(maps.visible, torch.ones(2, 11, 11, dtype=torch.bool).tril())


@pytest.mark.parametrize(
    "option", ["values=embedding", "values=residual", "layers=yoco", "layers=cross_layer"]
)
def test_captured_inputs_include_shared_tensors(compose: Callable[..., Any], option: str) -> None:
    config = compose("model.dim=32", "model.n_heads=4", "model.n_layers=4", "kernel=eager", option)
    model = build_model(config, 23).eval()
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda *passed: outputs.append(passed[-1]))
        for layer in find_attention_layers(model).values()
    ]
    inputs = capture_layer_inputs(model, torch.arange(12)[None] % 7)
    for hook in hooks:
        hook.remove()
    assert len(inputs) == len(outputs) == 4
    for layer_input, output in zip(inputs, outputs, strict=True):
        assert torch.equal(layer_input.layer.heads.merge(layer_input.attend().out), output)


def test_layers_with_different_numbers_of_heads_are_rejected(
    compose: Callable[..., Any],
) -> None:
    sizes = ["model.dim=32", "model.n_heads=4", "model.n_layers=2"]
    validate_head_counts(build_model(compose(*sizes), 23))
    config = compose(*sizes, "++model.layers=[{},{heads:{n_heads:2,n_kv_heads:2}}]")
    with pytest.raises(ValueError, match="attention layers have 2 and 4 heads"):
        validate_head_counts(build_model(config, 23))
