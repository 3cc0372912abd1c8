"""Hydra's composition of many configs that differ in a few overrides: the same results in less time.

Hydra reads and parses every file again for each config, merges them again, and parses each override again.
Here a file is read once, the same defaults are merged once, and an override is parsed once. All of it is kept
by one `Loader`, so for one command. Surprising: Hydra's merge moves nodes from what it read into the result,
and later steps change the result, so what is kept is only ever handed out as a copy.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from attnlab.config import describe_mixture
from attnlab.errors import Refused
from attnlab.store import experiment_files
from attnlab.store.declarations import Experiment
from attnlab.store.files import no_file
from attnlab.store.fingerprint import flatten
from attnlab.store.guards.trust import TRAINER
from attnlab.store.values import GROUPS, Top
from attnlab.sweep.plan.overrides import parse
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


class Composer:
    """Hydra's config loader, asked for one job of the sweep at a time."""

    def __init__(self, loader: Any, master: DictConfig) -> None:
        self.loader = loader
        self.master = master

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        config: DictConfig = self.loader.load_sweep_config(self.master, list(overrides))
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        return config

    def refuse_idle(self, config: DictConfig, lines: Sequence[str]) -> None:
        """Refused where one of the lines that were written for this config chooses what only attention has,
        and it has another mixer in the place of attention: two arms of two names would be one model.
        """
        if OmegaConf.select(config, "model.mixer") is None:
            return
        patches = OmegaConf.select(config, "model.layers") or []
        attention = OmegaConf.select(config, "model.attention._target_")
        if any((patch or {}).get("_target_") == attention for patch in patches):
            return  # of some layers
        for override in parse(lines):
            option = None if override.is_sweep_override() else override.value()
            found = isinstance(option, str) and self.loader.repository.load_config(
                f"{override.key_or_group}/{option}"
            )
            written = found.config if found else {}
            if set(written) == {"model"} and set(written["model"]) == {"attention"}:
                model = config.hydra.runtime.choices.get("model")
                raise Refused(
                    f"{override.input_line} is about attention, and model={model} has none: leave it out"
                )

    def at_size(self, point: Sequence[str]) -> tuple[DictConfig, list[str]]:
        """A command's config with what its experiment sets at its size, the experiment's own keys included;
        and these overrides. The rungs of a ladder stand in the place of the size, and there are none.
        """
        config = self.compose(point)
        written = OmegaConf.to_container(OmegaConf.masked_copy(config, ["size_overrides"]), resolve=False)
        sizes = written.get("size_overrides") if isinstance(written, dict) else None
        lines = sizes.get(config.get("size")) if isinstance(sizes, dict) else None
        if not isinstance(lines, list) or not lines or config.get("ladder") is not None:
            return config, []
        return self.compose([*lines, *point]), lines

    @staticmethod
    def resolve(config: DictConfig) -> dict[str, Any]:
        """A plain dict. Overrides stay as written: `${seed}` in one is that of the run it will make. A key of
        a user's own that others refer to is read by that, and left out, but for a user's own trainer.
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
    return own & {name for _, leaf in flatten(written) for name in re.findall(r"\$\{(\w+)[.}\[]", str(leaf))}


class Loader(ConfigLoaderImpl):
    """Hydra's loader, which remembers. It parses and merges with Hydra's own code."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Read(self.repository)
        self._parsed: dict[str, Override] = {}
        self._merged: dict[str, DictConfig] = {}
        self._commands: dict[tuple[Any, ...], DictConfig] = {}

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        asked = (config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        if run_mode != RunMode.MULTIRUN:
            return super()._load_configuration_impl(*asked)
        # a command's own config is composed twice: to find Hydra's mode, then, with this check, to be used
        key = (config_name, tuple(overrides), from_shell)
        if key not in self._commands:
            self._commands[key] = super()._load_configuration_impl(*asked)
        elif validate_sweep_overrides:
            self.validate_sweep_overrides_legal(self._parse(overrides), run_mode, from_shell)
        return copy.deepcopy(self._commands[key])

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = self._parse(overrides)
        repository = CachingConfigRepository(self.repository)
        self._process_config_searchpath(config_name, parsed, repository)
        for override in parsed:
            value: Any = None if override.is_sweep_override() else override.value()
            if not isinstance(value, list) or not repository.group_exists(override.key_or_group):
                continue
            if not all(isinstance(option, str) for option in value):  # Hydra itself would break
                raise ConfigCompositionException(f"{override.input_line}: an option of a group is a name")
            if complaint := describe_mixture(str(override.input_line), override.key_or_group, value):
                raise ConfigCompositionException(complaint)
        return parsed, repository

    def _parse(self, overrides: Sequence[str]) -> list[Override]:
        for line in overrides:
            if line not in self._parsed:
                self._parsed[line] = parse([line])[0]
        return [copy.deepcopy(self._parsed[line]) for line in overrides]

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        # what decides the merge: which configs, where each is put, and where they are read from, since a
        # search path may come with the command line
        sources = [str(source) for source in repo.get_sources()]
        key = repr(
            (sources, [(default.config_path, default.package, default.primary) for default in defaults])
        )
        if key not in self._merged:
            self._merged[key] = super()._compose_config_from_defaults_list(defaults, repo)
        return copy.deepcopy(self._merged[key])

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> Any:
        return super()._load_single_config(default, cast(IConfigRepository, _Copies(repo)))


class _Read(ConfigRepository):
    """Files and schemas, each read once. Its copies, which may be given another search path, share what was
    read, by where it was read from.
    """

    def __init__(self, plain: ConfigRepository) -> None:
        self.sources = plain.sources
        self._read: dict[tuple[str, ...], ConfigResult | None] = {}

    def __deepcopy__(self, _memo: Any) -> "_Read":
        twin = copy.copy(self)
        twin.sources = list(self.sources)
        return twin

    def load_config(self, config_path: str) -> ConfigResult | None:
        key = (config_path, *map(str, self.sources))
        if key not in self._read:
            for source in self.sources:
                lies = Path(source.path, f"{config_path.removesuffix('.yaml')}.yaml")
                kind = no_file(lies) if source.scheme() == "file" else None
                if kind:
                    raise Refused(f"{lies} is {kind}: a config is a file")
            file = self.file(config_path)
            if file is not None and config_path.startswith(f"{experiment_files.GROUP}/"):
                experiment_files.check(file, self.file)
            try:
                self._read[key] = found = super().load_config(config_path)
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                if file is not None:
                    experiment_files.node(file)  # says so in one line
                raise Refused(f"{config_path}: not YAML: {' '.join(str(error).split())}") from error
            _refuse_mixtures(found, file or config_path)
        return self._read[key]

    def file(self, config_path: str) -> Path | None:
        """The file that a config is read from; None where there is none."""
        folders = [Path(source.path) for source in self.sources if source.scheme() == "file"]
        return experiment_files.find(folders, config_path)


def _refuse_mixtures(found: ConfigResult | None, where: Path | str) -> None:
    """Refused where the defaults list of a config gives a group a list of options."""
    for default in (found.defaults_list if found else None) or ():
        if isinstance(default, GroupDefault) and default.is_options():
            group = str(default.group).removeprefix("/")
            options = default.get_options()
            written = f"{group}: [{', '.join(options)}]"
            if describe_mixture(written, group, options):
                raise Refused(f"{where}: defaults: {written}: a run has one option of {group}: choose one")


class _Copies(CachingConfigRepository):
    """A repository whose configs may be moved elsewhere and changed. Nothing is kept here."""

    def __init__(self, of: IConfigRepository) -> None:
        self.delegate = of

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(self.delegate.load_config(config_path))
