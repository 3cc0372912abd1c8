"""Config source for Hydra that reads each YAML file once and reports faults in one line.

Reading YAML takes about half the time of a composition, and a plan composes dozens of configs from the same
files. Hydra selects a config source by its scheme; a search path plugin assigns ours to the main folder and
to the folders of the command line. Caution: Hydra's merge moves nodes from a loaded config into its result,
and later steps change that result, so `_CachedYamlSource` hands out copies.
"""

import copy
import io
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

from attnlab.config import describe_hidden_file, describe_option_conflict, expand_home
from attnlab.errors import InvalidConfig
from attnlab.store import experiment_files
from attnlab.store.atomic_files import MAX_YAML_BYTES, describe_special_file, read_user_text
from attnlab.store.fingerprint import flatten_config

SCHEME = "attnlab"
_HEADER_LENGTH = 512  # characters that Hydra searches for a package header


class _CachedYamlSource(ConfigSource):
    """A folder of YAML files whose parsed content is cached by file version."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._get_path(config_path)
        if config_path.startswith(f"{experiment_files.EXPERIMENT_GROUP}/"):
            experiment_files.validate_experiment_file(
                file,
                lambda config: experiment_files.find_config_file(
                    _ConfigFolderPlugin.searched_folders, config
                ),
            )
        if "/" in config_path:  # config.yaml in a folder of the user's may be that of another program
            folders = [Path(self.path), *_ConfigFolderPlugin.extra_folders]
            if hidden := describe_hidden_file(config_path, folders):
                raise InvalidConfig(hidden)
        header, config = self.load_file(str(file), *_get_file_version(file))
        return ConfigResult(self.provider, self.full_path(), copy.deepcopy(config), dict(header))

    def is_config(self, config_path: str) -> bool:
        file = self._get_path(config_path)
        if kind := describe_special_file(file):
            raise InvalidConfig(f"{file} is {kind}: use a regular file")
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

    def _get_path(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path))

    @staticmethod
    @cache
    def load_file(file: str, *_version: int) -> tuple[Mapping[str, str | None], Any]:
        """Return the package header of a file, and its content.

        Raises:
            InvalidConfig: The file is no valid YAML, or its defaults give a group several options.
        """
        try:
            text = read_user_text(Path(file), max_bytes=MAX_YAML_BYTES)
            if experiment_files.needs_node_check(text):
                experiment_files.load_yaml_node(Path(file))
            header = _CachedYamlSource._get_header_dict(text[:_HEADER_LENGTH])
            config = OmegaConf.load(io.StringIO(text))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            experiment_files.load_yaml_node(Path(file))  # raises with the line at fault
            raise InvalidConfig(f"{file}: invalid YAML: {' '.join(str(error).split())}") from error
        content = OmegaConf.to_container(config)
        _reject_option_lists(content.get("defaults") if isinstance(content, dict) else None, file)
        expanded = _expand_homes(content)
        return header, config if expanded == content else OmegaConf.create(expanded)


def _expand_homes(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _expand_homes(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_expand_homes(value) for value in node]
    return expand_home(node) if isinstance(node, str) else node


class _ConfigFolderPlugin(SearchPathPlugin):
    """Search path plugin for the cached source.

    It serves the main folder and, ahead of Hydra's own source, the folders of the command line.
    """

    main_folder: Path | None = None
    extra_folders: Sequence[Path] = ()
    searched_folders: Sequence[Path] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for element in search_path.get_path():
            if element.provider != "main":
                continue
            if self.main_folder is not None:  # Hydra looks for a relative one among the modules
                element.path = str(self.main_folder.absolute())
            path = element.path.removeprefix("file://")
            if "://" not in path:
                element.path = f"{SCHEME}://{path}"
                _ConfigFolderPlugin.searched_folders = [Path(path), *self.extra_folders]
        for folder in self.extra_folders:
            search_path.append("command-line", f"{SCHEME}://{folder.absolute()}")


def register_config_source(extra_folders: Iterable[Path] = (), main_folder: Path | None = None) -> None:
    """Make Hydra read the configs of this process's next command through the cached source.

    `extra_folders` are further folders to search; `main_folder` replaces the one that Hydra receives.
    """
    plugins = Plugins.instance()
    for plugin in (_CachedYamlSource, _ConfigFolderPlugin):
        plugins.register(plugin)
    _ConfigFolderPlugin.main_folder = main_folder
    _ConfigFolderPlugin.extra_folders = tuple(dict.fromkeys(extra_folders))


def list_config_folders(sources: Iterable[Any]) -> list[Path]:
    """Return the folders in `hydra.runtime.config_sources`, each once, in their order."""
    files = (source.path for source in sources if source.schema in (SCHEME, "file"))
    return [Path(path) for path in dict.fromkeys(files)]


def list_searchpath_folders(overrides: Iterable[Override]) -> list[Path]:
    """Return the folders that a command's overrides add to the search path."""
    values: list[Any] = [
        override.value() for override in overrides if override.key_or_group == "hydra.searchpath"
    ]
    paths = [str(path) for value in values if isinstance(value, list) for path in value]
    files = (path.removeprefix("file://") for path in paths)
    return [Path(path) for path in files if "://" not in path]


def load_content(file: Path) -> dict[str, Any]:
    """Return the content of a file without its defaults; empty if it is no mapping."""
    content: Any = OmegaConf.to_container(_CachedYamlSource.load_file(str(file), *_get_file_version(file))[1])
    return (
        {key: value for key, value in content.items() if key != "defaults"}
        if isinstance(content, dict)
        else {}
    )


def is_global(file: Path) -> bool:
    """Whether the keys of a group's option start at the top level."""
    return _CachedYamlSource.load_file(str(file), *_get_file_version(file))[0].get("package") == "_global_"


def list_keys(file: Path, group: str) -> list[str]:
    """List the dotted keys that a group's option sets, other than to null."""
    content = load_content(file)
    keys = flatten_config(content if is_global(file) else {group.replace("/", "."): content})
    return [key for key, value in keys if value is not None and value != {}]


def _get_file_version(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _reject_option_lists(defaults: Any, file: str) -> None:
    """Check a defaults list."""
    for entry in defaults if isinstance(defaults, list) else ():
        for key, options in entry.items() if isinstance(entry, dict) else ():
            group = str(key).split(" ")[-1].partition("@")[0].removeprefix("/")
            if isinstance(options, list) and describe_option_conflict("", group, options):
                entry_text = f"{group}: [{', '.join(map(str, options))}]"
                raise InvalidConfig(
                    f"{file}: defaults: {entry_text}: a run takes one option of {group}: choose one"
                )
