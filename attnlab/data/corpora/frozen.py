"""A corpus in one file that travels: gzip over a line of JSON, which is its `About`, and its text.

The same corpus gives the same bytes, whoever freezes it and when; on any machine the file gives the same text
in the same two parts. It may be anybody's: nothing in it is run.
"""

import gzip
import json
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.data.corpora.corpus import About, Corpus, decoded
from attnlab.data.corpora.files import read_unpacked
from attnlab.data.corpora.kept import known
from attnlab.store.guards.inputs import refuse_no_file

MARK = b"attnlab corpus 1\n"
LONGEST = 4000  # characters of a name in a head


def freeze(corpus: Corpus, to: Path) -> None:
    """Writes the file. No time goes into it, and no place."""
    head = json.dumps(corpus.about.model_dump(mode="json"))
    with to.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        packed.write(MARK + head.encode() + b"\n")
        packed.write(corpus.text().encode())


def frozen_corpus(path: str, cache: str) -> Corpus:
    """The corpus in a file. ValueError, one line, where it is none, or is damaged."""
    key = f"data.path={path}"
    file = Path(path)
    refuse_no_file("data.path", file, below=False)

    def look() -> dict[str, Any]:
        return _parts(file, key)[0].model_dump(mode="json")

    try:
        about = known(cache, "frozen", [file], look)
    except OSError as error:
        raise ValueError(
            f"{key}: {error.strerror}; give a file that `python -m attnlab corpus export` wrote"
        ) from None
    return Corpus(About.model_validate_json(json.dumps(about)), key, lambda: _parts(file, key)[1])


def _parts(file: Path, key: str) -> tuple[About, bytes]:
    """What is told of the text, and the text, of which it is true."""
    try:
        content = read_unpacked(file)
        if not content.startswith(MARK):
            raise ValueError("it is no frozen corpus; a text of your own is data=text")
        head, _, data = content[len(MARK) :].partition(b"\n")
        about = About.model_validate_json(head)
        _refuse(about, data)
    except ValidationError:
        raise ValueError(f"{key} is damaged: its head cannot be read; copy or export it again") from None
    except ValueError as error:
        raise ValueError(f"{key} cannot be read: {error}; copy or export it again") from None
    return about, data


def _refuse(about: About, data: bytes) -> None:
    """ValueError where a head does not tell of this text, or has names that no terminal should be given."""
    names = (about.name, about.origin, *about.sources, *about.counts, *(name for name, _ in about.groups))
    if not all(name.isprintable() and len(name) <= LONGEST for name in names):
        raise ValueError("its head has a name that cannot be printed")
    if (about.bytes, about.sha256) != (len(data), sha256(data).hexdigest()):
        raise ValueError("its text is not the one that its head tells of")
    decoded(data, "its text")
    sizes = [size for _, size in about.groups]
    inside = all(data[border] & 0xC0 != 0x80 for border in accumulate(sizes[:-1]) if 0 <= border < len(data))
    if sizes and (min(sizes) < 0 or sum(sizes) != len(data) or not inside):
        raise ValueError("its head divides another text")
