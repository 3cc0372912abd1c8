"""Digests of what a run left: a file that is missing, cut or flipped is found out, and an edited record too.

No signature: whoever edits a record can seal it anew. What it finds are accidents (a copy cut short, a bad
disk, a number mended by hand). Records from before there were digests have nothing to be compared with.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnlab.store.schema import RunRecord

WEIGHTS = "model.safetensors"
CURVES = "curves.parquet"
MAPS = "attention.npz"
VOCABULARY = "vocabulary.json"
FILES = (WEIGHTS, CURVES, MAPS, VOCABULARY)
PICTURED = (CURVES, MAPS)  # what a report shows; both are small
_encode = json.JSONEncoder(sort_keys=True).encode
LARGE = 64_000_000  # bytes: what is larger is read by those who use it, not by those who tell of it


def of_files(folder: Path) -> dict[str, str]:
    """File name -> sha256 of what a run has left beside its record."""
    return {name: _sha256(folder / name) for name in FILES if (folder / name).is_file()}


def broken(
    folder: Path, record: RunRecord, names: Iterable[str] = FILES, most: int | None = None
) -> dict[str, str]:
    """File name -> what is wrong with it, of those that are not as the run wrote them.

    With `most`, a file of more bytes is taken as it is.
    """
    faults = {name: _fault(folder / name, record.files.get(name), most) for name in names}
    return {name: fault for name, fault in faults.items() if fault}


def _fault(path: Path, wanted: str | None, most: int | None) -> str:
    if wanted is None:
        return ""
    try:
        if most is not None and path.stat().st_size > most:
            return ""
        return "" if _sha256(path) == wanted else "is not what the run wrote: cut short or changed"
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def seal(content: Mapping[str, Any]) -> dict[str, str]:
    """Field -> digest of a record's values, as JSON has them."""
    return {
        key: hashlib.sha256(_encode(value).encode()).hexdigest()[:16]
        for key, value in content.items()
        if key != "seal"
    }


def edited(content: Mapping[str, Any]) -> list[str]:
    """The fields of a sealed record that are not as they were written; none where it has no seal."""
    if not (was := content.get("seal")):
        return []
    now = seal(content)
    return [key for key in {**was, **now} if was.get(key) != now.get(key)]


def _sha256(path: Path) -> str:
    found = path.stat()
    return _read(path.absolute(), found.st_size, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=4096)
def _read(path: Path, _size: int, _modified: int, _inode: int) -> str:
    """Once per process: `watch` looks every second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
