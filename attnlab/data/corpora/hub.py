"""A text data set of the Hugging Face hub, or of a local folder that `datasets` can read.

Text from the hub is cached as a plain file and not requested again, so the runs of a comparison read the same
text even if the data set changes between them. Delete the file to renew it.
"""

import pkgutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from attnlab.data.corpora import corpus
from attnlab.data.corpora.corpus import Corpus, CorpusMetadata
from attnlab.data.corpora.text_files import JSON_LINES_SUFFIXES, TABLE_SUFFIXES, strip_gzip_suffix
from attnlab.data.corpora.token_cache import load_or_compute, write_file_atomically
from attnlab.data.corpora.unicode_forms import Form, normalize_bytes, warn_of_mixed_forms
from attnlab.data.task import compute_fingerprint
from attnlab.errors import escape_unprintable
from attnlab.store.atomic_files import read_json_object, write_json

SAVED_DATASET_FILES = ("dataset_info.json", "state.json")  # of `Dataset.save_to_disk`
DATA_SUFFIXES = (".txt", *JSON_LINES_SUFFIXES, *TABLE_SUFFIXES)
_OFFLINE_HINT = (
    "without a network, freeze it on a machine that has one"
    " (python -m attnlab corpus export data=hub data.name=...)"
    " and load it with data=frozen data.path=FILE, or use data=text with a file"
)


def load_hub_corpus(
    name: str,
    config: str | None,
    split: str,
    field: str,
    revision: str | None,
    streaming: bool,
    max_chars: int | None,
    normalize: Form | None,
    cache: str,
) -> Corpus:
    """Load the rows of a data set, joined by newlines, up to `max_chars` characters.

    `normalize` is the Unicode form of the text; None leaves it unchanged.
    """
    if max_chars is not None and max_chars < 1:
        raise ValueError(
            f"data.max_chars must be at least 1, or null for the whole data set, got {max_chars}"
        )
    key = f"data.name={name}"
    key_digest = compute_fingerprint(
        name=name, config=config, split=split, field=field, revision=revision, max_chars=max_chars
    )
    cache_file = Path(cache) / "hub" / f"{key_digest}.txt"
    is_local = Path(name).exists()  # the folder may change under the same name, so it is read every time
    if is_local or not cache_file.is_file():
        commit = revision if is_local else _resolve_commit(key, name, revision)
        data = _join_rows(_iterate_rows(key, name, config, split, field, commit, streaming), max_chars)
        if is_local:
            if normalize is None:
                warn_of_mixed_forms(data.decode(), key)
            return corpus.build_corpus(name, normalize_bytes(data, normalize), key)
        write_file_atomically(cache_file, data)
        write_json(cache_file.with_suffix(".json"), {"commit": commit})

    def read_file() -> bytes:
        return normalize_bytes(cache_file.read_bytes(), normalize)

    def describe_file() -> dict[str, Any]:
        data = read_file()
        if normalize is None:
            warn_of_mixed_forms(data.decode(), key)
        return {"sha256": sha256(data).hexdigest(), "bytes": len(data)}

    commit = read_json_object(cache_file.with_suffix(".json")).get("commit") or revision
    description = (name, config, split, field, f"at commit {commit}" if commit else "at no known commit")
    source = escape_unprintable(" ".join(filter(None, description)))
    metadata = CorpusMetadata(
        name=name,
        sources=(source,),
        **load_or_compute(cache, f"hub {normalize}", [cache_file], describe_file),
    )
    return Corpus(metadata, key, read_file)


def _join_rows(rows: Iterator[str], max_chars: int | None) -> bytes:
    pieces = []
    count = 0
    for row in rows:
        row = row.removeprefix("\ufeff")  # the byte-order mark of a file
        pieces.append(row)
        count += len(row) + 1
        if max_chars is not None and count > max_chars:
            break
    return "\n".join(pieces)[:max_chars].encode()


def _resolve_commit(key: str, name: str, revision: str | None) -> str | None:
    """Return the commit of a revision (None: the newest), or `revision` if the hub does not resolve it.

    Raises:
        ValueError: there is no network; `datasets` would retry for half a minute.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(name, revision=revision, timeout=10).sha or revision
    except (HfHubHTTPError, OfflineModeIsEnabled):  # reading the rows reports it better, or works offline
        return revision
    except Exception as error:  # the HTTP library differs between versions
        raise ValueError(
            f"{key}: the hub cannot be reached ({_first_line(error)}); {_OFFLINE_HINT}"
        ) from error


def _iterate_rows(
    key: str,
    name: str,
    config: str | None,
    split: str,
    field: str,
    revision: str | None,
    streaming: bool,
) -> Iterator[str]:
    is_local = Path(name).exists()
    try:
        if is_local:
            rows = _open_folder(Path(name), config, split, revision, streaming)
        else:
            rows = _open_data_set(name, config, split, revision, streaming)
        for chunk in rows.iter(batch_size=1000):
            if field not in chunk:
                raise ValueError(f"data.field={field} does not exist (known: {', '.join(sorted(chunk))})")
            if not all(isinstance(row, str) for row in chunk[field]):
                raise ValueError(f"data.field={field} is not text")
            yield from chunk[field]
    except Exception as error:  # the hub's layers raise many kinds of errors
        raise ValueError(
            f"{key} cannot be read: {_first_line(error)}; check the name, data.config and data.split"
            f"{'' if is_local else f'; {_OFFLINE_HINT}'}"
        ) from error


def _open_data_set(name: str, config: str | None, split: str, revision: str | None, streaming: bool) -> Any:
    """Open a data set of the hub.

    Raises:
        ValueError: `datasets` has a reader of this name, which would read the current folder.
    """
    from datasets import load_dataset, packaged_modules  # slow import (one second)

    if any(module.name == name for module in pkgutil.iter_modules(packaged_modules.__path__)):
        raise ValueError(f"there is no folder {name} here, and data sets of the hub are named OWNER/NAME")
    return load_dataset(name, config, split=split, revision=revision, streaming=streaming)


def _open_folder(folder: Path, config: str | None, split: str, revision: str | None, streaming: bool) -> Any:
    """Open a local folder of data files, or one that `Dataset.save_to_disk` wrote.

    Raises:
        ValueError: it is a file, or `datasets` would skip some of its files.
    """
    from datasets import load_dataset, load_from_disk  # slow import (one second)

    if folder.is_file():
        raise ValueError(f"it is a file: give its folder, or a text file with data=text data.path={folder}")
    if revision is not None:
        raise ValueError("a local folder has no data.revision: remove it")
    if all((folder / name).is_file() for name in SAVED_DATASET_FILES):
        rows = load_from_disk(folder.absolute()).with_format(None)
        if config is not None or split != (saved_split := str(rows.split or "train")):
            raise ValueError(f"it is one saved split: set data.config=null data.split={saved_split}")
        return rows
    for file in folder.rglob("*"):
        suffix = strip_gzip_suffix(file).suffix
        if suffix.lower() in DATA_SUFFIXES and (suffix != suffix.lower() or suffix == ".jsonlines"):
            raise ValueError(
                f"`datasets` skips {file.relative_to(folder)}: write its suffix in small letters, .jsonl for"
                " JSON lines"
            )
    # absolute, since `datasets` takes names such as text and csv for readers of the current folder
    return load_dataset(str(folder.absolute()), config, split=split, streaming=streaming)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
