"""From a config to a model: patches of layers."""

from attnlab.attention.masks.causal import causal
from attnlab.model.build import build_model, mixer_configs


def test_a_patch_of_layers_repeats_over_them(compose):
    window = "{masks: {window: {_target_: attnlab.attention.masks.window.window, size: 3}}}"
    config = compose("model.n_layers=5", f"model.layers=[{{}},{{rotary: null}},{window}]")
    model = build_model(config, 7)
    turning = [block.mixer.rotary is not None for block in model.blocks]
    assert turning == [True, False, True, True, False]
    masks = [block.mixer.mask for block in model.blocks]
    assert [mask is causal for mask in masks] == [True, True, False, True, True]
    assert masks[2].parts[0] is causal
    assert masks[2].within == (3, 0)


def test_a_patch_of_layers_puts_one_part_in_the_place_of_another():
    gru = {"_target_": "attnlab.model.recurrent.Recurrent", "dim": 64, "width": 32}
    sinks = {"_target_": "attnlab.attention.epilogue.Sinks", "n_heads": 4}
    gate = {"_target_": "attnlab.attention.epilogue.Gate", "dim": 64, "n_heads": 4, "head_dim": 16}
    attention = {"_target_": "attnlab.attention.layer.Attention", "dropout": 0.5, "epilogue": gate}
    model = {"attention": attention, "layers": [{}, gru, {"epilogue": sinks}, {"epilogue": {"start": 1.0}}]}
    plain, replaced, other, patched = mixer_configs({"model": model})
    assert (plain, replaced) == (attention, gru)
    assert other == {**attention, "epilogue": sinks}
    assert patched == {**attention, "epilogue": {**gate, "start": 1.0}}
