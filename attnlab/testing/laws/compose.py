"""From config groups to variants: what a user's overrides compose to, and what is shipped, in any
combination.

Combinations of shipped values are merged here from the group files, which is what Hydra does with them, a
hundred times faster.
"""

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from attnlab.config import CONF, describe_mixture, register_resolvers
from attnlab.errors import Refused
from attnlab.testing.laws.variant import Variant, variants_of

# In the order of the defaults list.
AXES = (
    "heads", "position", "convolution", "values", "score", "normaliser", "mask", "epilogue", "kernel",
    "decode",
)  # fmt: skip
SCALED = "parametrization"  # no axis of attention, and so not crossed with them
USUAL = {
    "heads": "mha", "position": "rope", "convolution": "none", "values": "own", "score": "scaled",
    "normaliser": "softmax", "mask": "causal", "epilogue": "none", "kernel": "eager", "decode": "growing",
}  # fmt: skip

# Sizes that tell axes apart: B 2, KV heads 3 of 6, width 8 of 48, 11 tokens, room for 17, vocabulary 23.
# Six heads are no power of two.
SIZES = ("model.dim=48", "model.n_heads=6", "data.length=17")
SMALL: Mapping[str, Mapping[str, Any]] = {  # what is made for hundreds of tokens must show within eleven
    "mask=window": {"model.attention.masks.window.size": 5},
    "mask=window_sinks": {"model.attention.masks.window.size": 4, "model.attention.masks.window.keep": 2},
    "mask=moba": {"model.attention.selection.size": 2, "model.attention.selection.count": 3},
    "mask=random_blocks": {"model.attention.selection.size": 2, "model.attention.selection.count": 3},
    "mask=prefix": {"model.attention.masks.prefix.n": 3},
    "position=relative": {
        "model.attention.scores.relative.buckets": 4,
        "model.attention.scores.relative.max_distance": 7,
    },
    "position=rope_dynamic_ntk": {"model.attention.rotary.scaling.trained": 5},
    "score=softcap": {"model.attention.scores.softcap.cap": 2.0},
}
BESIDE = {"decode=rolling": {"mask": "window"}}  # a value that makes sense only beside another


def options(axis: str) -> list[str]:
    """The shipped values of an axis."""
    return sorted(path.stem for path in (CONF / axis).glob("*.yaml"))


def composed(overrides: Sequence[str], config_dir: str | Path | None = None) -> list[Variant]:
    """What Hydra composes of these overrides, `heads=mha,gqa` being two; one variant per distinct kind of
    layer.

    ValueError, or Hydra's own errors, for overrides that do not compose, or that mix options of a group.
    """
    register_resolvers()
    refuse_mixtures(overrides, config_dir)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values: list[list[str]] = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [override.input_line or ""]
        for override in parsed
    ]
    where = [] if config_dir is None else [f"hydra.searchpath=['file://{Path(config_dir).resolve()}']"]
    variants = []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for line in product(*values):
            config = compose("config", overrides=[*where, *line])
            variants += variants_of(_resolved(config), " ".join(line) or "the default config")
    return variants


def refuse_mixtures(overrides: Sequence[str], config_dir: str | Path | None = None) -> None:
    """Refuse overrides that give a group of `conf/`, or of a folder of the user's own, a list of options."""
    folders = [CONF] if config_dir is None else [CONF, Path(config_dir)]
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group = override.key_or_group
        value = None if override.is_sweep_override() else override.value()
        complaint = describe_mixture(str(override.input_line), group, value)
        if complaint and any((folder / group).is_dir() for folder in folders):
            raise Refused(complaint)


