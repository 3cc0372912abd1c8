"""Model construction from a config: layer patches repeat and replace parts."""

from attnlab.attention.masks.causal import causal
from attnlab.model.build import build_model, list_mixer_configs


def test_layer_patches_repeat_over_layers(compose):
    window = "{masks: {window: {_target_: attnlab.attention.masks.window.window, size: 3}}}"
    config = compose("model.n_layers=5", f"model.layers=[{{}},{{rotary: null}},{window}]")
    model = build_model(config, 7)
    has_rotary = [block.mixer.rotary is not None for block in model.blocks]
    assert has_rotary == [True, False, True, True, False]
    masks = [block.mixer.mask for block in model.blocks]
    assert [mask is causal for mask in masks] == [True, True, False, True, True]
    assert masks[2].parts[0] is causal
    assert masks[2].visible_window == (3, 0)


def test_layer_patch_with_another_target_replaces_the_part():
    gru = {"_target_": "attnlab.model.recurrent.RecurrentMixer", "dim": 64, "width": 32}
    sinks = {"_target_": "attnlab.attention.epilogue.Sinks", "n_heads": 4}
    gate = {"_target_": "attnlab.attention.epilogue.Gate", "dim": 64, "n_heads": 4, "head_dim": 16}
    attention = {"_target_": "attnlab.attention.layer.Attention", "dropout": 0.5, "epilogue": gate}
    model = {"attention": attention, "layers": [{}, gru, {"epilogue": sinks}, {"epilogue": {"start": 1.0}}]}
    plain, replaced, other, patched = list_mixer_configs({"model": model})
    assert (plain, replaced) == (attention, gru)
    assert other == {**attention, "epilogue": sinks}
    assert patched == {**attention, "epilogue": {**gate, "start": 1.0}}
