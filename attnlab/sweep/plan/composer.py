"""Configs as Hydra composes them, and their values once some of their leaves are changed.

An arm is composed once. Its seed, its learning rate and the key that matches its budget are leaves of the
composed config, which are set afterwards as a last override would do it.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from attnlab.config import describe_mixture
from attnlab.errors import Refused
from attnlab.store import experiment_files, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.fingerprint import flatten
from attnlab.store.guards.trust import TRAINER
from attnlab.store.values import GROUPS, Top
from attnlab.sweep.plan import config_files
from attnlab.sweep.plan.overrides import leaf, parse
from attnlab.sweep.plan.trainer import trainer_of

_AS_WRITTEN = ("arm_overrides", "size_overrides")
_NOT_RESOLVED = ("hydra", *_AS_WRITTEN)
_NO_AXES = ("experiment", "tuned", "ladder", "logger", "callbacks", "trainer")  # groups that make no variant
_KNOWN = {
    *GROUPS,
    *Top.model_fields,
    *Experiment.key_names(),
    "hydra",
    "decode",
    "callbacks",
    "protocol",
    "id",
}
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # a whole value, which is that of another key
_UNCLEAR = re.compile(r"\$\{\.|\$\{[\w.]*\$\{|\boc\.(?!env)")  # relative, of a name that is itself composed


class Composed:
    """A composed config: `written` is its content before interpolation, `choices` are the options of its
    groups. `known` are its values so far, by the changes that they have.
    """

    def __init__(
        self,
        written: dict[str, Any],
        choices: Mapping[str, Any],
        known: dict[str, dict[str, Any]] | None = None,
        config: DictConfig | None = None,
    ) -> None:
        self.written = written
        self.choices = dict(choices)
        self.known = {} if known is None else known
        self._config = config
        self._followers: dict[str, list[tuple[Any, ...]] | None] = {}

    @classmethod
    def of(cls, config: DictConfig) -> "Composed":
        kept = [str(key) for key in config if key != "hydra"]
        written: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, kept))
        return cls(written, config.hydra.runtime.choices, config=config)

    def interpolations(self) -> Iterator[tuple[tuple[Any, ...], str]]:
        """The texts that are made of other values, by where they are."""
        return _interpolations(self.written)

    @property
    def axes(self) -> dict[str, str]:
        """Group to the option that was chosen of it."""
        return axes(self.choices)

    def values(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config's values with these leaves changed, such as {"seed": 3, "optim.lr": 0.01}. Its parts are
        shared between calls: who changes them makes a copy.
        """
        changes = changes or {}
        changed = {tuple(key.split(".")) for key in changes}
        handed_on = {
            key: paths
            for key in changes
            if (paths := self._find_followers(key)) is not None and len(changed.intersection(paths)) == 1
        }
        resolved = {key: value for key, value in changes.items() if key not in handed_on}
        named = fingerprint.canonical(resolved)
        if named not in self.known:
            self.known[named] = self._resolve(resolved)
        found = self.known[named]
        for key, paths in handed_on.items():
            for path in paths:
                found = _replaced(found, path, changes[key])
        return found

    def _find_followers(self, key: str) -> list[tuple[Any, ...]] | None:
        """The leaves that take a key's value; None where more may depend on it, or it depends on others."""
        if key not in self._followers:
            value = leaf(self.written, key)
            is_literal = isinstance(value, int | float | str) and "${" not in str(value)
            self._followers[key] = _followers(self.written, key) if is_literal else None
        return self._followers[key]

    def _resolve(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        if self._config is None:
            self._config = OmegaConf.create(self.written)
            OmegaConf.set_struct(self._config, True)
        elif "hydra" in self._config:
            HydraConfig.instance().set_config(self._config)  # for ${hydra:...}
        config = self._copy(self._config) if changes else self._config
        for key, value in changes.items():
            OmegaConf.update(config, key, value)
        return resolve(config)

    def _copy(self, config: DictConfig) -> DictConfig:
        """Without Hydra's own half, which is the larger one, where nothing refers to it."""
        if any("${hydra." in text for _, text in self.interpolations()):
            return copy.deepcopy(config)
        own = OmegaConf.masked_copy(config, [*self.written])
        OmegaConf.set_struct(own, True)
        return own


class Composer:
    """Hydra's config loader, asked for one config of a command at a time. `master` is the command's own."""

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = loader
        self.master = master
        self.hydra_overrides: Any = [
            master.hydra.job.config_name,
            OmegaConf.to_container(master.hydra.overrides.hydra),
        ]
        self.folders = config_files.folders(master.hydra.runtime.config_sources)
        self._groups: dict[str, bool] = {}
        self._composed: dict[tuple[str, ...], Composed] = {}

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The config of these overrides, composed once."""
        key = tuple(overrides)
        if key not in self._composed:
            refuse_mixtures(parse(key), self._is_group)
            self._composed[key] = Composed.of(self.loader.load_sweep_config(self.master, list(key)))
        return self._composed[key]

    def compose_point(self, point: Sequence[str]) -> Composed:
        """The config of a point of the command, which is the command's own where that sweeps nothing."""
        choices = self.master.hydra.runtime.choices
        whole = list(point) == list(self.master.hydra.overrides.task) and "???" not in choices.values()
        return Composed.of(self.master) if whole else self.compose(point)

    def find(self, config: str) -> Any:
        """The file of a config such as "heads/gqa"; None where no folder has it."""
        return experiment_files.find(self.folders, config)

    def refuse_idle(self, composed: Composed, lines: Sequence[str]) -> None:
        """Refused where one of the lines that were written for this config chooses what only attention has,
        and it has another mixer in the place of attention: two arms of two names would be one model.
        """
        if (composed.written.get("model") or {}).get("mixer") is None:
            return
        model = composed.values()["model"]
        attention = (model.get("attention") or {}).get("_target_")
        if any((patch or {}).get("_target_") == attention for patch in model.get("layers") or []):
            return  # of some layers
        for override in parse(lines):
            option = None if override.is_sweep_override() else override.value()
            file = self.find(f"{override.key_or_group}/{option}") if isinstance(option, str) else None
            written = config_files.content(file) if file else {}
            if set(written) == {"model"} and set(written["model"]) == {"attention"}:
                chosen = composed.choices.get("model")
                raise Refused(
                    f"{override.input_line} is about attention, and model={chosen} has none: leave it out"
                )

    def _is_group(self, name: str) -> bool:
        if name not in self._groups:
            config, own = self.hydra_overrides
            options = self.loader.get_group_options(name, config_name=config, overrides=own)
            self._groups[name] = bool(options)
        return self._groups[name]


def resolve(config: DictConfig) -> dict[str, Any]:
    """A plain dict. Overrides stay as written: `${seed}` in one is that of the run it will make. A key of a
    user's own that others refer to is read by that, and left out, but for a user's own trainer.
    """
    values: dict[str, Any] = {}
    referred = _referred(config) if trainer_of(config) == TRAINER else set()
    for key in config:
        if key not in _NOT_RESOLVED and key not in referred:
            value = config[key]
            values[str(key)] = (
                OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
                if OmegaConf.is_config(value)
                else value
            )
    written = OmegaConf.to_container(OmegaConf.masked_copy(config, list(_AS_WRITTEN)), resolve=False)
    assert isinstance(written, dict)
    return values | {str(key): value for key, value in written.items()}


def refuse_mixtures(given: Iterable[Override], is_group: Callable[[str], bool]) -> None:
    """Hydra's refusal of an override that gives a group a list of options."""
    for override in given:
        value: Any = None if override.is_sweep_override() else override.value()
        if not isinstance(value, list) or not is_group(override.key_or_group):
            continue
        if not all(isinstance(option, str) for option in value):  # Hydra itself would break
            raise ConfigCompositionException(f"{override.input_line}: an option of a group is a name")
        if complaint := describe_mixture(str(override.input_line), override.key_or_group, value):
            raise ConfigCompositionException(complaint)


def axes(choices: Mapping[str, str | None]) -> dict[str, str]:
    """Group to the option that a config chose of it (its `hydra.runtime.choices`), as in heads: gqa."""
    chosen = {str(group): option for group, option in choices.items()}
    return {
        group: option
        for group, option in sorted(chosen.items())
        if option and group not in _NO_AXES and not group.startswith("hydra/")
    }


def _referred(config: DictConfig) -> set[str]:
    """The keys at the top, none of attnlab's, that interpolations name."""
    own = {str(key) for key in config} - _KNOWN
    if not own:
        return own
    kept = [str(key) for key in config if key != "hydra"]
    written = OmegaConf.to_container(OmegaConf.masked_copy(config, kept))
    return own & {
        name for _, value in flatten(written) for name in re.findall(r"\$\{(\w+)[.}\[]", str(value))
    }


def _followers(written: Mapping[str, Any], key: str) -> list[tuple[Any, ...]] | None:
    """The leaves that have a key's value; None where one may depend on it otherwise."""
    texts = [(path, text) for path, text in _interpolations(written) if path[0] not in _AS_WRITTEN]
    found: dict[str, tuple[Any, ...]] = {key: tuple(key.split("."))}
    before = 0
    while before < len(found):
        before = len(found)
        for path, text in texts:
            reference = _REFERENCE.fullmatch(text)
            if reference and reference[1] in found:
                found[".".join(map(str, path))] = path
    for path, text in texts:
        names = re.findall(r"[\w.]+", text.replace("[", ".").replace("]", ""))
        if path in found.values():
            continue
        if _UNCLEAR.search(text) or any(_overlap(name, one) for name in names for one in found):
            return None
    return list(found.values())


def _overlap(one: str, other: str) -> bool:
    """Whether two dotted names are the same, or one is within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _interpolations(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(node, Mapping | list):
        for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _interpolations(value, (*path, key))
    elif isinstance(node, str) and "${" in node:
        yield path, node


def _replaced(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a path; as it is where it ends before."""
    if not path:
        return value
    if not (isinstance(node, list) or path[0] in node):
        return node
    twin = copy.copy(node)
    twin[path[0]] = _replaced(node[path[0]], path[1:], value)
    return twin
