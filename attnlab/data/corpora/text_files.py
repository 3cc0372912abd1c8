"""A user's text: one file, or all files that match a pattern, decompressed if necessary.

The files of a pattern form one text, ordered by name and joined by newlines, so at most one of them is on
both sides of the border between training and validation. A line of a .jsonl file is a document, and documents
are joined by newlines too. Files under other names that start with a JSON object are read in the same way, so
that no keys and braces are trained on unnoticed; only a .txt file is always read as it is.
"""

import codecs
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from attnlab.data.corpora.corpus import Corpus, CorpusMetadata, decode_utf8
from attnlab.data.corpora.token_cache import load_or_compute
from attnlab.data.corpora.unicode_forms import Form, normalize_text, warn_of_mixed_forms
from attnlab.errors import escape_unprintable
from attnlab.store.atomic_files import open_user_file, parse_json
from attnlab.store.guards.inputs import match_data_files

GZIP_SUFFIXES = (".gz", ".dz", ".gzip")  # gzip and dictzip
GZIP_SIGNATURE = b"\x1f\x8b"
JSON_LINES_SUFFIXES = (".jsonl", ".jsonlines", ".ndjson")
JSON_OBJECT_START = re.compile(r'\s*\[?\s*\{\s*"[^"\n]*"\s*:')
TABLE_SUFFIXES = (".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather")
# UTF-32 first: its little-endian mark starts with that of UTF-16
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
FILE_KINDS = (  # offset and value of the bytes that identify files without plain text, kind, remedy
    (
        0,
        b"PK\x03\x04",
        "a zip archive or an Office document",
        "unpack it, or save the document as plain text",
    ),
    (0, GZIP_SIGNATURE, "compressed twice", "unpack it with `gunzip`"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it with `zstd -d`"),
    (4, b"1AY&SY", "compressed with bzip2", "unpack it with `bunzip2`"),
    (0, b"\xfd7zXZ\x00", "compressed with xz", "unpack it with `unxz`"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (0, b"Rar!\x1a\x07", "a rar archive", "unpack it"),
    (257, b"ustar", "a tar archive", "unpack it, and give a pattern of its files"),
    (0, b"PAR1", "a parquet file", "load its folder with data=hub data.name=FOLDER data.field=COLUMN"),
    (0, b"ARROW1", "an Arrow file", "load its folder with data=hub data.name=FOLDER data.field=COLUMN"),
    (0, b"version https://git-lfs.", "a git-lfs pointer", "fetch the file with `git lfs pull`"),
    (0, b"%PDF-", "a PDF file", "extract its text, as with `pdftotext`"),
    (0, b"{\\rtf", "an RTF document", "save it as plain text"),
    (0, b"\xd0\xcf\x11\xe0", "an Office document", "save it as plain text"),
    (0, b"\x89PNG", "an image", "give a text file"),
    (0, b"\xff\xd8\xff", "an image", "give a text file"),
    (0, b"GIF8", "an image", "give a text file"),
    (0, b"SQLite format 3\x00", "an SQLite database", "export its text"),
    (0, b"\x89HDF", "an HDF5 file", "export its text"),
    (0, b"\x93NUMPY", "a NumPy array", "export its text"),
    (0, b"\x7fELF", "a program", "give a text file"),
)


def load_file_corpus(
    path: str,
    cache: str,
    text_key: str,
    normalize: Form | None,
    setting: str = "data.path",
) -> Corpus:
    """Load the files at `path`, which may contain wildcards, including `**`.

    Args:
        text_key: the key of a .jsonl document that holds its text.
        normalize: the Unicode form of the text; None leaves it unchanged.
        setting: the config key of `path`, for error messages.

    Raises:
        ValueError: no file matches, or a file cannot be read; the message is one line.
    """
    key = f"{setting}={path}"
    paths = match_data_files(path, setting)
    if not paths:
        raise ValueError(f"{key}: no file matches; quote it, as in {setting}='/usr/share/texts/**/*.txt'")

    def read_files() -> bytes:
        return _join_files(paths, key, text_key, normalize)

    def describe_files() -> dict[str, Any]:
        data = read_files()
        if normalize is None:
            warn_of_mixed_forms(data.decode(), key)
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
            json.dumps(load_or_compute(cache, f"files {path} {text_key} {normalize}", paths, describe_files))
        )
    except OSError as error:
        file_prefix = "" if len(paths) == 1 else f"{error.filename}: "
        raise ValueError(f"{key}: {file_prefix}{error.strerror}; give a UTF-8 text file") from None
    return Corpus(metadata, key, read_files)


def _choose_name(path: str, paths: list[Path]) -> str:
    """Return the file's name without suffix, or the last two parts of the pattern."""
    if len(paths) == 1:
        return strip_gzip_suffix(paths[0]).stem
    return "/".join(Path(path).parts[-2:])


def strip_gzip_suffix(path: Path) -> Path:
    """Return the path of the unpacked file; its own suffix names the format."""
    return path.with_suffix("") if path.suffix.lower() in GZIP_SUFFIXES else path


def _join_files(paths: list[Path], key: str, text_key: str, normalize: Form | None) -> bytes:
    """Join the texts of the files."""
    texts = [_read_text(path, key if len(paths) == 1 else f"{key}: {path}", text_key) for path in paths]
    return normalize_text("\n".join(texts), normalize).encode()


def _read_text(path: Path, source: str, text_key: str) -> str:
    """Return the text of a file; `source` names it in error messages.

    Raises:
        ValueError: the file is not text.
        OSError: it cannot be read.
    """
    unpacked = strip_gzip_suffix(path)
    suffix = unpacked.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        path.stat()  # a missing file has its own message
        raise ValueError(
            f"{source} is a {suffix} file, whose text is in a column: load its folder with data=hub"
            f" data.name={path.parent} data.field=COLUMN, or write the text to a .txt or .jsonl file"
        )
    content = _read_bytes(path)
    if unpacked != path or content.startswith(GZIP_SIGNATURE):
        content = unpack_gzip(content, source)
    text = decode_text(content, source)
    if suffix in JSON_LINES_SUFFIXES or (suffix != ".txt" and JSON_OBJECT_START.match(text)):
        return "\n".join(_iterate_documents(text, source, text_key))
    return text


def decode_text(content: bytes, source: str) -> str:
    """Decode text without its byte-order mark: UTF-8, or UTF-16 and UTF-32 with a mark.

    Raises:
        ValueError: `content` is something else; the message names its kind and how to get text from it.
    """
    for offset, signature, kind, remedy in FILE_KINDS:
        if content.startswith(signature, offset):
            raise ValueError(f"{source} is {kind}, not text: {remedy}")
    for mark, encoding in BYTE_ORDER_MARKS:
        if content.startswith(mark):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{source} starts with the byte-order mark of {encoding.removesuffix('-sig').upper()}, "
                    f"but cannot be decoded at offset {error.start}; convert the file to UTF-8"
                ) from None
    if 0 in content:
        raise ValueError(
            f"{source} has a zero byte at offset {content.index(0)}: it is binary, or UTF-16 without a "
            "byte-order mark; convert UTF-16 with `iconv -f UTF-16LE -t UTF-8`"
        )
    return decode_utf8(content, source)


