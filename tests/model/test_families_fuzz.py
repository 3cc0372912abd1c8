"""Random configs: each converts with equal logits in `transformers`, or fails with the name of its key."""

import copy
import itertools
import json
import random
import re

import pytest
import torch
from omegaconf import OmegaConf
from sampling import FULL
from test_families import (
    CASES,
    SIZES,
    TOKENS,
    VOCABULARY,
    assert_close_logits,
    compute_hf_logits,
    load_with_transformers,
    make_hf_model,
)

from attnlab.attention.contracts import Unsupported
from attnlab.model.build import build_model
from attnlab.model.huggingface.canonical_config import canonicalize_config
from attnlab.model.huggingface.config_values import require_bool
from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model
from attnlab.model.huggingface.families import FAMILIES
from attnlab.model.huggingface.families.read_config import convert_config_to_ours
from attnlab.testing.invariants.variant import randomize
from attnlab.testing.invariants.variant_composition import AXES, list_options

N_CONFIGS = 240 if FULL else 24
WINDOW = {"_target_": "attnlab.attention.masks.window.window", "size": 4}
YARN = {"_target_": "attnlab.attention.rotary_scaling.Yarn", "factor": 4.0, "trained": 5}
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
        {"_target_": "attnlab.attention.rotary_scaling.Interpolation", "factor": 2.0},
        {"_target_": "attnlab.attention.rotary_scaling.Ntk", "factor": 2.0},
    ],
}  # fmt: skip
BLOCK = {"_target_": "attnlab.model.block.Block", "_partial_": True}


@pytest.fixture(scope="module")
def family_configs(tmp_path_factory):
    """Our configs of all cases of all families."""
    configs = []
    for kind, changes in CASES.items():
        for change in changes:
            folder = tmp_path_factory.mktemp(kind)
            make_hf_model(kind, SIZES | change).save_pretrained(folder)
            configs.append(load_hf_model(folder)[0])
    return configs


def perturb_config(config, rng):
    """Copy a family's config with up to three leaves drawn at random."""
    config = copy.deepcopy(config)
    for path in rng.sample(sorted(CHANGES), rng.randint(0, 3)):
        value = copy.deepcopy(rng.choice(CHANGES[path]))
        *outer, leaf = path.split(".")
        node = config
        for name in outer:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[leaf] = BLOCK | value if path == "block" and value else value
    return config


def compose_random_config(compose, rng):
    """Compose a config from random axes and sizes."""
    axes = {axis: rng.choice(list_options(axis)) for axis in rng.sample(AXES[:-2], rng.randint(0, 3))}
    structure = {
        axis: rng.choice(list_options(axis)) for axis in ("block", "layers", "residual") if rng.random() < 0.3
    }
    sizes = {f"model.{name}": rng.choice(values) for name, values in SIZE.items()}
    flags = {"model.bias": rng.choice(["true", "false"]), "model.tie": rng.choice(["true", "false"])}
    choices = {
        "model": rng.choice(["gpt", "llama"]),
        **axes,
        **structure,
        **sizes,
        **flags,
        "kernel": "eager",
    }
    return compose(*(f"{name}={value}" for name, value in choices.items()))["model"]


def try_save(folder, model, config):
    """Save a model and return the error message, or None."""
    try:
        save_hf_model(folder, model, config)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.rare
@pytest.mark.timeout(1200)
def test_random_configs_convert_exactly_or_fail_with_their_key(family_configs, compose, tmp_path):
    rng, n_saved, n_rejected = random.Random(0), 0, 0
    while n_saved + n_rejected < N_CONFIGS:
        folder = tmp_path / str(n_saved + n_rejected)
        try:
            config = (
                perturb_config(rng.choice(family_configs), rng)
                if rng.random() < 0.6
                else compose_random_config(compose, rng)
            )
            config = json.loads(json.dumps(config))
            OmegaConf.create(config)
            model = randomize(build_model({"model": config}, VOCABULARY)).double().eval()
            with torch.no_grad():
                expected = model(TOKENS)
        except (ValueError, Unsupported, TypeError):
            continue  # not a valid model
        message = try_save(folder, model, config)
        if message is None:
            assert_close_logits(compute_hf_logits(load_with_transformers(folder), TOKENS), expected)
            n_saved += 1
        else:
            assert re.fullmatch(
                r"no family can express this model; the nearest, \w+, does not support model\..+ = .+",
                message,
            )
            assert not folder.exists()
            n_rejected += 1
    assert min(n_saved, n_rejected) > N_CONFIGS // 4


N_PER_FAMILY = 60 if FULL else 1
GPT2_SIZES = {"n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 32}
GELUS = ["gelu", "gelu_new"]
DOMAINS = {  # values of their keys besides switches, most unusual first
    "num_key_value_heads": [1, 2, 6], "num_kv_heads": [1, 2, 6], "sliding_window": [None, 5],
    "head_dim": [None, 4, 10], "hidden_act": GELUS, "activation_function": GELUS, "activation": GELUS,
    "hidden_activation": ["gelu", "silu", "gelu_new"], "layers": [], "alibi": [True, False],
}  # fmt: skip
FALCON_SWITCHES = {
    "multi_query": [True, False], "new_decoder_architecture": [True, False],
    "num_ln_in_parallel_attn": [None, 1, 2],
}  # fmt: skip


def iterate_describable_configs(kind):
    """Yield distinct configs of ours that a family describes: the most unusual one, then random ones."""
    keys = FAMILIES[kind].keys
    axes = {key.theirs: [True, False] for key in keys if key.read is require_bool}
    axes |= {key.theirs: DOMAINS[key.theirs] for key in keys if key.theirs in DOMAINS}
    if axes.pop("layers", None) is not None:
        axes |= {"use_sliding_window": [True, False], "sliding_window": [5, None]}
    axes |= FALCON_SWITCHES if kind == "falcon" else {}
    base = {"model_type": kind, **SIZES, **(CASES[kind] or [GPT2_SIZES])[0]}
    first, *others = itertools.product(*axes.values())
    seen = set()
    for values in [first, *random.Random(kind).sample(others, len(others))]:
        try:
            config = convert_config_to_ours(FAMILIES[kind], base | dict(zip(axes, values, strict=True)), True)
        except ValueError:
            continue
        config = json.loads(json.dumps(config))
        canonical = json.dumps(canonicalize_config(config), sort_keys=True)
        if canonical not in seen:
            yield config
        seen.add(canonical)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_model_that_a_family_describes_is_saved_with_equal_logits(kind, tmp_path):
    """A family earlier in the table may be written instead, as Falcon for StarCoder2 with one KV head."""
    n_saved = 0
    for config in iterate_describable_configs(kind):
        try:
            model = randomize(build_model({"model": config}, VOCABULARY)).double().eval()
        except ValueError:
            continue  # not a valid model
        folder = tmp_path / str(n_saved)
        save_hf_model(folder, model, config)
        with torch.no_grad():
            assert_close_logits(load_hf_model(folder)[1](TOKENS), model(TOKENS))
        n_saved += 1
        if n_saved == N_PER_FAMILY:
            break
    assert n_saved
