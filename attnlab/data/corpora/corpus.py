"""What every corpus is: one UTF-8 text, what it was made of, and how it is split in two.

Surprising: the text is not read to know what it is. Its hash is, so that a run whose tokens are kept starts
without it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256

from pydantic import BaseModel, ConfigDict

from attnlab.data.task import fingerprint


class About(BaseModel):
    """What is told of a corpus without its text: on disk beside it, and at the head of a frozen one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    sha256: str  # of the text
    bytes: int  # of the text
    origin: str = ""  # what else tells this text from another one
    groups: tuple[
        tuple[str, int], ...
    ] = ()  # name and bytes of the parts, in order, that a split keeps whole
    counts: dict[str, int] = {}  # of what was read, and of what was left out
    sources: tuple[str, ...] = ()  # what was read

    @property
    def fingerprint(self) -> str:
        """Of all that decides the training and the validation text, for a given `val_fraction`."""
        return fingerprint(text=self.sha256, origin=self.origin, groups=self.groups)


@dataclass(frozen=True)
class Corpus:
    """`key` is the setting that chose it, for error messages; `read` gives its text."""

    about: About
    key: str
    read: Callable[[], bytes]

    def text(self) -> str:
        """ValueError, one line, where it is not UTF-8, has nothing in it, or is not the text it was."""
        data = self.read()
        if sha256(data).hexdigest() != self.about.sha256:
            raise ValueError(
                f"{self.key} is not the text that it was when it was hashed: run the command again, and where"
                " that does not help, delete the folder `corpora` in paths.cache"
            )
        text = decoded(data, self.key)
        if not text.strip():
            raise ValueError(f"{self.key} is empty; give a text that has something in it")
        return text

    def split(self, val_fraction: float) -> tuple[str, str]:
        """Training and validation text. Of a text without groups the last `val_fraction` of the characters,
        rounded up, are for validation; groups stay whole, and which ones it are `held_out` says.
        """
        text = self.text()
        if not self.about.groups:
            border = len(text) - math.ceil(len(text) * val_fraction)
            return text[:border], text[border:]
        chosen = held_out(self.about.groups, val_fraction)
        data = text.encode()
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        start = 0
        for name, size in self.about.groups:
            parts[name in chosen].append(data[start : start + size])
            start += size
        training, validation = (b"".join(part).decode() for part in parts)
        return training, validation


def of(name: str, data: bytes, key: str, origin: str = "") -> Corpus:
    """A corpus that is in memory already."""
    about = About(name=name, sha256=sha256(data).hexdigest(), bytes=len(data), origin=origin)
    return Corpus(about, key, lambda: data)


def held_out(groups: Sequence[tuple[str, int]], val_fraction: float) -> set[str]:
    """The groups for validation: in the order of a hash of their names, each that still fits into
    `val_fraction` of the bytes. So it depends on no other text which side a package is on, but for its size.
    """
    room = sum(size for _, size in groups) * val_fraction
    chosen = set()
    for name, size in sorted(groups, key=lambda group: blake2b(group[0].encode(), digest_size=16).digest()):
        if size <= room:
            chosen.add(name)
            room -= size
    return chosen


def decoded(data: bytes, what: str) -> str:
    """ValueError, with the place of the first wrong byte of `what`, where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start};"
            " convert the file to UTF-8"
        ) from None
