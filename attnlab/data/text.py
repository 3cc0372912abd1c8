"""Next-token prediction over one long text.

Training windows start anywhere. Validation windows are fixed, evenly spread, and score no token twice. The
two splits are tokenized separately, so no token and no window crosses the border.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache as cached
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from attnlab.data.corpora import overlap
from attnlab.data.corpora.code import load_code_corpus
from attnlab.data.corpora.corpus import Corpus
from attnlab.data.corpora.frozen import load_frozen_corpus
from attnlab.data.corpora.hub import load_hub_corpus
from attnlab.data.corpora.pydocs import load_pydocs_corpus
from attnlab.data.corpora.text_files import load_file_corpus
from attnlab.data.corpora.token_cache import write_file_atomically, write_folder_atomically
from attnlab.data.corpora.unicode_forms import Form
from attnlab.data.task import IGNORE, Batch, compute_fingerprint, make_generator, validate_split
from attnlab.data.tokenizers import MAX_ENCODE_CHARS, Tokenizer
from attnlab.data.vocabulary import Vocabulary, build_vocabulary
from attnlab.store.atomic_files import read_json_object, write_json

VERSION = 2  # raise it when the same settings give other batches
N_SPANS = 64  # spans of validation text scored by losses per byte
SPAN_CHARS = 256  # characters of a span
PROGRESS_MIN_CHARS = 8_000_000  # minimum length of a text for progress messages


class TextTask:
    """The text's last `val_fraction` is for validation, in at most `val_windows` windows (None: all).

    With a corpus for validation, all of `corpus` is for training, and `val_fraction` has no effect. `overlap`
    is the proportion of the validation text that is in the training text; `allow_overlap` permits any.

    Tokens are cached under `cache` and memory-mapped, so the runs of a sweep tokenize once and share the
    memory.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        length: int,
        val_fraction: float,
        val_windows: int | None,
        allow_overlap: bool,
        cache: str,
        validation: Corpus | None = None,
    ) -> None:
        validate_split(length, val_fraction, val_windows)
        if not isinstance(allow_overlap, bool):
            raise ValueError(f"data.allow_overlap must be true or false, got {allow_overlap}")
        texts: dict[str, Any] = {"text": corpus.metadata.sha256}
        if corpus.metadata.groups:
            texts["groups"] = corpus.metadata.groups
        if validation is None:
            texts["val_fraction"] = val_fraction
        else:
            texts["validation"] = validation.metadata.sha256

        @cached
        def load_parts() -> tuple[str, str]:
            if validation is None:
                return corpus.split_text(val_fraction)
            return corpus.load_text(), validation.load_text()

        self.overlap = _load_overlap(texts, load_parts, Path(cache))
        if not allow_overlap:
            validation_name = f"the last part of {corpus.key} (data.val_fraction={val_fraction})"
            overlap.reject_overlap(
                self.overlap, validation_name if validation is None else validation.key, corpus.key
            )
        prepared = compute_fingerprint(version=VERSION, tokenizer=tokenizer.key, **texts)
        folder = Path(cache) / "tokens" / prepared[:32]
        if not folder.exists():
            _write_tokens(load_parts(), tokenizer, Path(cache), folder)
        state = (folder / "tokenizer").read_bytes().decode()
        tokenizer.load(state)
        self._vocabulary = build_vocabulary(tokenizer, state)
        self.name = corpus.metadata.name
        self.unit = tokenizer.unit
        self.vocab_size = tokenizer.vocab_size
        self.length = length
        self.train_ids = _load_memmap(folder / "training.npy")
        self.val_ids = _load_memmap(folder / "validation.npy")
        self._span_ids = _load_memmap(folder / "spans.npy")
        self._span_metadata = json.loads((folder / "spans.json").read_bytes())
        self._tokenizer = tokenizer
        self.train_tokens = len(self.train_ids)
        self.val_tokens = len(self.val_ids)
        for part, tokens in (("training", self.train_ids), ("validation", self.val_ids)):
            if len(tokens) <= length:
                shortest = math.ceil((length + 1) / val_fraction)
                key, remedy = corpus.key, f"{shortest} tokens (at data.val_fraction={val_fraction})"
                if validation is not None:
                    key = corpus.key if part == "training" else validation.key
                    remedy = f"{length + 1} tokens"
                raise ValueError(
                    f"{key}: the {part} text has {len(tokens)} tokens ({self.unit}), but one window of"
                    f" data.length={length} takes {length + 1}; lower data.length, or give a text of "
                    f"at least {remedy}"
                )
        # A window scores `length` tokens and reads one more before them, so adjacent windows share one token.
        possible = (self.val_tokens - 1) // length
        self.val_windows = possible if val_windows is None else min(val_windows, possible)
        self.fingerprint = compute_fingerprint(
            prepared=prepared, origin=corpus.metadata.origin, length=length, val_windows=self.val_windows
        )

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        last = self.train_tokens - self.length
        starts = torch.randint(last, (batch_size,), generator=make_generator(seed, step))
        return self.gather_windows(self.train_ids, starts.numpy())

    def val_batches(self, batch_size: int) -> list[Batch]:
        free = self.val_tokens - 1 - self.length  # 0 where a single window fills the text
        starts = np.arange(self.val_windows) * free // max(1, self.val_windows - 1)
        return [
            self.gather_windows(self.val_ids, starts[i : i + batch_size])
            for i in range(0, self.val_windows, batch_size)
        ]

    def spans(self, count: int, length: int) -> torch.Tensor:
        """Return at most `count` spans of validation text [N, length + 1] that score no token twice.

        Raises:
            ValueError: not even one span fits.
        """
        possible = (self.val_tokens - 1) // length
        if not possible:
            raise ValueError(
                f"measure.lengths: the validation text has {self.val_tokens} tokens, but the longest "
                "window takes"
                f" {length + 1}; lower data.length, or raise data.val_fraction"
            )
        rows = np.arange(min(count, possible))
        starts = rows * (self.val_tokens - 1 - length) // max(1, len(rows) - 1)
        windows = self.val_ids[starts[:, None] + np.arange(length + 1)]
        return torch.from_numpy(windows.astype(np.int64))

    def byte_batches(self, batch_size: int) -> list[Batch]:
        """Return windows that score each byte of `val_text` once, for any tokenizer and `length`.

        The last window of a span is padded with unscored targets.
        """
        ends = np.cumsum(self._span_metadata["tokens"])
        rows = []
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            for position in range(start, end - 1, self.length):
                row = self._span_ids[position : min(position + self.length + 1, end)].astype(np.int64)
                rows.append(np.pad(row, (0, self.length + 1 - len(row)), constant_values=IGNORE))
        windows = torch.from_numpy(np.stack(rows)).split(batch_size) if rows else ()
        return [{"tokens": window[:, :-1].clamp(min=0), "targets": window[:, 1:]} for window in windows]

    @property
    def val_text(self) -> dict[str, Any]:
        """The text scored by `byte_batches`: its `sha256` and its number of UTF-8 `bytes`."""
        return {key: self._span_metadata[key] for key in ("sha256", "bytes")}

    def gather_windows(self, tokens: np.ndarray, starts: np.ndarray) -> Batch:
        """Return the windows of `tokens` that begin at `starts` [B]."""
        rows = sliding_window_view(tokens, self.length + 1)[starts]  # contiguous reads from the file
        return {
            "tokens": torch.from_numpy(rows[:, :-1].astype(np.int64)),
            "targets": torch.from_numpy(rows[:, 1:].astype(np.int64)),
        }

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> list[str]:
        return self._tokenizer.decode(ids)


