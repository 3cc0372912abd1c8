"""DiffLlama: Llama with differential heads; the share that is taken off starts by the depth."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families.llama import LLAMA
from attnlab.model.huggingface.families.table import HEADS, LAYERS, Key, Layout, Row, keyed, over
from attnlab.model.huggingface.rotation import Config


def _values(tensor: Tensor, config: Config, outer: int) -> Tensor:
    """A wide value is two heads of theirs, half of all apart; here they are neighbours."""
    heads = config["attention"]["heads"]
    share = heads["n_heads"] + 2 * heads["n_kv_heads"]
    narrow = len(tensor) // share * heads["n_kv_heads"]
    before, v = tensor.tensor_split((len(tensor) - narrow,))
    inner = heads["n_kv_heads"] // outer
    return torch.cat((before, v.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)))


def _side_by_side(tensor: Tensor, config: Config) -> Tensor:
    return _values(tensor, config, 2)


def _apart(tensor: Tensor, config: Config) -> Tensor:
    return _values(tensor, config, config["attention"]["heads"]["n_kv_heads"] // 2)


def _rows(tensor: Tensor, config: Config) -> Tensor:
    return tensor.unflatten(0, (4, -1))


def _flat(tensor: Tensor, config: Config) -> Tensor:
    return tensor.flatten()


def _settled(theirs: Config) -> Config:
    starts = [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(windows.layers(theirs))]
    return rotation.settled(theirs) | {
        "layers": [{"heads": {"lambda_init": start}} for start in starts] or None
    }


def _spelled(theirs: Config) -> Config:
    return {key: value for key, value in theirs.items() if key != "layers"}  # they say nothing of it


DIFFLLAMA = replace(
    LLAMA,
    architecture="DiffLlamaForCausalLM",
    model=LLAMA.model
    | {
        "bias": False,
        "attention": LLAMA.model["attention"]
        | {
            "heads": {
                "_target_": "attnlab.attention.heads.differential.DifferentialHeads",
                "norm_gain": False,
            }
        },
    },
    keys=keyed(
        LLAMA,
        Key("rms_norm_eps", ("norm.eps", "attention.heads.norm_eps"), 1e-5),
        LAYERS,
        drop=("mlp_bias",),
    ),
    rows=over(
        LLAMA,
        Row(
            HEADS + "qkv.*",
            {f"model.layers.{{n}}.self_attn.{p}_proj.*": (p,) for p in "qkv"},
            Layout(_side_by_side, _apart),
        ),
        Row(
            HEADS + "lambdas",
            {f"model.layers.{{n}}.self_attn.lambda_{p}": () for p in ("q1", "k1", "q2", "k2")},
            Layout(_rows, _flat),
        ),
    ),
    settled=_settled,
    spelled=_spelled,
)
