"""What a family's table is made of, read both ways by `convert`.

A key or a row names their thing and ours and, where the two are not alike, a pair of functions. What can be
written in several ways, or goes by the layer, is settled into one before the keys are read, and spelled out
again after they are written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.model.huggingface import rotation
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import number

REQUIRED = object()


def same(value: Any) -> Any:
    """The value itself."""
    return value


class Key(NamedTuple):
    """A key of their config, and the leaves of ours that hold the same; dots go into nested mappings.

    `default` is what its absence (or null) means, or a function of their config. `read` and `write` translate
    a value where it is not the same number; `read` raises ValueError for what it does not know, in words that
    go on from the key's name.
    """

    theirs: str
    ours: tuple[str, ...]
    default: Any = REQUIRED
    read: Callable[[Any], Any] = number
    write: Callable[[Any], Any] = same


class Layout(NamedTuple):
    """How one tensor is laid out: (tensor, our model config) -> tensor, from theirs and back. Where several
    of theirs make up one of ours, it is their concatenation that is laid out.
    """

    read: Callable[[Tensor, Config], Tensor]
    write: Callable[[Tensor, Config], Tensor]


def _plain(tensor: Tensor, config: Config) -> Tensor:
    return tensor


def _transposed(tensor: Tensor, config: Config) -> Tensor:
    return tensor.t()  # a vector stays as it is


def _by_part(tensor: Tensor, config: Config) -> Tensor:
    heads, groups = (config["attention"]["heads"][name] for name in ("n_heads", "n_kv_heads"))
    parts = tensor.unflatten(0, (groups, heads // groups + 2, -1)).tensor_split((-2, -1), dim=1)
    return torch.cat([part.flatten(0, 2) for part in parts])


def _by_group(tensor: Tensor, config: Config) -> Tensor:
    heads, groups = (config["attention"]["heads"][name] for name in ("n_heads", "n_kv_heads"))
    parts = tensor.unflatten(0, (heads + 2 * groups, -1)).split((heads, groups, groups))
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 2)


def _from_one(tensor: Tensor, config: Config) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)) + 1  # as theirs is computed


def _from_zero(tensor: Tensor, config: Config) -> Tensor:
    return tensor - 1


PLAIN, TRANSPOSED = Layout(_plain, _plain), Layout(_transposed, _transposed)
GROUPED = Layout(_by_part, _by_group)  # by KV head: its queries, its key, its value
PLUS_ONE = Layout(_from_one, _from_zero)  # gains that are stored as what they are beyond 1


class Row(NamedTuple):
    """One tensor of ours, and theirs that make it up: name -> the slices of our fused projection it holds, or
    nothing where it holds all, or an equal share.

    `{n}` is the layer, `*` stands for weight and bias. Rows whose tensor the model does not have are passed
    over, and so are those that are not for this config of ours (`only`).
    """

    ours: str
    theirs: Mapping[str, tuple[str, ...]]
    layout: Layout = PLAIN
    only: Callable[[Config], bool] = bool


@dataclass(frozen=True)
class Family:
    """A family's table.

    `model` is what never varies in it, `fixed` their keys with the values that we can compute, the default
    first. `prefix` may be missing from names. Tensors whose names end in one of `ignored` are passed over.
    `settled` brings what can be written in several ways into the one that `keys` name, or raises ValueError;
    `spelled` is the way back, and leaves what it cannot spell for the round trip to find.
    """

    architecture: str
    prefix: str
    model: Config
    fixed: dict[str, tuple[Any, ...]]
    keys: tuple[Key, ...]
    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    settled: Callable[[Config], Config] = same
    spelled: Callable[[Config], Config] = same


BASE: dict[str, Any] = {
    "_target_": "attnlab.model.transformer.Transformer",
    "dropout": 0.0,
    "init_std": 0.02,
    "qk_gain": None,
    "seed": 0,
    "layers": None,
}
ATTENTION: dict[str, Any] = {
    "_target_": "attnlab.attention.layer.Attention",
    "heads": {"_target_": "attnlab.attention.heads.grouped.GroupedHeads", "head_dim": None},
    "kernel": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.sdpa.sdpa"},
    "masks": {
        "causal": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.masks.causal.causal"}
    },
    "scale_exponent": -0.5,
}
EAGER = {"kernel": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.eager.eager"}}
MLP = {"_target_": "attnlab.model.transformer.Mlp", "_partial_": True}
SWIGLU = {"_target_": "attnlab.model.transformer.SwiGlu", "_partial_": True}
ROPE = {"_target_": "attnlab.attention.rotary.Rope", "fraction": 1.0}
BLOCK = {"_target_": "attnlab.model.block.Block", "_partial_": True}
LAYER, HEADS = "blocks.{n}.", "blocks.{n}.mixer.heads."


def named(values: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """`read` and `write` of a key whose values are names: theirs -> ours, the first of equals."""

    def read(name: Any) -> Any:
        if not isinstance(name, str) or name not in values:
            raise ValueError(f"= {name!r} is not supported (only {', '.join(map(repr, values))})")
        return values[name]

    def write(value: Any) -> Any:
        return next((name for name, own in values.items() if own == value), None)

    return read, write


def over(family: Family, *rows: Row, drop: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """The rows of a family but those of the tensors `drop`, with others in the place of those alike."""
    gone = {row.ours for row in rows} | set(drop)
    return (*(row for row in family.rows if row.ours not in gone), *rows)


def keyed(family: Family, *keys: Key, drop: tuple[str, ...] = ()) -> tuple[Key, ...]:
    """The same of keys, by their names."""
    gone = {key.theirs for key in keys} | set(drop)
    return (*(key for key in family.keys if key.theirs not in gone), *keys)


GELU = named({"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"})  # of `Mlp`
SCALING = Key(
    "rope_scaling", ("attention.rotary.scaling",), None, rotation.read_scaling, rotation.write_scaling
)
LAYERS = Key("layers", ("layers",), None, same)  # patches, made by `settled`; `spelled` is given the mixers
