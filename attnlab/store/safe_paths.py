"""Names that come from elsewhere (a bucket, a stored config, a report) as paths that stay below a folder."""

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from attnlab.errors import InvalidConfig, escape_unprintable

MAX_PART_BYTES = 255  # of common file systems
MAX_NAME_BYTES = 1024  # of a bucket


def resolve_below(root: Path, name: str) -> Path:
    """Return the path of `name` in a folder.

    Raises:
        InvalidConfig: it would lead out of the folder, by its text or by a link, or is no portable name.
    """
    problem = explain_unsafe_name(name)
    path = root / name
    if not problem and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        problem = "leads out of the folder by a link"
    if problem:
        raise InvalidConfig(f"{root}: the name {name!r} {problem}: remove or rename it")
    return path


def require_safe_names(names: Iterable[str], place: str) -> None:
    """Check that names can be files below one folder, none of which replaces another."""
    names_by_key: dict[str, str] = {}
    for name in names:
        problem = explain_unsafe_name(name)
        key = unicodedata.normalize("NFC", name).casefold()
        if not problem and (other := names_by_key.setdefault(key, name)) != name:
            problem = f"is one file with {other!r} where case does not matter"
        if problem:
            raise InvalidConfig(f"{place}: the name {name!r} {problem}: remove or rename it")


def is_plain_name(text: str) -> bool:
    """Whether a text is a single part of a path that names an entry of its folder."""
    return "/" not in text and not explain_unsafe_name(text)


def require_run_name(key: str, text: str) -> str:
    """Return a text that names a run's folder."""
    if not is_plain_name(text):
        raise InvalidConfig(f"{key}={text}: a path is not allowed: give the id of a run in paths.runs")
    return text


def explain_unsafe_name(name: str) -> str:
    """Explain why a relative path, with `/` between its parts, is not safe; empty if it is."""
    parts = name.split("/")
    if name.startswith("/") or any(re.match("[A-Za-z]:", part) for part in parts):
        return "is an absolute path"
    if not {"", ".", ".."}.isdisjoint(parts):
        return "has an empty, `.` or `..` part"
    if "\\" in name or escape_unprintable(name) != name:
        return "has a backslash or a control character"
    if len(name.encode()) > MAX_NAME_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return "is too long"
    return ""
