"""A portable corpus in one file: gzip over one line of JSON, its `CorpusMetadata`, followed by the text.

The same corpus gives the same bytes on every machine and at any time; the file gives the same text and the
same split everywhere. Files may come from untrusted sources: nothing in them is executed.
"""

import gzip
import json
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.data.corpora.corpus import Corpus, CorpusMetadata, decode_utf8
from attnlab.data.corpora.text_files import read_gzip
from attnlab.data.corpora.token_cache import load_or_compute
from attnlab.store.guards.inputs import reject_special_files

FILE_SIGNATURE = b"attnlab corpus 1\n"
MAX_NAME_CHARS = 4000  # of a name in the metadata


def freeze_corpus(corpus: Corpus, path: Path) -> None:
    """Write a corpus to a file, without timestamps or paths."""
    head = json.dumps(corpus.metadata.model_dump(mode="json"))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as gzip_file:
        gzip_file.write(FILE_SIGNATURE + head.encode() + b"\n")
        gzip_file.write(corpus.load_text().encode())


def load_frozen_corpus(path: str, cache: str) -> Corpus:
    """Load the corpus in a file.

    Raises:
        ValueError: the file is no frozen corpus, or is damaged; the message is one line.
    """
    key = f"data.path={path}"
    file = Path(path)
    reject_special_files("data.path", file, recursive=False)

    def read_metadata() -> dict[str, Any]:
        return _read_frozen(file, key)[0].model_dump(mode="json")

    try:
        metadata = load_or_compute(cache, "frozen", [file], read_metadata)
    except OSError as error:
        raise ValueError(
            f"{key}: {error.strerror}; give a file written by `python -m attnlab corpus export`"
        ) from None
    return Corpus(
        CorpusMetadata.model_validate_json(json.dumps(metadata)), key, lambda: _read_frozen(file, key)[1]
    )


def _read_frozen(file: Path, key: str) -> tuple[CorpusMetadata, bytes]:
    """Return a frozen corpus's metadata, validated against its text, and the text."""
    try:
        content = read_gzip(file)
        if not content.startswith(FILE_SIGNATURE):
            raise ValueError("it is not a frozen corpus; for your own text, use data=text")
        head, _, data = content[len(FILE_SIGNATURE) :].partition(b"\n")
        metadata = CorpusMetadata.model_validate_json(head)
        _validate_metadata(metadata, data)
    except ValidationError:
        raise ValueError(f"{key} is damaged: its header cannot be read; copy or export it again") from None
    except ValueError as error:
        raise ValueError(f"{key} cannot be read: {error}; copy or export it again") from None
    return metadata, data


def _validate_metadata(metadata: CorpusMetadata, data: bytes) -> None:
    """Validate metadata against its text.

    Raises:
        ValueError: the metadata describes another text, or contains names that cannot be printed safely.
    """
    names = (
        metadata.name,
        metadata.origin,
        *metadata.sources,
        *metadata.counts,
        *(name for name, _ in metadata.groups),
    )
    if not all(name.isprintable() and len(name) <= MAX_NAME_CHARS for name in names):
        raise ValueError("its header contains an unprintable name")
    if (metadata.bytes, metadata.sha256) != (len(data), sha256(data).hexdigest()):
        raise ValueError("its header describes a different text")
    decode_utf8(data, "its text")
    sizes = [size for _, size in metadata.groups]
    has_valid_borders = all(
        data[border] & 0xC0 != 0x80 for border in accumulate(sizes[:-1]) if 0 <= border < len(data)
    )
    if sizes and (min(sizes) < 0 or sum(sizes) != len(data) or not has_valid_borders):
        raise ValueError("the group sizes in its header do not fit its text")
