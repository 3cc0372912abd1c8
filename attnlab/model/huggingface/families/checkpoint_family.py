"""Types of a family's table entry; `conversion` uses it in both directions.

A key or a row names theirs and ours and, if the values differ, a pair of functions. Settings with several
formats, and settings per layer, are normalized before the keys are read and denormalized after they are
written.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnlab.model.huggingface.config_values import require_number
from attnlab.model.huggingface.rope_config import Config

if TYPE_CHECKING:  # reading a config does not import torch
    from torch import Tensor

REQUIRED = object()
LAYER_PREFIX = "blocks.{n}."
HEADS_PREFIX = "blocks.{n}.mixer.heads."


def return_unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value


class ConfigKey(NamedTuple):
    """Key of their config and the equivalent leaves of ours; dots separate nested mappings.

    `default` is the value of an absent or null key, or a function of their config. `read` and `write` convert
    the value. `read` raises ValueError for an unsupported value; its message continues after the key's name.
    """

    theirs: str
    ours: tuple[str, ...]
    default: Any = REQUIRED
    read: Callable[[Any], Any] = require_number
    write: Callable[[Any], Any] = return_unchanged


class Layout(NamedTuple):
    """Conversion of a tensor's layout, (tensor, our canonical config) -> tensor, from theirs and back.

    If several of theirs make up one of ours, the functions apply to their concatenation.
    """

    read: "Callable[[Tensor, Config], Tensor]"
    write: "Callable[[Tensor, Config], Tensor]"


PLAIN_LAYOUT = Layout(lambda tensor, config: tensor, lambda tensor, config: tensor)


class TensorRow(NamedTuple):
    """Tensor of ours and the tensors of theirs that make it up.

    `theirs` maps a name to the slices of our fused projection that it holds; no slices mean all of it, or
    equal parts. `{n}` is the layer, `*` stands for weight and bias, and `{e}` for each expert in turn. Rows
    are skipped if the model lacks the tensor or if `applies_to` is false for our canonical config.
    """

    ours: str
    theirs: Mapping[str, tuple[str, ...]]
    layout: Layout = PLAIN_LAYOUT
    applies_to: Callable[[Config], bool] = bool


@dataclass(frozen=True)
class Family:
    """Table of a model family.

    Attributes:
        model: The constant part of our config.
        fixed: Their keys with the values that we support, the default first.
        prefix: Prefix of tensor names, which files may omit.
        aliases: Other names of keys, under which transformers overrides them.
        ignored: Tensors whose names end in one of these are skipped.
        normalize: Rewrites settings with several formats into those that `keys` name, or raises ValueError.
        denormalize: The inverse; the round trip in `conversion` detects settings that it cannot express.
        repeated_kv_key: Their key that, if true, makes `transformers` cache keys and values once per query
            head, although the model has fewer.
    """

    architecture: str
    prefix: str
    model: Config
    fixed: dict[str, tuple[Any, ...]]
    keys: tuple[ConfigKey, ...]
    rows: tuple[TensorRow, ...]
    ignored: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    normalize: Callable[[Config], Config] = return_unchanged
    denormalize: Callable[[Config], Config] = return_unchanged
    repeated_kv_key: str | None = None

    def derive(
        self,
        architecture: str,
        model: Mapping[str, Any] | None = None,
        keys: Sequence[ConfigKey] = (),
        rows: Sequence[TensorRow] = (),
        drop: Sequence[str] = (),
        **changes: Any,
    ) -> "Family":
        """Derive a family that differs from this one.

        `model` sets leaves by dotted path. Keys and rows replace those with the same name; `drop` names keys
        and rows to remove.
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
    """Copy a config with new values at dotted paths."""
    new_config = copy.deepcopy(config)
    for path, value in leaves.items():
        *outer, leaf = path.split(".")
        node = new_config
        for name in outer:
            node = node.setdefault(name, {})
        node[leaf] = copy.deepcopy(value)
    return new_config


def map_names(values: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Make `read` and `write` of a key with names as values; `write` takes the first of synonyms."""

    def read_name(name: Any) -> Any:
        if not isinstance(name, str) or name not in values:
            raise ValueError(f"= {name!r} is not supported (only {', '.join(map(repr, values))})")
        return values[name]

    def write_name(value: Any) -> Any:
        return next((name for name, our_name in values.items() if our_name == value), None)

    return read_name, write_name
