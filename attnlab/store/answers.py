"""Answers that take long to find, kept in `paths.cache` as JSON under the digest of what they depend on.

Nothing leans on them: a cache that is lost or cannot be written costs time, no more.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from attnlab.store.files import read_json, write_json

Kind = Literal["arms", "checks", "laws", "looks", "seeds"]  # what an answer is about, and its folder


def kept(config: Mapping[str, Any], kind: Kind, key: str) -> Any:
    """The answer that was kept; None where there is none that can be read."""
    return read_json(_path(config, kind, key))


def keep(config: Mapping[str, Any], kind: Kind, key: str, answer: Any) -> None:
    """Keeps an answer of plain values. ValueError for NaN and infinity, since JSON has none."""
    path = _path(config, kind, key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, answer)


def _path(config: Mapping[str, Any], kind: Kind, key: str) -> Path:
    return Path((config.get("paths") or {}).get("cache") or ".cache") / kind / f"{key}.json"
