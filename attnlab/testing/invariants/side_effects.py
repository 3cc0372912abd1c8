"""Invariants of side effects: a call changes nothing but its cache, and depends on its arguments alone."""

from contextlib import suppress

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Unsupported
from attnlab.model.build import instantiate_config
from attnlab.testing.invariants.masks_and_scores import draw_long_input
from attnlab.testing.invariants.variant import Variant, assert_close


@torch.no_grad()
def check_calls_have_no_side_effects(variant: Variant) -> None:
    """27. In evaluation, a call changes neither its input nor the layer nor torch's random state, and repeats
    its result after other inputs. Two sequences can be decoded in turn.
    """
    layer = variant.make_layer()
    x, other = draw_long_input(variant, 2, variant.length).split(1)
    before = {name: tensor.clone() for name, tensor in _list_tensors(layer).items()}
    original_x = x.clone()
    random_state = torch.get_rng_state()
    expected = layer(x)
    assert torch.equal(x, original_x), "the call changes its input"
    assert torch.equal(random_state, torch.get_rng_state()), "evaluation draws random numbers"
    layer(draw_long_input(variant, 3, variant.length + 1))
    with suppress(Unsupported):
        _decode_in_turn(variant, layer, x, other, expected)
    assert torch.equal(layer(x), expected), "the same input has another output after other calls"
    for name, tensor in _list_tensors(layer).items():
        assert name in before, f"a call in evaluation adds {name}"
        assert torch.equal(tensor, before[name]), f"a call in evaluation changes {name}"


def _list_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _decode_in_turn(variant: Variant, layer: nn.Module, x: Tensor, other: Tensor, expected: Tensor) -> None:
    if variant.cache is None:
        return
    cache, other_cache = variant.make_cache(), variant.make_cache()
    cut = max(1, variant.length - 2)
    layer(x[:, :cut], cache=cache)
    layer(other[:, :cut], cache=other_cache)
    for n in range(cut, variant.length):
        actual = layer(x[:, n : n + 1], cache=cache)
        layer(other[:, n : n + 1], cache=other_cache)
        assert_close(actual, expected[:, n : n + 1], f"token {n}, decoded in turn with another sequence")


@torch.no_grad()
def check_loaded_weights_determine_outputs(variant: Variant) -> None:
    """27. Weights that are loaded into another instance, made in another random state, compute the same
    outputs: all that is random is saved with the weights or drawn from a fixed seed.
    """
    with torch.random.fork_rng(devices=[]):
        layers = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            layers.append(instantiate_config(variant.attention).double().eval())
    first, second = layers
    second.load_state_dict(first.state_dict())
    x = variant.make_input()
    assert_close(second(x), first(x), "weights loaded into another instance")


@torch.no_grad()
def check_training_keeps_random_state(variant: Variant) -> None:
    """27. A training pass draws its random numbers from torch's generator and never resets it."""
    model = variant.make_model(n_layers=1).train()
    states = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            torch.manual_seed(seed)
            model(variant.make_tokens())
            states.append(torch.get_rng_state())
    assert not torch.equal(*states), "a training pass resets torch's random generator"
