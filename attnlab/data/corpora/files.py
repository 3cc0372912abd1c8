"""A text of the user's own: one file, or all that a pattern matches, unpacked where they are packed.

Surprising: the files of a pattern are one text, in the order of their names, a newline between
two, so at most one of them is on both sides of the border between training and validation.
"""

import gzip
import json
import os
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

from attnlab.data.corpora.corpus import About, Corpus, decoded
from attnlab.data.corpora.kept import known
from attnlab.errors import printable
from attnlab.store.guards.inputs import matching

PACKED = (".gz", ".dz")  # gzip and dictzip


def file_corpus(path: str, cache: str) -> Corpus:
    """`path` may have wildcards, `**` among them. ValueError, one line, where nothing is there, or what is
    there cannot be read.
    """
    key = f"data.path={path}"
    paths = matching(path)
    if not paths:
        raise ValueError(f"{key}: no file matches; quote it, as in data.path='/usr/share/texts/**/*.txt'")

    def read() -> bytes:
        return _joined(paths, key)

    def look() -> dict[str, Any]:
        data = read()
        # Names below the folder that the files share: where that lies is nobody else's business.
        folder = os.path.commonpath([each.parent for each in paths])
        return About(
            name=_name(path, paths),
            sha256=sha256(data).hexdigest(),
            bytes=len(data),
            counts={"files": len(paths)},
            sources=tuple(printable(os.path.relpath(each, folder or None)) for each in paths),
        ).model_dump(mode="json")

    try:
        about = About.model_validate_json(json.dumps(known(cache, f"files {path}", paths, look)))
    except OSError as error:
        where = "" if len(paths) == 1 else f"{error.filename}: "
        raise ValueError(f"{key}: {where}{error.strerror}; give a UTF-8 text file") from None
    return Corpus(about, key, read)


def _name(path: str, paths: list[Path]) -> str:
    """The file without its ending, or the last two parts of the pattern."""
    if len(paths) == 1:
        return Path(paths[0].stem).stem if paths[0].suffix in PACKED else paths[0].stem
    return "/".join(Path(path).parts[-2:])


def _joined(paths: list[Path], key: str) -> bytes:
    """Of several files each has to be UTF-8 by itself, so that the one that is not can be named."""
    try:
        contents = [read_unpacked(path) if path.suffix in PACKED else path.read_bytes() for path in paths]
    except OSError:
        raise
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if len(paths) > 1:
        for path, content in zip(paths, contents, strict=True):
            decoded(content, f"{key}: {path}")
    return b"\n".join(contents)


def read_unpacked(path: Path) -> bytes:
    """What gzip packed into a file. ValueError for what is broken; OSError."""
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is broken: {error or 'it ends too soon'}") from error
