"""Model construction from a config: layer patches repeat and replace parts."""

import pytest
import torch

from attnlab.attention.contracts import Capabilities
from attnlab.attention.masks.causal import causal
from attnlab.model.build import build_model, list_mixer_configs
from attnlab.model.huggingface.canonical_config import canonicalize_config
from attnlab.store.fingerprint import strip_excluded_keys


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


@pytest.mark.parametrize("layers", ["cross_layer", "yoco"])
def test_layers_that_read_shared_keys_have_the_queries_of_the_others(compose, layers):
    heads = "model.attention.heads"
    overrides = [
        f"{heads}.bias=true",
        f"{heads}.out_bias=true",
        f"{heads}.head_dim=6",
        f"+{heads}.norm_eps=0.1",
    ]
    options = ["model.n_layers=4", "score=qk_norm", "model.qk_gain=1.0"]
    model = build_model(compose(f"layers={layers}", *options, *overrides), 7)
    assert any(block.mixer.reads_shared_kv for block in model.blocks)
    for block in model.blocks:
        heads = block.mixer.heads
        queries = heads.projection.weight.split(heads.projection.widths)[0]
        assert queries.shape == (24, 16)
        assert queries.std().item() == pytest.approx(1 / 16**0.5, rel=0.1)
        assert heads.q_norm.eps == 0.1
        assert heads.projection.bias is not None
        assert heads.out.bias is not None


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize(
    ("option", "n_local", "n_patches"),
    [("local_global", 1, 2), ("local_global_3_to_1", 3, 4), ("local_global_5_to_1", 5, 6),
     ("nope_global", 1, 2), ("yoco", 1, 4)],
)  # fmt: skip
def test_window_of_all_local_layers_is_one_key(compose, option, n_local, n_patches, window):
    overrides = [] if window is None else [f"model.window={window}"]
    model = build_model(compose(f"layers={option}", "model.n_layers=12", *overrides), 7)
    windows = [Capabilities.from_part(block.mixer.mask).visible_window for block in model.blocks]
    pattern = [(window or 16, 0)] * n_local + [None] * (n_patches - n_local)
    assert windows == pattern * (12 // n_patches)


def test_window_key_alone_changes_neither_model_nor_run(compose):
    patch = "{masks: {local: {_target_: attnlab.attention.masks.window.window, size: 16, keep: 0}}}"
    preset, plain = compose("layers=local_global"), compose(f"model.layers=[{patch},{{}}]")
    assert (
        strip_excluded_keys(preset)
        == strip_excluded_keys(plain)
        != strip_excluded_keys(compose("layers=local_global", "model.window=17"))
    )
    assert canonicalize_config(preset["model"]) == canonicalize_config(plain["model"])
    tokens = torch.randint(31, (2, 40), generator=torch.Generator().manual_seed(0))
    assert torch.equal(build_model(preset, 31)(tokens), build_model(plain, 31)(tokens))
