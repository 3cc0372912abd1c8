"""A text data set of the Hugging Face hub, or of a local folder that `datasets` can read.

Surprising: what came from the hub once is kept as a plain file and never asked for again, so the runs of
a comparison read the same text even if the data set is changed between them. Delete the file to renew it.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from attnlab.data.corpora import corpus
from attnlab.data.corpora.corpus import About, Corpus
from attnlab.data.corpora.kept import known, write
from attnlab.data.task import fingerprint
from attnlab.errors import printable
from attnlab.store.files import read_json, write_json

_INSTEAD = (
    "without a network, freeze it where there is one (python -m attnlab corpus export data=hub data.name=...)"
    " and load it with data=frozen data.path=FILE, or use data=text with a file"
)


def hub_corpus(
    name: str,
    config: str | None,
    split: str,
    field: str,
    revision: str | None,
    streaming: bool,
    max_chars: int | None,
    cache: str,
) -> Corpus:
    """The rows of a data set, one newline between two, until there are `max_chars` characters."""
    if max_chars is not None and max_chars < 1:
        raise ValueError(f"data.max_chars={max_chars}: it must be at least 1, or null for the whole data set")
    key = f"data.name={name}"
    chosen = fingerprint(
        name=name, config=config, split=split, field=field, revision=revision, max_chars=max_chars
    )
    kept = Path(cache) / "hub" / f"{chosen}.txt"
    local = Path(name).exists()  # may change under the same name, so it is read anew each time
    if local or not kept.is_file():
        commit = revision if local else _commit(key, name, revision)
        data = _text(_rows(key, name, config, split, field, commit, streaming), max_chars)
        if local:
            return corpus.of(name, data, key)
        write(kept, data)
        write_json(kept.with_suffix(".json"), {"commit": commit})

    def look() -> dict[str, Any]:
        data = kept.read_bytes()
        return {"sha256": sha256(data).hexdigest(), "bytes": len(data)}

    commit = (read_json(kept.with_suffix(".json")) or {}).get("commit") or revision
    told = (name, config, split, field, f"at commit {commit}" if commit else "at no known commit")
    source = printable(" ".join(filter(None, told)))
    about = About(name=name, sources=(source,), **known(cache, "hub", [kept], look))
    return Corpus(about, key, kept.read_bytes)


def _text(rows: Iterator[str], max_chars: int | None) -> bytes:
    pieces = []
    count = 0
    for row in rows:
        pieces.append(row)
        count += len(row) + 1
        if max_chars is not None and count > max_chars:
            break
    return "\n".join(pieces)[:max_chars].encode()


def _commit(key: str, name: str, revision: str | None) -> str | None:
    """What a revision, or the newest, is called for ever; where the hub does not tell, what was asked for.
    ValueError at once where there is no network: `datasets` would try again for half a minute.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(name, revision=revision, timeout=10).sha or revision
    except (HfHubHTTPError, OfflineModeIsEnabled):  # reading the rows says it better, or needs no network
        return revision
    except Exception as error:  # of whichever library asks today
        raise ValueError(f"{key}: the hub cannot be reached ({_first_line(error)}); {_INSTEAD}") from error


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
        raise ValueError(
            f"{key} cannot be read: {_first_line(error)}; check the name, data.config and data.split;"
            f" {_INSTEAD}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
