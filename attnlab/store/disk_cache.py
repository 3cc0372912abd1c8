"""Disk cache of slow computations: JSON files in `paths.cache`, named by a digest of their inputs.

Nothing depends on an entry: a cache that is lost or cannot be written only costs time.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from attnlab.store.atomic_files import read_json, write_json

CacheKind = Literal["arms", "checks", "invariants", "looks", "seeds"]  # topic of a value, and its folder


def read_cache_entry(config: Mapping[str, Any], folder: CacheKind, key: str) -> Any:
    """Return the cached value; None if there is no readable entry."""
    return read_json(_get_entry_path(config, folder, key))


def write_cache_entry(config: Mapping[str, Any], folder: CacheKind, key: str, value: Any) -> None:
    """Cache a JSON value; a write error is ignored.

    Raises:
        ValueError: NaN or infinity, which JSON lacks.
    """
    path = _get_entry_path(config, folder, key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)


def _get_entry_path(config: Mapping[str, Any], folder: CacheKind, key: str) -> Path:
    return Path((config.get("paths") or {}).get("cache") or ".cache") / folder / f"{key}.json"
