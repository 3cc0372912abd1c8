"""A user's text: one file, or all files that match a pattern, decompressed if necessary.

The files of a pattern form one text, ordered by name and joined by newlines, so at most one of them is on
both sides of the border between training and validation.
"""

import gzip
import json
import os
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

from attnlab.data.corpora.corpus import Corpus, CorpusMetadata, decode_utf8
from attnlab.data.corpora.token_cache import load_or_compute
from attnlab.errors import escape_unprintable
from attnlab.store.guards.inputs import match_data_files

GZIP_SUFFIXES = (".gz", ".dz")  # gzip and dictzip


def load_file_corpus(path: str, cache: str) -> Corpus:
    """Load the files at `path`, which may contain wildcards, including `**`.

    Raises:
        ValueError: no file matches, or a file cannot be read; the message is one line.
    """
    key = f"data.path={path}"
    paths = match_data_files(path)
    if not paths:
        raise ValueError(f"{key}: no file matches; quote it, as in data.path='/usr/share/texts/**/*.txt'")

    def read_files() -> bytes:
        return _join_files(paths, key)

    def describe_files() -> dict[str, Any]:
        data = read_files()
        # Names relative to the files' common folder: its location is private.
        folder = os.path.commonpath([file.parent for file in paths])
        return CorpusMetadata(
            name=_choose_name(path, paths),
            sha256=sha256(data).hexdigest(),
            bytes=len(data),
            counts={"files": len(paths)},
            sources=tuple(escape_unprintable(os.path.relpath(file, folder or None)) for file in paths),
        ).model_dump(mode="json")

    try:
        metadata = CorpusMetadata.model_validate_json(
            json.dumps(load_or_compute(cache, f"files {path}", paths, describe_files))
        )
    except OSError as error:
        file_prefix = "" if len(paths) == 1 else f"{error.filename}: "
        raise ValueError(f"{key}: {file_prefix}{error.strerror}; give a UTF-8 text file") from None
    return Corpus(metadata, key, read_files)


def _choose_name(path: str, paths: list[Path]) -> str:
    """Return the file's name without suffix, or the last two parts of the pattern."""
    if len(paths) == 1:
        return Path(paths[0].stem).stem if paths[0].suffix in GZIP_SUFFIXES else paths[0].stem
    return "/".join(Path(path).parts[-2:])


def _join_files(paths: list[Path], key: str) -> bytes:
    """Join the files' contents.

    Each of several files must be UTF-8 by itself, so that the error can name the file.
    """
    try:
        contents = [read_gzip(path) if path.suffix in GZIP_SUFFIXES else path.read_bytes() for path in paths]
    except OSError:
        raise
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if len(paths) > 1:
        for path, content in zip(paths, contents, strict=True):
            decode_utf8(content, f"{key}: {path}")
    return b"\n".join(contents)


def read_gzip(path: Path) -> bytes:
    """Return the decompressed content of a gzip file.

    Raises:
        ValueError: the file is broken.
        OSError: it cannot be read.
    """
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error or 'it is truncated'}") from error
