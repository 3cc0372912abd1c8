"""Configs as Hydra composes them, and their values after some leaves are changed.

Each arm is composed once. Its seed, its learning rate and the key that matches its budget are leaves of the
composed config, which are set afterwards as a last override would do it.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf

from attnlab.config import describe_option_conflict
from attnlab.errors import InvalidConfig
from attnlab.store import experiment_files, fingerprint
from attnlab.store.config_groups import GROUP_CLASSES, TopLevelGroup
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import flatten_config
from attnlab.store.guards.trust import DEFAULT_TRAINER
from attnlab.sweep.plan import config_files
from attnlab.sweep.plan.overrides import get_leaf, parse_overrides
from attnlab.sweep.plan.trainer import get_trainer_name

_OVERRIDE_LISTS = ("overrides", "arm_overrides", "size_overrides")
_UNRESOLVED_KEYS = ("hydra", *_OVERRIDE_LISTS)
# groups whose options are no part of a variant
_NON_AXIS_GROUPS = ("experiment", "tuned", "ladder", "logger", "callbacks", "trainer")
_KNOWN_KEYS = {
    *GROUP_CLASSES,
    *TopLevelGroup.model_fields,
    *Experiment.list_keys(),
    "hydra",
    "decode",
    "callbacks",
    "protocol",
    "id",
}
PRESET_GROUP = "preset"
_WHOLE_REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # a value that is exactly the value of another key
# a relative reference, or one whose target name is itself interpolated
_INDIRECT_REFERENCE = re.compile(r"\$\{\.|\$\{[\w.]*\$\{|\boc\.(?!env|select:\w)")


class ComposedConfig:
    """A composed config.

    `raw_config` is its content before interpolation, `choices` are the selected options of its groups.
    `resolved_values` caches resolved configs by the canonical JSON of their changes.
    """

    def __init__(
        self,
        raw_config: dict[str, Any],
        choices: Mapping[str, Any],
        resolved_values: dict[str, dict[str, Any]] | None = None,
        config: DictConfig | None = None,
    ) -> None:
        self.raw_config = raw_config
        self.choices = dict(choices)
        self.resolved_values = {} if resolved_values is None else resolved_values
        self._config = config
        self._dependent_leaves: dict[str, list[tuple[Any, ...]] | None] = {}

    @classmethod
    def from_hydra(cls, config: DictConfig) -> "ComposedConfig":
        """Wrap a config that Hydra composed, without Hydra's own node."""
        keys = [str(key) for key in config if key != "hydra"]
        raw_config: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, keys))
        return cls(raw_config, config.hydra.runtime.choices, config=config)

    def iter_interpolations(self) -> Iterator[tuple[tuple[Any, ...], str]]:
        """Yield the path and text of every value that contains an interpolation."""
        return _iter_interpolations(self.raw_config)

    @property
    def axes(self) -> dict[str, str]:
        """Map each group to its selected option."""
        return extract_axes(self.choices)

    def get_value(self, key: str) -> Any:
        """Return the selected option of a group, or else the value of a dotted key; None if it has none."""
        values = self.raw_config | self.resolve_values()
        return self.choices[key] if key in self.choices else get_leaf(values, key)

    def resolve_values(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the resolved config with some leaves changed, such as {"seed": 3, "optim.lr": 0.01}.

        Calls share parts of the returned config: copy it before changing it.
        """
        changes = changes or {}
        changed = {tuple(key.split(".")) for key in changes}
        copied_leaves = {
            key: paths
            for key in changes
            if (paths := self._find_dependent_leaves(key)) is not None
            and len(changed.intersection(paths)) == 1
        }
        remaining_changes = {key: value for key, value in changes.items() if key not in copied_leaves}
        cache_key = fingerprint.to_canonical_json(remaining_changes)
        if cache_key not in self.resolved_values:
            self.resolved_values[cache_key] = self._resolve_with_changes(remaining_changes)
        values = self.resolved_values[cache_key]
        for key, paths in copied_leaves.items():
            for path in paths:
                values = _replace_leaf(values, path, changes[key])
        return values

    def _find_dependent_leaves(self, key: str) -> list[tuple[Any, ...]] | None:
        """Return the paths of all leaves that equal the key's value.

        None if another value may depend on the key in any other way, or if the key itself depends on others.
        """
        if key not in self._dependent_leaves:
            value = get_leaf(self.raw_config, key)
            is_literal = isinstance(value, int | float | str) and "${" not in str(value)
            self._dependent_leaves[key] = (
                _trace_dependent_leaves(self.raw_config, key) if is_literal else None
            )
        return self._dependent_leaves[key]

    def _resolve_with_changes(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        if self._config is None:
            self._config = OmegaConf.create(self.raw_config)
            OmegaConf.set_struct(self._config, True)
        elif "hydra" in self._config:
            HydraConfig.instance().set_config(self._config)  # for ${hydra:...}
        config = self._copy_config(self._config) if changes else self._config
        for key, value in changes.items():
            OmegaConf.update(config, key, value)
        return resolve_config(config)

    def _copy_config(self, config: DictConfig) -> DictConfig:
        """Copy the config, without Hydra's own node (the larger part) if no value refers to it."""
        if any("${hydra." in text for _, text in self.iter_interpolations()):
            return copy.deepcopy(config)
        own = OmegaConf.masked_copy(config, [*self.raw_config])
        OmegaConf.set_struct(own, True)
        return own


class Composer:
    """Composer of the configs of one command with Hydra's config loader.

    `master` is the command's own config.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = loader
        self.master = master
        self.hydra_overrides: Any = [
            master.hydra.job.config_name,
            OmegaConf.to_container(master.hydra.overrides.hydra),
        ]
        self.folders = config_files.list_config_folders(master.hydra.runtime.config_sources)
        self._options: dict[str, list[str]] = {}
        self._composed: dict[tuple[str, ...], ComposedConfig] = {}

    def compose(self, overrides: Sequence[str]) -> ComposedConfig:
        """Compose the config of these overrides, once per distinct list."""
        key = tuple(overrides)
        if key not in self._composed:
            reject_option_lists(parse_overrides(key), self._is_group)
            self._composed[key] = ComposedConfig.from_hydra(
                self.loader.load_sweep_config(self.master, list(key))
            )
        return self._composed[key]

    def compose_point(self, point: Sequence[str]) -> ComposedConfig:
        """Compose the config of one report; without a sweep that is the command's own config."""
        choices = self.master.hydra.runtime.choices
        is_master = list(point) == list(self.master.hydra.overrides.task) and "???" not in choices.values()
        return ComposedConfig.from_hydra(self.master) if is_master else self.compose(point)

    def has_value_anyway(
        self, override: Override, declared: ComposedConfig, others: Iterable[Sequence[str]]
    ) -> bool:
        """Whether a config has an override's value already, and so have those of other overrides alone.

        `others` are lists of overrides without this one; one that cannot be composed without it counts as
        another value.
        """
        key, value = override.key_or_group, override.value()
        if value is None or declared.get_value(key) != value:
            return False
        try:
            return all(self.compose(lines).get_value(key) == value for lines in others)
        except HydraException:
            return False

    def find_config_file(self, config: str) -> Any:
        """Return the file of a config such as "heads/gqa", or None if no folder has it."""
        return experiment_files.find_config_file(self.folders, config)

    def reject_unused_attention_overrides(self, composed: ComposedConfig, lines: Sequence[str]) -> None:
        """Check that no line selects an attention option for a model without attention.

        Such a choice changes nothing, so two arms of different names would be the same model.

        Raises:
            InvalidConfig: A mixer replaces attention in every layer, and a line selects an attention option.
        """
        if (composed.raw_config.get("model") or {}).get("mixer") is None:
            return
        model = composed.resolve_values()["model"]
        attention = (model.get("attention") or {}).get("_target_")
        if any((patch or {}).get("_target_") == attention for patch in model.get("layers") or []):
            return  # some layers have attention
        for override in parse_overrides(lines):
            option = None if override.is_sweep_override() else override.value()
            file = (
                self.find_config_file(f"{override.key_or_group}/{option}")
                if isinstance(option, str)
                else None
            )
            content = config_files.load_content(file) if file else {}
            if set(content) == {"model"} and set(content["model"]) == {"attention"}:
                preset = composed.choices.get("model")
                raise InvalidConfig(
                    f"{override.input_line} applies to attention, but model={preset} has none: leave it out"
                )

    def reject_options_hidden_by_preset(self, composed: ComposedConfig, lines: Sequence[str]) -> None:
        """Check that no line selects an option of a group whose keys the preset sets.

        The preset's keys are merged last, so a part of the option would be lost without a word.
        """
        preset = composed.choices.get(PRESET_GROUP)
        file = self.find_config_file(f"{PRESET_GROUP}/{preset}") if preset else None
        if file is None:
            return
        preset_keys = config_files.list_keys(file, PRESET_GROUP)
        for override in parse_overrides(lines):
            group = override.key_or_group
            if group == PRESET_GROUP or override.is_sweep_override() or not self._is_group(group):
                continue
            files = [file for folder in self.folders for file in sorted((folder / group).glob("*.yaml"))]
            option_keys = {
                key
                for file in files
                if file.stem == override.value() or config_files.is_global(file)
                for key in config_files.list_keys(file, group)
            }
            for key in preset_keys:
                if any(_is_same_or_nested(key, option_key) for option_key in option_keys):
                    raise InvalidConfig(
                        f"{override.input_line} does not apply in full: preset={preset} sets {key}; set "
                        f"single keys in place of {group}, or leave the preset out"
                    )

    def list_options(self, group: str) -> list[str]:
        """List the options of a config group; none if there is no such group."""
        if group not in self._options:
            config, own = self.hydra_overrides
            self._options[group] = self.loader.get_group_options(group, config_name=config, overrides=own)
        return self._options[group]

    def _is_group(self, name: str) -> bool:
        return bool(self.list_options(name))


def resolve_config(config: DictConfig) -> dict[str, Any]:
    """Return the resolved config as a plain dict.

    Overrides of arms and sizes stay as written: `${seed}` in one is the seed of the run that it makes.
    Top-level keys of the user that other values refer to are resolved there and left out, except under a
    user's own trainer.
    """
    values: dict[str, Any] = {}
    referenced_keys = _find_referenced_keys(config) if get_trainer_name(config) == DEFAULT_TRAINER else set()
    for key in config:
        if key not in _UNRESOLVED_KEYS and key not in referenced_keys:
            value = config[key]
            values[str(key)] = (
                OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
                if OmegaConf.is_config(value)
                else value
            )
    unresolved = OmegaConf.to_container(OmegaConf.masked_copy(config, list(_OVERRIDE_LISTS)), resolve=False)
    assert isinstance(unresolved, dict)
    return values | {str(key): value for key, value in unresolved.items()}


def reject_option_lists(overrides: Iterable[Override], is_group: Callable[[str], bool]) -> None:
    """Check that no override gives a config group a list of options.

    Raises:
        ConfigCompositionException: An override does; the exception is Hydra's own.
    """
    for override in overrides:
        value: Any = None if override.is_sweep_override() else override.value()
        if not isinstance(value, list) or not is_group(override.key_or_group):
            continue
        if not all(isinstance(option, str) for option in value):  # Hydra itself would crash
            raise ConfigCompositionException(f"{override.input_line}: give the name of an option")
        if complaint := describe_option_conflict(str(override.input_line), override.key_or_group, value):
            raise ConfigCompositionException(complaint)


def extract_axes(choices: Mapping[str, str | None]) -> dict[str, str]:
    """Map each group to its selected option, from `hydra.runtime.choices`; for example heads: gqa."""
    options = {str(group): option for group, option in choices.items()}
    return {
        group: option
        for group, option in sorted(options.items())
        if option and group not in _NON_AXIS_GROUPS and not group.startswith("hydra/")
    }


def _find_referenced_keys(config: DictConfig) -> set[str]:
    """Return the top-level keys outside attnlab's own that interpolations refer to."""
    user_keys = {str(key) for key in config} - _KNOWN_KEYS
    if not user_keys:
        return user_keys
    keys = [str(key) for key in config if key != "hydra"]
    raw_config = OmegaConf.to_container(OmegaConf.masked_copy(config, keys))
    return user_keys & {
        name for _, value in flatten_config(raw_config) for name in re.findall(r"\$\{(\w+)[.}\[]", str(value))
    }


def _trace_dependent_leaves(config: Mapping[str, Any], key: str) -> list[tuple[Any, ...]] | None:
    """Return the leaves that equal a key's value; None if a value may depend on it in any other way."""
    texts = [(path, text) for path, text in _iter_interpolations(config) if path[0] not in _OVERRIDE_LISTS]
    leaf_by_key: dict[str, tuple[Any, ...]] = {key: tuple(key.split("."))}
    previous_count = 0
    while previous_count < len(leaf_by_key):
        previous_count = len(leaf_by_key)
        for path, text in texts:
            reference = _WHOLE_REFERENCE.fullmatch(text)
            if reference and reference[1] in leaf_by_key:
                leaf_by_key[".".join(map(str, path))] = path
    for path, text in texts:
        names = re.findall(r"[\w.]+", text.replace("[", ".").replace("]", ""))
        if path in leaf_by_key.values():
            continue
        if _INDIRECT_REFERENCE.search(text) or any(
            _is_same_or_nested(name, one) for name in names for one in leaf_by_key
        ):
            return None
    return list(leaf_by_key.values())


def _is_same_or_nested(one: str, other: str) -> bool:
    """Whether two dotted names are equal, or one lies within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _iter_interpolations(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(node, Mapping | list):
        for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _iter_interpolations(value, (*path, key))
    elif isinstance(node, str) and "${" in node:
        yield path, node


def _replace_leaf(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of the node with another value at a path, or the node itself if the path leaves it."""
    if not path:
        return value
    if not (isinstance(node, list) or path[0] in node):
        return node
    changed = copy.copy(node)
    changed[path[0]] = _replace_leaf(node[path[0]], path[1:], value)
    return changed
