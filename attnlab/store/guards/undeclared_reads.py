"""Rejection of files that a part of the user's reads without declaring them, while a config is checked.

A run id covers the files that a module declares (`FILES`), the files that a config names for a part of the
user's, and the corpus. Any other file in the working folder or beside the module could change a result and
leave the id as it was. Reads are seen by Python's audit hook, so compiled code that opens files by itself, as
safetensors does, is not seen, nor are reads that begin after the check, such as in a callback's hook.
"""

import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.machinery import all_suffixes
from pathlib import Path
from types import FrameType
from typing import Any

import attnlab
from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint
from attnlab.store.guards import inputs
from attnlab.store.source_digests import FILES_NAME, SourceModule, find_sources, is_user_name

_CODE_SUFFIXES = (*all_suffixes(), ".pyi")
_recorders: list[Callable[[Any, int], None]] = []


class UndeclaredReads:
    """Context that rejects the files which the user's parts of a config read in it and do not declare.

    Raises:
        InvalidConfig: On leaving, one line with the module and the declaration that it lacks.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        names = filter(is_user_name, fingerprint.find_target_names(config))
        self._modules = {
            os.path.realpath(source.path): source
            for name, source in find_sources(names).items()
            if is_user_name(name)
        }
        self._reads: dict[Path, SourceModule] = {}
        self._caller: FrameType | None = None

    def __enter__(self) -> None:
        if self._modules:
            _install_hook()
            frame = inspect.currentframe()
            self._caller = frame.f_back if frame else None
            _recorders.append(self._record)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._modules:
            return
        _recorders.remove(self._record)
        self._caller = None
        if kind is None and (reads := self._find_undeclared()):
            module = next(iter(reads.values()))
            files = [path for path, reader in reads.items() if reader is module]
            names = [*module.files, *(os.path.relpath(path, module.path.parent) for path in files)]
            declaration = json.dumps(names)[1:-1] + "," * (len(names) == 1)
            raise InvalidConfig(
                f"{_format_path(module.path)} reads {' and '.join(map(_format_path, files))}, which it does "
                "not declare, so a change of it would not retrain: add "
                f"{FILES_NAME} = ({declaration}) to {module.path.name}"
            )

    def _record(self, path: Any, flags: int) -> None:
        """Record a file that is opened for reading by a module of the user, or by code that it calls."""
        if not isinstance(path, str | bytes | os.PathLike) or flags & os.O_ACCMODE == os.O_WRONLY:
            return
        frame = inspect.currentframe()
        while frame is not None and frame is not self._caller:
            if module := self._modules.get(_resolve(frame.f_code.co_filename)):
                self._reads.setdefault(Path(os.path.realpath(os.fsdecode(path))), module)
                return
            frame = frame.f_back

    def _find_undeclared(self) -> dict[Path, SourceModule]:
        declared = {
            Path(os.path.realpath(source.path.parent / name))
            for source in self._modules.values()
            for name in source.files
        }
        declared |= {Path(os.path.realpath(path)) for path in _iterate_known_paths(self._config)}
        return {
            path: module
            for path, module in self._reads.items()
            if path.is_file()
            and not path.name.endswith(_CODE_SUFFIXES)
            and any(path.is_relative_to(os.path.realpath(root)) for root in (".", module.path.parent))
            and not any(path == known or path.is_relative_to(known) for known in declared)
        }


def _iterate_known_paths(config: Mapping[str, Any]) -> Iterator[str | Path]:
    """Yield files and folders whose content is in the id, is written by attnlab, or is installed."""
    yield from (path for _, path in fingerprint.find_named_files(config))
    data_keys = [f"data.{name}" for name in inputs.DATA_FILE_KEYS]
    groups = {key: config.get(key) for key in ("data", "paths")}
    for key, text in fingerprint.iterate_possible_paths(groups):
        yield from inputs.match_data_files(text, key) if key in data_keys else [text]
    yield from (Path(attnlab.__file__).parent, CONF)
    yield from (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _format_path(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


@cache
def _resolve(file: str) -> str:
    return os.path.realpath(file)


@cache
def _install_hook() -> None:
    """Install the audit hook, once per process and only for parts of the user's: it cannot be removed."""
    sys.addaudithook(_observe)


def _observe(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for record in _recorders:
            record(arguments[0], arguments[2])
