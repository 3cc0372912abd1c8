"""Configs by lot: each is saved, and read by `transformers` with equal logits, or refused with the key."""

import copy
import json
import random
import re

import pytest
import torch
from omegaconf import OmegaConf
from sampling import FULL
from test_families import CASES, SIZES, TOKENS, VOCABULARY, logits, read_by_them, same, theirs

from attnlab.attention.contracts import Unsupported
from attnlab.model.build import build_model
from attnlab.model.huggingface.convert import load, save
from attnlab.testing.laws.compose import AXES, options
from attnlab.testing.laws.variant import randomised

DRAWN = 240 if FULL else 24
WINDOW = {"_target_": "attnlab.attention.masks.window.window", "size": 4}
YARN = {"_target_": "attnlab.attention.scaling.Yarn", "factor": 4.0, "trained": 5}
SIZE = {"dim": [24, 48], "n_heads": [2, 4, 6], "n_layers": [1, 2, 3]}
CHANGES = {
    "norm.eps": [1e-5, 1e-3],
    "tie": [True, False],
    "bias": [True, False],
    "block": [None, {"norms": "post"}, {"norms": "sandwich"}, {"parallel": True}, {"multiplier": 0.5},
              {"parallel": True, "shared_norm": True}],
    "embedding_scale": [1.0, 24**0.5, 2.0],
    "logit_cap": [None, 3.0],
    "logit_scale": [1.0, 0.5],
    "layers": [None, [{}, {"rotary": None}], [{"masks": {"near": WINDOW}}, {}],
               [{"rotary": {"base": 70.0}}, {}, {"masks": {"window": WINDOW}}], [{"dropout": 0.1}]],
    "ffn.activation": ["silu", "gelu_tanh"],
    "ffn.approximate": ["none", "tanh"],
    "attention.multiplier": [1.0, 0.7],
    "attention.scale_exponent": [-0.5, 0, -1],
    "attention.masks.window": [None, WINDOW, {**WINDOW, "keep": 1}],
    "attention.scores": [{}, {"cap": {"_target_": "attnlab.attention.scores.softcap.softcap", "cap": 2.0}}],
    "attention.heads.bias": [True, False],
    "attention.heads.out_bias": [True, False],
    "attention.heads.qk_norm": [True, False],
    "attention.heads.norm_over": ["head", "width"],
    "attention.heads.norm_eps": [1e-6, 1e-5],
    "attention.heads.n_kv_heads": [1, 2, 6],
    "attention.heads.head_dim": [4, 10],
    "attention.rotary": [None],
    "attention.rotary.base": [70.0, 10000.0],
    "attention.rotary.fraction": [0.5, 1.0],
    "attention.rotary.scaling": [
        None, YARN, YARN | {"ramp": "index"}, YARN | {"ramp": "index", "magnitude": 1.2, "truncate": False},
        {"_target_": "attnlab.attention.scaling.Interpolation", "factor": 2.0},
        {"_target_": "attnlab.attention.scaling.Ntk", "factor": 2.0},
    ],
}  # fmt: skip
BLOCK = {"_target_": "attnlab.model.block.Block", "_partial_": True}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Our config of each family's cases."""
    configs = []
    for kind, changes in CASES.items():
        for change in changes:
            folder = tmp_path_factory.mktemp(kind)
            theirs(kind, SIZES | change).save_pretrained(folder)
            configs.append(load(folder)[0])
    return configs


def changed(config, lot):
    """A config of a family with up to three of its leaves drawn anew."""
    config = copy.deepcopy(config)
    for path in lot.sample(sorted(CHANGES), lot.randint(0, 3)):
        value = copy.deepcopy(lot.choice(CHANGES[path]))
        *outer, leaf = path.split(".")
        node = config
        for name in outer:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[leaf] = BLOCK | value if path == "block" and value else value
    return config


def composed(compose, lot):
    """A config of our axes and sizes."""
    axes = {axis: lot.choice(options(axis)) for axis in lot.sample(AXES[:-2], lot.randint(0, 3))}
    beside = {
        axis: lot.choice(options(axis)) for axis in ("block", "layers", "residual") if lot.random() < 0.3
    }
    sizes = {f"model.{name}": lot.choice(some) for name, some in SIZE.items()}
    bias = {"model.bias": lot.choice(["true", "false"]), "model.tie": lot.choice(["true", "false"])}
    chosen = {"model": lot.choice(["gpt", "llama"]), **axes, **beside, **sizes, **bias, "kernel": "eager"}
    return compose(*(f"{name}={value}" for name, value in chosen.items()))["model"]


def refusal(folder, model, config):
    """Why it cannot be saved; None where it was."""
    try:
        save(folder, model, config)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.rare
@pytest.mark.timeout(1200)
def test_what_is_drawn_is_saved_for_transformers_or_refused_with_its_key(known, compose, tmp_path):
    lot, saved, refused = random.Random(0), 0, 0
    while saved + refused < DRAWN:
        folder = tmp_path / str(saved + refused)
        try:
            config = changed(lot.choice(known), lot) if lot.random() < 0.6 else composed(compose, lot)
            config = json.loads(json.dumps(config))
            OmegaConf.create(config)
            model = randomised(build_model({"model": config}, VOCABULARY)).double().eval()
            with torch.no_grad():
                want = model(TOKENS)
        except (ValueError, Unsupported, TypeError):
            continue  # it is no model
        reason = refusal(folder, model, config)
        if reason is None:
            same(logits(read_by_them(folder), TOKENS), want)
            saved += 1
        else:
            assert re.fullmatch(r"no family can .* cannot have model\.[\w.\[\]]+ = .*", reason)
            assert not folder.exists()
            refused += 1
    assert min(saved, refused) > DRAWN // 4
