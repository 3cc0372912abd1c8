"""Composition of variants from config groups: a user's overrides, or any combination of shipped values.

Combinations of shipped values are merged here from the group files. Hydra does the same, a hundred times
slower.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.config import (
    CONF,
    describe_hidden_file,
    describe_option_conflict,
    format_search_path,
    register_resolvers,
)
from attnlab.errors import InvalidConfig
from attnlab.store import config_groups
from attnlab.testing.invariants.variant import Variant, make_variants

# In the order of the defaults list.
AXES = (
    "heads", "position", "convolution", "keys", "values", "score", "normalizer", "mask", "epilogue",
    "kernel", "decode",
)  # fmt: skip
# not axes of attention, so not crossed with the axes
PARAMETRIZATION = "parametrization"
MODEL_AXES = ("block", "residual", PARAMETRIZATION)
SINGLE_AXES = ("model", *AXES, *MODEL_AXES)  # each option of them is a variant by itself
DEFAULT_CHOICES = {
    "heads": "mha", "position": "rope", "convolution": "none", "keys": "own", "values": "own",
    "score": "scaled", "normalizer": "softmax", "mask": "causal", "epilogue": "none", "kernel": "eager",
    "decode": "dynamic",
}  # fmt: skip

DEFAULT_MODEL_CHOICES = {"block": "pre", "residual": "sum", PARAMETRIZATION: "standard"}

# Distinct sizes expose swapped dimensions: B 2, KV heads 3 of 6, head dimension 8 of 48, 11 tokens,
# capacity 17, vocabulary 23. Six heads are not a power of two.
BASE_SIZES = ("model.dim=48", "model.n_heads=6", "data.length=17")
LARGER_SIZES = ("model.dim=720", "model.n_heads=20")  # 36 features per head, no power of two
SMALL_SIZES: Mapping[
    str, Mapping[str, Any]
] = {  # parts designed for hundreds of tokens must take effect within eleven
    "mask=window": {"model.attention.masks.window.size": 5},
    "mask=window_sinks": {"model.attention.masks.window.size": 4, "model.attention.masks.window.keep": 2},
    "mask=moba": {"model.attention.selection.size": 2, "model.attention.selection.count": 3},
    "mask=random_blocks": {"model.attention.selection.size": 2, "model.attention.selection.count": 3},
    "mask=top_tokens": {"model.attention.selection.count": 3},
    "mask=indexed_tokens": {"model.attention.selection.count": 3},
    "mask=indexed_blocks": {"model.attention.selection.size": 2, "model.attention.selection.count": 3},
    "mask=prefix": {"model.attention.masks.prefix.n": 3},
    "position=relative": {
        "model.attention.scores.relative.buckets": 4,
        "model.attention.scores.relative.max_distance": 7,
    },
    "position=cope": {"model.attention.score_maps.cope.n_positions": 4},
    "position=rope_dynamic_ntk": {"model.attention.rotary.scaling.trained": 5},
    "score=multi_token": {
        "model.attention.score_maps.multi_token.n_queries": 3,
        "model.attention.score_maps.multi_token.n_keys": 5,
    },
    "score=softcap": {"model.attention.scores.softcap.cap": 2.0},
}
SWEEP_KEYS = ("experiment", "ladder", "corpora")  # select several configs
REQUIRED_CHOICES = {"decode=sliding": {"mask": "window"}}  # values that require a value of another axis


def list_options(axis: str) -> list[str]:
    """List the shipped values of an axis."""
    return sorted(path.stem for path in (CONF / axis).glob("*.yaml"))


def compose_variants(overrides: Sequence[str], config_dir: str | Path | None = None) -> list[Variant]:
    """Compose overrides with Hydra; return one variant per distinct kind of layer.

    `heads=mha,gqa` composes two configs.

    Raises:
        InvalidConfig: A key has two values, of which Hydra would drop the first; or a selected option is also
            in `conf/`, which Hydra would use.
        ValueError: The overrides do not compose, or mix options of a group. Hydra's own errors pass through.
    """
    register_resolvers()
    validate_choices(overrides, config_dir)
    parsed_overrides = OverridesParser.create().parse_overrides(list(overrides))
    line_by_key: dict[str, str] = {}
    for override in parsed_overrides:
        key, line = override.key_or_group, str(override.input_line)
        if (other := line_by_key.setdefault(key, line)) is not line:
            both = f"{key}={other.partition('=')[2]},{line.partition('=')[2]}"
            raise InvalidConfig(
                f"{key} is set twice, {other} and {line}: remove one, or test both with {both}"
            )
    alternatives: list[list[str]] = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [override.input_line or ""]
        for override in parsed_overrides
    ]
    folders = [CONF] if config_dir is None else [CONF, Path(config_dir)]
    variants = []
    for combination in product(*alternatives):
        name = " ".join(combination) or "the default config"
        variants += _compose_layer_kinds(combination, name, folders)
    return variants


def _compose_layer_kinds(overrides: Sequence[str], name: str, folders: Sequence[Path]) -> list[Variant]:
    """Compose one config; its variants can compose themselves again in larger sizes."""
    lines = [*map(format_search_path, folders[1:]), *overrides]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=lines, return_hydra_config=True)
    reject_hidden_options(config.hydra.runtime.choices, folders)
    sizes = {key: config.model.get(key) for key in ("dim", "n_layers", "n_heads", "ffn_width")}
    config_groups.validate_groups({"model": {key: size for key, size in sizes.items() if size is not None}})
    variants = make_variants(_resolve_layer_config(config), name)

    def make_larger(index: int) -> Variant | None:
        try:
            larger_variants = _compose_layer_kinds([*overrides, *LARGER_SIZES], name, folders)
        except (ValueError, HydraException, OmegaConfBaseException):  # other sizes depend on these
            return None
        return _require_other_sizes(variants[index], larger_variants[index])

    return [
        dataclasses.replace(variant, make_larger=functools.partial(make_larger, index))
        for index, variant in enumerate(variants)
    ]


def _require_other_sizes(variant: Variant, larger: Variant) -> Variant | None:
    """Return the larger variant if it has the expected width and builds."""
    try:
        larger.make_layer()
    except ValueError:
        return None
    return larger if larger.dim > variant.dim else None


def reject_hidden_options(choices: Mapping[str, Any], folders: Sequence[Path]) -> None:
    """Check that no later folder has another file for a selected option: Hydra uses that of the first."""
    for group, option in choices.items():
        if hidden := describe_hidden_file(f"{group}/{option}", folders):
            raise InvalidConfig(hidden)


def validate_choices(overrides: Sequence[str], config_dir: str | Path | None = None) -> None:
    """Check that the overrides select one option of each group, and nothing that only sweeps read.

    Raises:
        InvalidConfig: One gives a list of options to a group of `conf/` or of the user's own folder, or
            selects several configs.
    """
    folders = [CONF] if config_dir is None else [CONF, Path(config_dir)]
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group = override.key_or_group
        if not group:
            raise InvalidConfig(f"{override.input_line}: names no key: write key=value")
        if group in SWEEP_KEYS:
            raise InvalidConfig(
                f"{override.input_line}: {group}= is only for sweeps and verbs about them, such as plan: "
                "give the overrides of one config, as in heads=gqa"
            )
        value = None if override.is_sweep_override() else override.value()
        conflict = describe_option_conflict(str(override.input_line), group, value)
        if conflict and any((folder / group).is_dir() for folder in folders):
            raise InvalidConfig(conflict)


def combine_choices(**choices: str) -> Variant:
    """Merge shipped axis values in small sizes; axes without a choice take their default."""
    return _combine_choices_in_sizes(choices, BASE_SIZES)


def _combine_choices_in_sizes(choices: Mapping[str, str], sizes: tuple[str, ...]) -> Variant:
    selected = {"model": "gpt", **DEFAULT_MODEL_CHOICES, **DEFAULT_CHOICES, **choices}
    groups = (_load_group_option(axis, selected[axis]) for axis in (*AXES, *MODEL_AXES))
    merged = functools.reduce(_merge_configs, groups, _compose_base_config(selected["model"], sizes))
    config = OmegaConf.create(merged)
    for axis in AXES:
        for path, value in SMALL_SIZES.get(f"{axis}={selected[axis]}", {}).items():
            assert OmegaConf.select(config, path) is not None, (
                f"{path} is missing in conf/{axis}/{selected[axis]}.yaml"
            )
            OmegaConf.update(config, path, value)
    resolved = _resolve_layer_config(config)
    model = resolved["model"]
    variant = Variant(
        " ".join(f"{axis}={value}" for axis, value in choices.items()) or "default values",
        model["mixer"] or model["attention"],
        model["positions"],
        resolved["decode"].get("cache"),
        choices=frozenset(f"{axis}={value}" for axis, value in selected.items()),
        parametrization=model["parametrization"],
        block=model["block"],
        residual=model["residual"],
    )

    def make_larger() -> Variant | None:
        return _require_other_sizes(variant, _combine_choices_in_sizes(choices, (*BASE_SIZES, *LARGER_SIZES)))

    return variant if sizes != BASE_SIZES else dataclasses.replace(variant, make_larger=make_larger)


def vary_one_axis(axis: str, option: str) -> Variant:
    """Make the variant with one shipped value, and defaults for the other axes."""
    return combine_choices(**{**REQUIRED_CHOICES.get(f"{axis}={option}", {}), axis: option})


def iter_single_axis_variants() -> Iterator[Variant]:
    """Yield a variant for every shipped value of every axis, and of every axis of models."""
    return (vary_one_axis(axis, option) for axis in SINGLE_AXES for option in list_options(axis))


def count_single_axis_variants() -> int:
    """Count the variants of `iter_single_axis_variants` without composing them."""
    return sum(len(list_options(axis)) for axis in SINGLE_AXES)


def _resolve_layer_config(config: DictConfig) -> dict[str, Any]:
    """Resolve the parts of a config that make layers; the rest may hold values that only a sweep fills in."""
    model: dict[str, Any] = {}
    for key in ("attention", "mixer", "positions", "layers", *MODEL_AXES):
        node = config.model.get(key)
        model[key] = (
            OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            if OmegaConf.is_config(node)
            else node
        )
    decode = OmegaConf.to_container(config.get("decode") or OmegaConf.create(), resolve=True)
    return {"model": model, "decode": decode}


@functools.cache
def _compose_base_config(model: str, sizes: tuple[str, ...]) -> dict[str, Any]:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=[*(f"~{axis}" for axis in AXES), f"model={model}", *sizes])
    # keys that the axes or the layers interpolate
    used_keys = ("dim", "n_heads", "init_std", "attention", "mixer", "positions")
    model_config: Any = OmegaConf.to_container(config.model)
    return {
        "model": {key: model_config[key] for key in used_keys if key in model_config},
        "data": {"length": config.data.length},
    }


@functools.cache
def _load_group_option(axis: str, option: str) -> dict[str, Any]:
    group: Any = OmegaConf.to_container(OmegaConf.load(CONF / axis / f"{option}.yaml"))
    return group


def _merge_configs(old: Any, new: Any) -> Any:
    """Merge two unresolved configs; interpolations are resolved once the merge is complete."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merge_configs(old.get(key), value) for key, value in new.items()}}
