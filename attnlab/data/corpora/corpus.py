"""A corpus: one UTF-8 text, its metadata, and its split into training and validation.

The metadata, including the text's hash, is available without reading the text, so a run with cached tokens
starts without it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256

from pydantic import BaseModel, ConfigDict

from attnlab.data.task import compute_fingerprint


class CorpusMetadata(BaseModel):
    """Description of a corpus without its text, stored next to the text or at the head of a frozen corpus.

    Attributes:
        sha256: hash of the text.
        bytes: size of the text.
        origin: distinguishes the text from others with other sources.
        groups: name and bytes of the parts, in order, that a split never divides.
        counts: numbers of files read and dropped.
        sources: names of the files or packages read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    sha256: str
    bytes: int
    origin: str = ""
    groups: tuple[tuple[str, int], ...] = ()
    counts: dict[str, int] = {}
    sources: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of everything that determines training and validation text, for a given `val_fraction`."""
        return compute_fingerprint(text=self.sha256, origin=self.origin, groups=self.groups)


@dataclass(frozen=True)
class Corpus:
    """A text and its metadata.

    Attributes:
        key: the setting that selected the corpus, for error messages.
        read: returns the bytes of the text.
    """

    metadata: CorpusMetadata
    key: str
    read: Callable[[], bytes]

    def load_text(self) -> str:
        """Read and decode the text.

        Raises:
            ValueError: the text is not UTF-8, is empty, or has changed since it was hashed; the message is
                one line.
        """
        data = self.read()
        if sha256(data).hexdigest() != self.metadata.sha256:
            raise ValueError(
                f"{self.key} changed after it was hashed: run the command again; if the error persists,"
                " delete the folder `corpora` in paths.cache"
            )
        text = decode_utf8(data, self.key)
        if not text.strip():
            raise ValueError(f"{self.key} is empty; give a text that is not")
        return text

    def split_text(self, val_fraction: float) -> tuple[str, str]:
        """Return training and validation text.

        Without groups, the last `val_fraction` of the characters, rounded up, are for validation. Groups are
        never divided; `choose_validation_groups` assigns them.
        """
        text = self.load_text()
        if not self.metadata.groups:
            border = len(text) - math.ceil(len(text) * val_fraction)
            return text[:border], text[border:]
        chosen = choose_validation_groups(self.metadata.groups, val_fraction)
        data = text.encode()
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        start = 0
        for name, size in self.metadata.groups:
            parts[name in chosen].append(data[start : start + size])
            start += size
        training, validation = (b"".join(part).decode() for part in parts)
        return training, validation


def build_corpus(name: str, data: bytes, key: str, origin: str = "") -> Corpus:
    """Build a corpus from text in memory."""
    metadata = CorpusMetadata(name=name, sha256=sha256(data).hexdigest(), bytes=len(data), origin=origin)
    return Corpus(metadata, key, lambda: data)


def choose_validation_groups(groups: Sequence[tuple[str, int]], val_fraction: float) -> set[str]:
    """Choose the groups for validation, so that they fill at most `val_fraction` of the bytes.

    Groups are visited in the order of a hash of their names, and each one that still fits is chosen. A
    package's side thus depends on other packages only through their sizes.
    """
    bytes_left = sum(size for _, size in groups) * val_fraction
    chosen = set()
    for name, size in sorted(groups, key=lambda group: blake2b(group[0].encode(), digest_size=16).digest()):
        if size <= bytes_left:
            chosen.add(name)
            bytes_left -= size
    return chosen


def decode_utf8(data: bytes, source: str) -> str:
    """Decode UTF-8.

    Raises:
        ValueError: `data` is not UTF-8; the message gives the offset of the first invalid byte of `source`.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start};"
            " convert the file to UTF-8"
        ) from None