def combination(**choices: str) -> Variant:
    """A combination of shipped axis values in small sizes, the usual value where an axis is not named."""
    picked = {"model": "gpt", SCALED: "standard", **USUAL, **choices}
    groups = (_group(axis, picked[axis]) for axis in (*AXES, SCALED))
    merged = functools.reduce(_merged, groups, _base(picked["model"]))
    config = OmegaConf.create(merged)
    for axis in AXES:
        for path, value in SMALL.get(f"{axis}={picked[axis]}", {}).items():
            assert OmegaConf.select(config, path) is not None, (
                f"{path}: gone from conf/{axis}/{picked[axis]}.yaml"
            )
            OmegaConf.update(config, path, value)
    resolved = _resolved(config)
    model = resolved["model"]
    return Variant(
        " ".join(f"{axis}={value}" for axis, value in choices.items()) or "the usual values",
        model["mixer"] or model["attention"],
        model["positions"],
        resolved["decode"].get("cache"),
        choices=frozenset(f"{axis}={value}" for axis, value in picked.items()),
        parametrization=model["parametrization"],
    )


def alone(axis: str, option: str) -> Variant:
    """One shipped value, the usual ones beside it."""
    return combination(**{**BESIDE.get(f"{axis}={option}", {}), axis: option})


def one_at_a_time() -> Iterator[Variant]:
    """Every shipped value of every axis, every model and every parametrization."""
    return (alone(axis, option) for axis in ("model", *AXES, SCALED) for option in options(axis))


def covering(
    axes: Mapping[str, Sequence[str]], strength: int = 3, apart: Collection[frozenset[str]] = ()
) -> list[dict[str, str]]:
    """Combinations, as few as a greedy choice finds, in which any values of any `strength` axes meet at
    least once. No row has all choices (`axis=value`) of a member of `apart`; values that never can meet,
    whatever is beside them, do not.
    """
    names = list(axes)
    missing = {
        frozenset(zip(chosen, values, strict=True)): None  # a dict, for its order
        for chosen in combinations(names, strength)
        for values in product(*(axes[name] for name in chosen))
    }
    rows = []
    while missing:
        first = next(iter(missing))
        if (row := _completed(dict(first), axes, missing, strength, apart)) is None:
            missing.pop(first)
            continue
        for meeting in combinations(row.items(), strength):
            missing.pop(frozenset(meeting), None)
        rows.append({name: row[name] for name in names})
    return rows


def _completed(
    row: dict[str, str],
    axes: Mapping[str, Sequence[str]],
    missing: Collection[frozenset[tuple[str, str]]],
    strength: int,
    apart: Collection[frozenset[str]],
) -> dict[str, str] | None:
    """With a value of every axis, the one with the most meetings that are missing first; None if none
    can be.
    """
    if any(each <= {f"{name}={value}" for name, value in row.items()} for each in apart):
        return None
    name = next((name for name in axes if name not in row), None)
    if name is None:
        return row
    others = [frozenset(pair) for pair in combinations(row.items(), strength - 1)]
    gain = {value: sum(pair | {(name, value)} in missing for pair in others) for value in axes[name]}
    tries = sorted(axes[name], key=lambda value: -gain[value])
    whole = (_completed({**row, name: value}, axes, missing, strength, apart) for value in tries)
    return next((found for found in whole if found is not None), None)


def _resolved(config: DictConfig) -> dict[str, Any]:
    """The parts of a config that make layers; the rest may hold what only a sweep fills in."""
    kept: dict[str, Any] = {}
    for key in ("attention", "mixer", "positions", "layers", SCALED):
        node = config.model.get(key)
        kept[key] = (
            OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            if OmegaConf.is_config(node)
            else node
        )
    decode = OmegaConf.to_container(config.get("decode") or OmegaConf.create(), resolve=True)
    return {"model": kept, "decode": decode}


@functools.cache
def _base(model: str) -> dict[str, Any]:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=[*(f"~{axis}" for axis in AXES), f"model={model}", *SIZES])
    # by the axes, or by what makes a layer
    read = ("dim", "n_heads", "init_std", "attention", "mixer", "positions")
    whole: Any = OmegaConf.to_container(config.model)
    return {
        "model": {key: whole[key] for key in read if key in whole},
        "data": {"length": config.data.length},
    }


@functools.cache
def _group(axis: str, option: str) -> dict[str, Any]:
    group: Any = OmegaConf.to_container(OmegaConf.load(CONF / axis / f"{option}.yaml"))
    return group


def _merged(old: Any, new: Any) -> Any:
    """Interpolations stay as they are: they are resolved once all is there."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
