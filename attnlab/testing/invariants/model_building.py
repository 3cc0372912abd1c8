"""Invariants of construction and training: shapes, and two training steps."""

import re
from typing import Any

import torch
import torch.nn.functional as F

from attnlab.testing.invariants.variant import VOCABULARY, Variant


def check_builds(variant: Variant) -> None:
    """0. The config builds a layer that preserves the shape of its input and the dtype of its weights."""
    assert variant.attention.get("_target_"), "the config has no _target_"
    if variant.is_attention and variant.prototype.mask is not None:
        _require_valid_mask(variant.prototype.mask)
    x = variant.make_input()
    with torch.no_grad():
        y = variant.make_layer()(x)
    assert y.shape == x.shape, f"the layer maps {tuple(x.shape)} to {tuple(y.shape)}"
    assert y.dtype == x.dtype, f"the layer changes float64 to {y.dtype}"


def _require_valid_mask(mask: Any) -> None:
    try:
        hash(mask)
    except TypeError as error:
        raise AssertionError(f"a mask must be hashable: {error}; use a tuple, or freeze it") from None
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    dtype = mask(zero, zero, zero, zero).dtype
    assert dtype == torch.bool, f"a mask must return bool, got {dtype}"


def check_trains(variant: Variant) -> None:
    """18. Two training steps in float32, initialized as for training, give finite losses, and every
    parameter a gradient, with rotary positions and without.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of dropout
        _require_training_reaches_parameters(variant)
        if variant.attention.get("rotary") is not None:
            _require_training_reaches_parameters(variant.with_changes(rotary=None))


def _require_training_reaches_parameters(variant: Variant) -> None:
    # in the first layer, a mixture of earlier outputs has only one
    model = variant.make_model(n_layers=2 if variant.residual else 1, seed=0).float().train()
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    reached = set()
    tokens = variant.make_tokens()
    for _ in range(2):
        auxiliary: dict[str, Any] = {}
        logits = model(tokens, auxiliary_losses=auxiliary)
        logits = logits[:, :-1] if tokens.shape[1] > 1 else logits
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, -logits.shape[1] :].flatten())
        loss = loss + sum(model.auxiliary_weights[name] * value for name, value in auxiliary.items())
        assert loss.isfinite(), "the loss is not finite"
        model.zero_grad()
        loss.backward()
        for name, parameter in trained.items():
            assert parameter.grad is not None, f"{name} gets no gradient"
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
            if parameter.grad.any():
                reached.add(_remove_layer(name))
            parameter.data -= parameter.grad
    if variant.length > 3:
        unreached = [name for name in trained if _remove_layer(name) not in reached]
        assert not unreached, f"parameters whose gradient is always zero: {', '.join(unreached)}"


def _remove_layer(name: str) -> str:
    """Name of a parameter without the number of its layer."""
    return re.sub(r"^blocks\.\d+\.", "blocks.", name)