def _load_memmap(file: Path) -> np.ndarray:
    """Return a memory-mapped array as a plain array, without the overhead of `np.memmap`."""
    return np.asarray(np.load(file, mmap_mode="r"))


def _load_overlap(
    texts: Mapping[str, Any], load_parts: Callable[[], tuple[str, str]], cache: Path
) -> dict[str, float]:
    """Return the shares of `measure_overlap`, cached, so that a second run does not read the texts."""
    key = compute_fingerprint(version=overlap.VERSION, **texts)
    cache_file = cache / "overlap" / f"{key[:32]}.json"
    shares = read_json_object(cache_file)
    if shares.keys() != overlap.MAX_SHARES.keys():
        parts = load_parts()
        _print_progress(
            sum(map(len, parts)), "comparing {} million characters of training and {}", "validation"
        )
        shares = overlap.measure_overlap(*parts)
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file, shares)
    return shares


def _write_tokens(parts: tuple[str, str], tokenizer: Tokenizer, cache: Path, folder: Path) -> None:
    """Tokenize both parts and write the folder of the token cache."""
    state = _fit_or_load_tokenizer(parts, tokenizer, cache)
    _print_progress(sum(map(len, parts)), "tokenizing {} million characters ({})", tokenizer.unit)
    with write_folder_atomically(folder) as temporary_folder:
        write_file_atomically(temporary_folder / "tokenizer", state.encode())
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        for name, part in zip(("training", "validation"), parts, strict=True):
            pieces = [part[i : i + MAX_ENCODE_CHARS] for i in range(0, len(part), MAX_ENCODE_CHARS)] or [""]
            with open(temporary_folder / f"{name}.npy", "wb") as f:
                np.save(f, np.concatenate([tokenizer.encode(piece).astype(dtype) for piece in pieces]))
                f.flush()
                os.fsync(f.fileno())
        _write_spans(parts[1], tokenizer, temporary_folder, dtype)


