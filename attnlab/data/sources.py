"""Where text comes from: Python's own documentation, a file, or the Hugging Face hub.

Surprising: what came from the hub once is kept as a plain file and never asked for again, so the runs of
a comparison read the same text even if the data set is changed between them. Delete the file to renew it.
"""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnlab.data.task import fingerprint
from attnlab.store.files import replacing


@dataclass(frozen=True)
class Source:
    name: str
    data: bytes  # UTF-8; decoded only where it is not prepared yet
    key: str  # the setting that chose it, for error messages
    origin: str = ""  # what else tells this text from another one

    def text(self) -> str:
        try:
            text = self.data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.key} is not UTF-8: byte {self.data[error.start]:#04x} at offset {error.start};"
                " convert the file to UTF-8"
            ) from None
        if not text.strip():
            raise ValueError(f"{self.key} is empty; give a text that has something in it")
        return text


def pydocs() -> Source:
    """The reference topics of CPython's `help()`, about 465,000 characters of English and code.

    They come with Python, so no download is needed; they differ between Python versions.
    """
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return Source("pydocs", text.encode(), "data=pydocs", origin=f"python {platform.python_version()}")


def file(path: str) -> Source:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"data.path={path}: {error.strerror}; give a UTF-8 text file") from None
    return Source(Path(path).stem, data, f"data.path={path}")


def hub(
    name: str,
    config: str | None,
    split: str,
    field: str,
    revision: str | None,
    streaming: bool,
    max_chars: int | None,
    cache: str,
) -> Source:
    """The rows of a text data set of the hub (or of a local folder that `datasets` can read), one newline
    between two, until there are `max_chars` characters."""
    if max_chars is not None and max_chars < 1:
        raise ValueError(f"data.max_chars={max_chars}: it must be at least 1, or null for the whole data set")
    key = f"data.name={name}"
    chosen = fingerprint(
        name=name, config=config, split=split, field=field, revision=revision, max_chars=max_chars
    )
    kept = Path(cache) / "hub" / f"{chosen}.txt"
    local = Path(name).exists()  # may change under the same name, so it is read anew each time
    if not local and kept.is_file():
        return Source(name, kept.read_bytes(), key)
    pieces, count = [], 0
    for row in _rows(key, name, config, split, field, revision, streaming):
        pieces.append(row)
        count += len(row) + 1
        if max_chars is not None and count > max_chars:
            break
    data = "\n".join(pieces)[:max_chars].encode()
    if not local:
        write(kept, data)
    return Source(name, data, key)


def _rows(
    key: str,
    name: str,
    config: str | None,
    split: str,
    field: str,
    revision: str | None,
    streaming: bool,
) -> Iterator[str]:
    from datasets import load_dataset  # costs a second, which only those who need it should pay

    try:
        rows = load_dataset(name, config, split=split, revision=revision, streaming=streaming)
        for chunk in rows.iter(batch_size=1000):
            if field not in chunk:
                raise ValueError(f"there is no data.field={field}, only {', '.join(sorted(chunk))}")
            if not all(isinstance(row, str) for row in chunk[field]):
                raise ValueError(f"data.field={field} is not text")
            yield from chunk[field]
    except Exception as error:  # whatever the hub's many layers raise, the user needs one line of it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{key} cannot be read: {reason}; check the name, data.config, data.split and the network,"
            " or use data=text with a file"
        ) from error


def write(path: Path, data: bytes) -> None:
    """All of the file or none of it, whatever happens meanwhile and whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(data)
