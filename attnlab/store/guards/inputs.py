"""Validation of input paths before anything is read: data are regular files, and a parent is a run id.

The check never opens a pipe, since that waits for a writer, nor a device, which may never end.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from glob import has_magic, iglob
from itertools import islice
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store.atomic_files import describe_special_file
from attnlab.store.fingerprint import iterate_possible_paths
from attnlab.store.safe_paths import require_run_name

DATA_FILE_KEYS = ("path", "validation_path")  # of `data`: paths or patterns of files
MAX_FOLDER_ENTRIES = 2000  # entries of a folder that are checked
MAX_DATA_FILES = 100_000  # files of one corpus


def validate_inputs(config: Mapping[str, Any]) -> None:
    """Check the data paths and the parent of a config.

    Raises:
        InvalidConfig: One line, if data would be read from a non-file, or the parent is a path.
    """
    data = config.get("data")
    for key, text in iterate_possible_paths({"data": data}):
        reject_special_files(key, Path(text), recursive=key == "data.name")
    if isinstance(data, Mapping):
        for key in DATA_FILE_KEYS:
            if _reads_data_files(data, key) and Path(data[key]).is_dir():
                folder = data[key].rstrip("/")
                raise InvalidConfig(
                    f"data.{key}={data[key]} is a folder: give a regular file; the text files below it are"
                    f" data=text data.{key}='{folder}/**/*', a data set is data=hub data.name={folder}"
                )
    if parent := config.get("parent"):
        require_run_name("parent", str(parent))


def require_data_files(config: Mapping[str, Any]) -> None:
    """Check that the text files of a config exist; patterns are matched when they are read."""
    data: Any = config.get("data")
    for key in DATA_FILE_KEYS if isinstance(data, Mapping) else ():
        if _reads_data_files(data, key) and not has_magic(data[key]) and not os.path.exists(data[key]):
            reason = os.strerror(errno.ENOENT)
            raise InvalidConfig(f"data.{key}={data[key]}: {reason}; give a UTF-8 text file")


def reject_special_files(key: str, path: Path, *, recursive: bool) -> None:
    """Reject a pipe, device or socket.

    Args:
        recursive: Also check the files below a folder.
    """
    for candidate in islice(_iterate_tree(path), MAX_FOLDER_ENTRIES) if recursive else [path]:
        if kind := describe_special_file(candidate):
            where = f"{key}={path}" if candidate == path else f"{key}={path}: {candidate.relative_to(path)}"
            raise InvalidConfig(f"{where} is {kind}: give a regular file")


def match_data_files(pattern: str, key: str = "data.path") -> list[Path]:
    """Return the files that a key names: an existing path, else its wildcard matches, sorted by name.

    Raises:
        InvalidConfig: Too many matches, or one of them is a pipe, device or socket.
    """
    if Path(pattern).exists() or not has_magic(pattern):
        return [Path(pattern)]
    names = sorted(islice(iglob(pattern, recursive=True), MAX_DATA_FILES + 1))
    if len(names) > MAX_DATA_FILES:
        raise InvalidConfig(f"{key}={pattern} matches more than {MAX_DATA_FILES:,} files: narrow the pattern")
    paths = [Path(name) for name in names if not os.path.isdir(name)]
    for file in paths:
        if kind := describe_special_file(file):
            raise InvalidConfig(f"{key}={pattern}: {file} is {kind}: match regular files only")
    return paths


def _reads_data_files(data: Mapping[str, Any], key: str) -> bool:
    """Whether an attnlab task reads files at a key; other classes may give it another meaning."""
    task = data.get("task")
    target = task.get("_target_") if isinstance(task, Mapping) else None
    return isinstance(data.get(key), str) and str(target).startswith("attnlab.")


def _iterate_tree(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir():
        for folder, _, files in os.walk(path):
            yield from (Path(folder, file) for file in files)
