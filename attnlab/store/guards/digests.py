"""Digests of run files and result fields, to detect missing, truncated or changed files and edited results.

The seal is no signature: an editor of a result can seal it again. It detects accidents: a truncated copy, a
bad disk, a number edited by hand. Results written before digests existed cannot be checked.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnlab.store.file_names import CURVES_FILE, MAPS_FILE

# Modules whose source is part of run ids import these names from here.
from attnlab.store.file_names import VOCABULARY_FILE as VOCABULARY_FILE
from attnlab.store.file_names import WEIGHTS_FILE as WEIGHTS_FILE
from attnlab.store.run_schema import RunResult

RUN_FILES = (WEIGHTS_FILE, CURVES_FILE, MAPS_FILE, VOCABULARY_FILE)
PLOTTED_FILES = (CURVES_FILE, MAPS_FILE)  # shown in reports; both are small
_encode_json = json.JSONEncoder(sort_keys=True).encode
LARGE_FILE_BYTES = 64_000_000  # larger files are verified only before use, not for status output


def hash_run_files(folder: Path) -> dict[str, str]:
    """Return file name -> sha256 of the files that a run has written next to its result."""
    return {name: _hash_file(folder / name) for name in RUN_FILES if (folder / name).is_file()}


def find_broken_files(
    folder: Path, result: RunResult, names: Iterable[str] = RUN_FILES, max_bytes: int | None = None
) -> dict[str, str]:
    """Return file name -> fault, for the files that differ from those the run wrote.

    Args:
        max_bytes: Files larger than this are not checked, nor those that only the bucket of a mirror has.
            With None, these are downloaded.
    """
    faults = {name: _describe_fault(folder / name, result.files.get(name), max_bytes) for name in names}
    return {name: fault for name, fault in faults.items() if fault}


def _describe_fault(path: Path, expected: str | None, max_bytes: int | None) -> str:
    if expected is None:
        return ""
    try:
        if max_bytes is not None and path.stat().st_size > max_bytes:
            return ""
        return "" if _hash_file(path) == expected else "is truncated or was changed after the run wrote it"
    except (FileNotFoundError, NotADirectoryError):
        from attnlab.store import remote  # late: a report or a single file needs no bucket

        if max_bytes is None and remote.fetch_missing(path):
            return _describe_fault(path, expected, max_bytes)
        return "" if max_bytes is not None and remote.find_mirror(path.parent.parent) else "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def compute_seal(content: Mapping[str, Any]) -> dict[str, str]:
    """Return field -> digest of the JSON values of a result."""
    return {
        key: hashlib.sha256(_encode_json(value).encode()).hexdigest()[:16]
        for key, value in content.items()
        if key != "seal"
    }


def find_edited_fields(content: Mapping[str, Any]) -> list[str]:
    """Return the fields that changed since the result was sealed; none if it has no seal."""
    if not (sealed := content.get("seal")):
        return []
    current = compute_seal(content)
    return [key for key in {**sealed, **current} if sealed.get(key) != current.get(key)]


def _hash_file(path: Path) -> str:
    file_stat = path.stat()
    return _hash_file_version(path.absolute(), file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ino)


@lru_cache(maxsize=4096)
def _hash_file_version(path: Path, _size: int, _modified: int, _inode: int) -> str:
    """Hash a file once per version and process: `watch` polls every second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