def _write_spans(validation: str, tokenizer: Tokenizer, folder: Path, dtype: Any) -> None:
    """Write validation spans that are the same bytes for every tokenizer.

    The spans are evenly spread over the validation text. Each is tokenized separately, preceded by the last
    token of the character before it.
    """
    count = min(N_SPANS, max(1, len(validation) // (2 * SPAN_CHARS))) if len(validation) > 1 else 0
    starts = np.arange(count) * max(0, len(validation) - 1 - SPAN_CHARS) // max(1, count - 1) + 1
    texts = [validation[start : start + SPAN_CHARS] for start in starts]
    tokens = [
        np.concatenate([tokenizer.encode(validation[start - 1])[-1:], tokenizer.encode(text)])
        for start, text in zip(starts, texts, strict=True)
    ]
    metadata = {
        "sha256": compute_fingerprint(spans=texts),
        "bytes": len("".join(texts).encode()),
        "tokens": [len(span) for span in tokens],
    }
    write_file_atomically(folder / "spans.json", json.dumps(metadata).encode())
    with open(folder / "spans.npy", "wb") as f:
        np.save(f, np.concatenate([*tokens, np.empty(0, np.int64)]).astype(dtype))
        f.flush()
        os.fsync(f.fileno())


def _fit_or_load_tokenizer(parts: tuple[str, str], tokenizer: Tokenizer, cache: Path) -> str:
    """Return the tokenizer's state; slow fits are cached and shared by all tasks with this training text."""
    if not tokenizer.is_slow_to_fit:
        return tokenizer.fit(*parts)
    key = compute_fingerprint(training=sha256(parts[0].encode()).hexdigest(), tokenizer=tokenizer.key)
    cache_file = cache / "tokenizers" / key[:32]
    if cache_file.is_file():
        state = cache_file.read_bytes().decode()
        tokenizer.load(state)
        return state
    _print_progress(len(parts[0]), "fitting the tokenizer ({1}) to {0} million characters", tokenizer.key)
    state = tokenizer.fit(*parts)
    write_file_atomically(cache_file, state.encode())
    return state


def _print_progress(characters: int, message: str, name: str) -> None:
    if characters >= PROGRESS_MIN_CHARS:
        print(
            message.format(round(characters / 1e6), name) + "; the result is cached",
            file=sys.stderr,
            flush=True,
        )


def pydocs_text(**options: Any) -> TextTask:
    return TextTask(load_pydocs_corpus(), **options)


def file_text(
    path: str, validation_path: str | None, text_key: str, normalize: Form | None, cache: str, **options: Any
) -> TextTask:
    corpus = load_file_corpus(path, cache, text_key, normalize)
    validation = None
    if validation_path is not None:
        validation = load_file_corpus(validation_path, cache, text_key, normalize, "data.validation_path")
    return TextTask(corpus, cache=cache, validation=validation, **options)


def code_text(cache: str, **options: Any) -> TextTask:
    return TextTask(load_code_corpus(cache), cache=cache, **options)


def frozen_text(path: str, cache: str, **options: Any) -> TextTask:
    return TextTask(load_frozen_corpus(path, cache), cache=cache, **options)


def hub_text(
    name: str,
    config: str | None,
    split: str,
    validation_split: str | None,
    field: str,
    revision: str | None,
    streaming: bool,
    max_chars: int | None,
    normalize: Form | None,
    cache: str,
    **options: Any,
) -> TextTask:
    if split == validation_split:
        raise ValueError(
            f"data.validation_split={split} is the training split too: choose another split, or null"
        )

    def load_split(split: str) -> Corpus:
        return load_hub_corpus(name, config, split, field, revision, streaming, max_chars, normalize, cache)

    validation = None if validation_split is None else load_split(validation_split)
    return TextTask(load_split(split), cache=cache, validation=validation, **options)


# The corpus loader of each task, to read a text without tokenizing it.
CORPUS_LOADERS: Mapping[Callable[..., TextTask], Callable[..., Corpus]] = {
    pydocs_text: load_pydocs_corpus,
    file_text: load_file_corpus,
    code_text: load_code_corpus,
    frozen_text: load_frozen_corpus,
    hub_text: load_hub_corpus,
}
