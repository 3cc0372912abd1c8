"""Defines what a family's entry in the table is made of; `convert` reads it both ways.

A key or a row names their thing and ours and, where the two differ, a pair of functions. Whatever can be
written in several ways, or depends on the layer, is settled into one form before the keys are read, and
spelled out again after they are written.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import number

REQUIRED = object()
LAYER = "blocks.{n}."
HEADS = "blocks.{n}.mixer.heads."


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


PLAIN = Layout(lambda tensor, config: tensor, lambda tensor, config: tensor)


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

    def derive(
        self,
        architecture: str,
        model: Mapping[str, Any] | None = None,
        keys: Sequence[Key] = (),
        rows: Sequence[Row] = (),
        drop: Sequence[str] = (),
        **changes: Any,
    ) -> "Family":
        """A family that differs from this one.

        `model` has other values for leaves, by their dotted paths. Keys and rows take the place of those with
        the same name; `drop` names others that are left out.
        """
        key_names = {key.theirs for key in keys} | {*drop}
        row_names = {row.ours for row in rows} | {*drop}
        return replace(
            self,
            architecture=architecture,
            model=set_leaves(self.model, model or {}),
            keys=(*(key for key in self.keys if key.theirs not in key_names), *keys),
            rows=(*(row for row in self.rows if row.ours not in row_names), *rows),
            **changes,
        )


def set_leaves(config: Config, leaves: Mapping[str, Any]) -> Config:
    """A copy of a config with other values at dotted paths."""
    made = copy.deepcopy(config)
    for path, value in leaves.items():
        *outer, leaf = path.split(".")
        node = made
        for name in outer:
            node = node.setdefault(name, {})
        node[leaf] = copy.deepcopy(value)
    return made


def named(values: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """`read` and `write` of a key whose values are names: theirs -> ours, the first of equals."""

    def read(name: Any) -> Any:
        if not isinstance(name, str) or name not in values:
            raise ValueError(f"= {name!r} is not supported (only {', '.join(map(repr, values))})")
        return values[name]

    def write(value: Any) -> Any:
        return next((name for name, own in values.items() if own == value), None)

    return read, write
