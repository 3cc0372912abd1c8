"""What a config names as its input, before anything is read: files are files, and a parent is a name.

Surprising: a pipe is not opened to find out, since that waits for who writes it, and a device never ends.
"""

import os
from collections.abc import Iterator, Mapping
from glob import has_magic, iglob
from itertools import islice
from pathlib import Path
from typing import Any

from attnlab.errors import Refused
from attnlab.store.files import no_file
from attnlab.store.fingerprint import flatten

MANY = 2000  # entries of a folder that are looked at
MOST = 100_000  # files of one text


def check(config: Mapping[str, Any]) -> None:
    """Refused, one line, where data are to be read from what is no file, or the parent is a path."""
    data = config.get("data")
    for key, leaf in flatten({"data": data}):
        for value in leaf if isinstance(leaf, list) else [leaf]:
            if isinstance(value, str) and value and len(value) < 4096 and "\0" not in value:
                refuse_no_file(key, Path(value), below=key == "data.name")
    if isinstance(data, Mapping) and _reads_a_file(data) and Path(data["path"]).is_dir():
        raise Refused(f"data.path={data['path']} is a folder: give a file")
    parent = config.get("parent")
    if parent and not is_name(str(parent)):
        raise Refused(f"parent={parent}: give the id of a run in the store, which is no path")


def is_name(text: str) -> bool:
    """Whether a text names something in a folder, and leads nowhere else."""
    return text not in ("", ".", "..") and not {"/", os.sep, "\0"} & {*text}


def refuse_no_file(key: str, path: Path, *, below: bool) -> None:
    """Refused where there lies a pipe, a device or a socket; with `below` also somewhere in a folder."""
    for each in islice(_all(path), MANY) if below else [path]:
        if kind := no_file(each):
            where = f"{key}={path}" if each == path else f"{key}={path}: {each.relative_to(path)}"
            raise Refused(f"{where} is {kind}: give a file, which can be read again")


def matching(path: str) -> list[Path]:
    """The files that `data.path` names: the one that lies there, or else those that its wildcards match, in
    the order of their names. Refused where that is too many, or one of them is a pipe or a device.
    """
    if Path(path).exists() or not has_magic(path):
        return [Path(path)]
    names = sorted(islice(iglob(path, recursive=True), MOST + 1))
    if len(names) > MOST:
        raise Refused(f"data.path={path} matches more than {MOST:,} files: name fewer")
    paths = [Path(name) for name in names if not os.path.isdir(name)]
    for each in paths:
        if kind := no_file(each):
            raise Refused(f"data.path={path}: {each} is {kind}: match files alone, which can be read again")
    return paths


def _reads_a_file(data: Mapping[str, Any]) -> bool:
    """Whether it is attnlab's own data that read `path`; what another's `path` is, only they know."""
    task = data.get("task")
    target = task.get("_target_") if isinstance(task, Mapping) else None
    return isinstance(data.get("path"), str) and str(target).startswith("attnlab.")


def _all(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir():
        for folder, _, files in os.walk(path):
            yield from (Path(folder, file) for file in files)
