"""The YAML files of a command, as a config source of Hydra's: each is read once, and refused in one line.

Reading YAML is about half of a composition, and a plan composes dozens of configs of the same files. Hydra
finds a config source by its scheme. A search path plugin names ours for the main folder and for those of the
command line. Surprising: Hydra's merge moves nodes from a config that was read into its result, and later
steps change the result, so `_Files` hands out copies.
"""

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from attnlab.config import describe_mixture
from attnlab.errors import Refused
from attnlab.store import experiment_files
from attnlab.store.files import no_file

SCHEME = "attnlab"
_HEADER = 512  # characters in which Hydra looks for a package


class _Files(ConfigSource):
    """A folder of YAML files."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._file(config_path)
        if config_path.startswith(f"{experiment_files.GROUP}/"):
            experiment_files.check(file, lambda config: experiment_files.find(_Folders.searched, config))
        header, config = self.read(str(file), *_version(file))
        return ConfigResult(self.provider, self.full_path(), copy.deepcopy(config), dict(header))

    def is_config(self, config_path: str) -> bool:
        file = self._file(config_path)
        if kind := no_file(file):
            raise Refused(f"{file} is {kind}: a config is a file")
        return file.is_file()

    def is_group(self, config_path: str) -> bool:
        return os.path.isdir(os.path.join(self.path, config_path))

    def available(self) -> bool:
        return self.is_group("")

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names: list[str] = []
        for name in os.listdir(os.path.join(self.path, config_path)):
            self._list_add_result(names, os.path.join(config_path, name), name, results_filter)
        return sorted(set(names))

    def _file(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path))

    @staticmethod
    @cache
    def read(file: str, *_version: int) -> tuple[Mapping[str, str | None], Any]:
        """The package that a file names, and its content. Refused, one line, where it has none."""
        try:
            with open(file, encoding="utf-8") as stream:
                header = _Files._get_header_dict(stream.read(_HEADER))
                stream.seek(0)
                config = OmegaConf.load(stream)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            experiment_files.node(Path(file))  # shows the line
            raise Refused(f"{file}: not YAML: {' '.join(str(error).split())}") from error
        written = OmegaConf.to_container(config)
        _refuse_mixtures(written.get("defaults") if isinstance(written, dict) else None, file)
        return header, config


class _Folders(SearchPathPlugin):
    """Our source for the main folder and, before Hydra's own, for the folders of the command line."""

    named: Sequence[Path] = ()
    searched: Sequence[Path] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for element in search_path.get_path():
            if element.provider == "main" and "://" not in element.path.removeprefix("file://"):
                element.path = f"{SCHEME}://{element.path.removeprefix('file://')}"
                _Folders.searched = [Path(element.path.removeprefix(f"{SCHEME}://")), *self.named]
        for folder in self.named:
            search_path.append("command-line", f"{SCHEME}://{folder.absolute()}")


def register(named: Iterable[Path] = ()) -> None:
    """Have Hydra read the files of this process's next command so; `named` are its further folders."""
    plugins = Plugins.instance()
    for plugin in (_Files, _Folders):
        plugins.register(plugin)
    _Folders.named = tuple(dict.fromkeys(named))


def folders(sources: Iterable[Any]) -> list[Path]:
    """The folders of a composed config's `hydra.runtime.config_sources`, each once, in their order."""
    files = (source.path for source in sources if source.schema in (SCHEME, "file"))
    return [Path(path) for path in dict.fromkeys(files)]


def folders_named(given: Iterable[Override]) -> list[Path]:
    """The folders that the overrides of a command add to the search path."""
    values: list[Any] = [one.value() for one in given if one.key_or_group == "hydra.searchpath"]
    named = [str(path) for value in values if isinstance(value, list) for path in value]
    files = (path.removeprefix("file://") for path in named)
    return [Path(path) for path in files if "://" not in path]


def content(file: Path) -> dict[str, Any]:
    """What a file sets, without its defaults; nothing where it is no mapping."""
    written: Any = OmegaConf.to_container(_Files.read(str(file), *_version(file))[1])
    return (
        {key: value for key, value in written.items() if key != "defaults"}
        if isinstance(written, dict)
        else {}
    )


def _version(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _refuse_mixtures(defaults: Any, file: str) -> None:
    """Refused where a defaults list gives a group a list of options."""
    for entry in defaults if isinstance(defaults, list) else ():
        for key, options in entry.items() if isinstance(entry, dict) else ():
            group = str(key).split(" ")[-1].partition("@")[0].removeprefix("/")
            if isinstance(options, list) and describe_mixture("", group, options):
                written = f"{group}: [{', '.join(map(str, options))}]"
                raise Refused(f"{file}: defaults: {written}: a run has one option of {group}: choose one")