def _iterate_documents(text: str, source: str, text_key: str) -> Iterator[str]:
    """Yield the text of each line of JSON lines."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            document = parse_json(line)
        except ValueError:
            raise ValueError(
                f"{source}, line {number} is not JSON: give one JSON object per line, or name the file"
                " .txt to read it as it is"
            ) from None
        if not isinstance(document, dict) or not isinstance(document.get(text_key), str):
            keys = ", ".join(map(str, document)) if isinstance(document, dict) else "none, it is no object"
            raise ValueError(
                f"{source}, line {number} has no text under {text_key!r} (keys: {keys}): set data.text_key"
            )
        try:
            document[text_key].encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{source}, line {number} has half of a surrogate pair: write valid Unicode"
            ) from None
        yield document[text_key]


def read_gzip(path: Path) -> bytes:
    """Return the decompressed content of a gzip file.

    Raises:
        ValueError: the file is broken.
        OSError: it cannot be read.
    """
    return unpack_gzip(_read_bytes(path), str(path))


def _read_bytes(path: Path) -> bytes:
    with open_user_file(path, None) as file:
        return file.read()


def unpack_gzip(content: bytes, source: str) -> bytes:
    """Decompress gzip.

    Raises:
        ValueError: the content is broken; the message names `source`.
    """
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{source} is damaged: {error or 'it is truncated'}") from error
