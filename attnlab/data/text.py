"""Next-token prediction over one long text.

Training windows start anywhere; validation windows are fixed, spread evenly, and score no token twice.
Surprising: both parts are tokenised apart, so no token, and no window, reaches across the border.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from attnlab.data.corpora.code import code_corpus
from attnlab.data.corpora.corpus import Corpus
from attnlab.data.corpora.files import file_corpus
from attnlab.data.corpora.frozen import frozen_corpus
from attnlab.data.corpora.hub import hub_corpus
from attnlab.data.corpora.kept import whole, write
from attnlab.data.corpora.pydocs import pydocs_corpus
from attnlab.data.task import IGNORE, Batch, check_split, fingerprint, generator
from attnlab.data.tokenizers import PIECE, Tokenizer
from attnlab.data.vocabulary import Vocabulary, of_tokenizer

VERSION = 2  # of the way from text to batches: raise it when the same settings give other batches
SPANS = 64
SPAN = 256  # stretches of validation text, and characters of each, that losses per byte score
LONG = 8_000_000  # characters, from which on a user is told what is waited for


class Text:
    """The last `val_fraction` of the text is for validation, at most `val_windows` windows of it (None: all).

    Tokens are kept under `cache` and memory-mapped: the runs of a sweep tokenise once and share the memory.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        length: int,
        val_fraction: float,
        val_windows: int | None,
        cache: str,
    ) -> None:
        check_split(length, val_fraction, val_windows)
        groups = {"groups": corpus.about.groups} if corpus.about.groups else {}
        prepared = fingerprint(
            version=VERSION,
            text=corpus.about.sha256,
            tokenizer=tokenizer.key,
            val_fraction=val_fraction,
            **groups,
        )
        folder = Path(cache) / "tokens" / prepared[:32]
        if not folder.exists():
            _prepare(corpus.split(val_fraction), tokenizer, Path(cache), folder)
        state = (folder / "tokenizer").read_bytes().decode()
        tokenizer.load(state)
        self._vocabulary = of_tokenizer(tokenizer, state)
        self.name = corpus.about.name
        self.unit = tokenizer.unit
        self.vocab_size = tokenizer.vocab_size
        self.length = length
        self.training = _mapped(folder / "training.npy")
        self.validation = _mapped(folder / "validation.npy")
        self._span_tokens = _mapped(folder / "spans.npy")
        self._spans = json.loads((folder / "spans.json").read_bytes())
        self._tokenizer = tokenizer
        self.train_tokens = len(self.training)
        self.val_tokens = len(self.validation)
        for part, tokens in (("training", self.training), ("validation", self.validation)):
            if len(tokens) <= length:
                shortest = math.ceil((length + 1) / val_fraction)
                raise ValueError(
                    f"{corpus.key}: the {part} text has {len(tokens)} tokens ({self.unit}), but one window of"
                    f" data.length={length} takes {length + 1}; lower data.length, or give a text of at least"
                    f" {shortest} tokens (at data.val_fraction={val_fraction})"
                )
        # A window scores `length` tokens and reads one more before them, so neighbours share one token.
        possible = (self.val_tokens - 1) // length
        self.val_windows = possible if val_windows is None else min(val_windows, possible)
        self.fingerprint = fingerprint(
            prepared=prepared, origin=corpus.about.origin, length=length, val_windows=self.val_windows
        )

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        last = self.train_tokens - self.length
        starts = torch.randint(last, (batch_size,), generator=generator(seed, step))
        return self.windows(self.training, starts.numpy())

    def val_batches(self, batch_size: int) -> list[Batch]:
        free = self.val_tokens - 1 - self.length  # 0 where a single window fills the text
        starts = np.arange(self.val_windows) * free // max(1, self.val_windows - 1)
        return [
            self.windows(self.validation, starts[i : i + batch_size])
            for i in range(0, self.val_windows, batch_size)
        ]

    def spans(self, count: int, length: int) -> torch.Tensor:
        """At most `count` stretches of validation text [N, length + 1], which score no token twice.
        ValueError where not even one fits.
        """
        possible = (self.val_tokens - 1) // length
        if not possible:
            raise ValueError(
                f"measure.lengths: the validation text has {self.val_tokens} tokens, and the longest takes"
                f" {length + 1}; lower data.length, or raise data.val_fraction"
            )
        rows = np.arange(min(count, possible))
        starts = rows * (self.val_tokens - 1 - length) // max(1, len(rows) - 1)
        windows = self.validation[starts[:, None] + np.arange(length + 1)]
        return torch.from_numpy(windows.astype(np.int64))

    def byte_batches(self, batch_size: int) -> list[Batch]:
        """Windows that score each byte of `val_text` once, whatever the tokenizer and `length`; the last
        window of a stretch is filled with targets that do not count.
        """
        ends = np.cumsum(self._spans["tokens"])
        rows = []
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            for at in range(start, end - 1, self.length):
                row = self._span_tokens[at : min(at + self.length + 1, end)].astype(np.int64)
                rows.append(np.pad(row, (0, self.length + 1 - len(row)), constant_values=IGNORE))
        windows = torch.from_numpy(np.stack(rows)).split(batch_size) if rows else ()
        return [{"tokens": each[:, :-1].clamp(min=0), "targets": each[:, 1:]} for each in windows]

    @property
    def val_text(self) -> dict[str, Any]:
        """The text that `byte_batches` score: its `sha256` and its `bytes` of UTF-8."""
        return {key: self._spans[key] for key in ("sha256", "bytes")}

    def windows(self, tokens: np.ndarray, starts: np.ndarray) -> Batch:
        """The windows of `tokens` that begin at `starts` [B]."""
        rows = sliding_window_view(tokens, self.length + 1)[starts]  # in long runs, as they lie in the file
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


def _mapped(file: Path) -> np.ndarray:
    """An array that is read from its file as it is needed, without the cost of numpy's own class for it."""
    return np.asarray(np.load(file, mmap_mode="r"))


def _prepare(parts: tuple[str, str], tokenizer: Tokenizer, cache: Path, folder: Path) -> None:
    """Writes a folder of tokens."""
    state = _fitted(parts, tokenizer, cache)
    _say(sum(map(len, parts)), "turning {} million characters into tokens ({})", tokenizer.unit)
    with whole(folder) as partial:
        write(partial / "tokenizer", state.encode())
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        for name, part in zip(("training", "validation"), parts, strict=True):
            pieces = [part[i : i + PIECE] for i in range(0, len(part), PIECE)] or [""]
            with open(partial / f"{name}.npy", "wb") as f:
                np.save(f, np.concatenate([tokenizer.encode(piece).astype(dtype) for piece in pieces]))
                f.flush()
                os.fsync(f.fileno())
        _write_spans(parts[1], tokenizer, partial, dtype)


def _write_spans(validation: str, tokenizer: Tokenizer, folder: Path, dtype: Any) -> None:
    """Stretches evenly spread over the validation text, each tokenized by itself behind the character before
    it, so that every tokenizer scores the same bytes.
    """
    count = min(SPANS, max(1, len(validation) // (2 * SPAN))) if len(validation) > 1 else 0
    starts = np.arange(count) * max(0, len(validation) - 1 - SPAN) // max(1, count - 1) + 1
    texts = [validation[start : start + SPAN] for start in starts]
    tokens = [
        np.concatenate([tokenizer.encode(validation[start - 1])[-1:], tokenizer.encode(text)])
        for start, text in zip(starts, texts, strict=True)
    ]
    facts = {
        "sha256": fingerprint(spans=texts),
        "bytes": len("".join(texts).encode()),
        "tokens": [len(each) for each in tokens],
    }
    write(folder / "spans.json", json.dumps(facts).encode())
    with open(folder / "spans.npy", "wb") as f:
        np.save(f, np.concatenate([*tokens, np.empty(0, np.int64)]).astype(dtype))
        f.flush()
        os.fsync(f.fileno())


def _fitted(parts: tuple[str, str], tokenizer: Tokenizer, cache: Path) -> str:
    """What the tokenizer learns; where that takes long, it is kept for all with this training text."""
    if not tokenizer.learns_long:
        return tokenizer.fit(*parts)
    learned = fingerprint(training=sha256(parts[0].encode()).hexdigest(), tokenizer=tokenizer.key)
    kept = cache / "tokenizers" / learned[:32]
    if kept.is_file():
        state = kept.read_bytes().decode()
        tokenizer.load(state)
        return state
    _say(len(parts[0]), "learning the tokens ({1}) of {0} million characters", tokenizer.key)
    state = tokenizer.fit(*parts)
    write(kept, state.encode())
    return state


def _say(characters: int, what: str, name: str) -> None:
    if characters >= LONG:
        print(what.format(round(characters / 1e6), name) + ", once", file=sys.stderr, flush=True)


def pydocs(**options: Any) -> Text:
    return Text(pydocs_corpus(), **options)


def file(path: str, cache: str, **options: Any) -> Text:
    return Text(file_corpus(path, cache), cache=cache, **options)


def code(cache: str, **options: Any) -> Text:
    return Text(code_corpus(cache), cache=cache, **options)


def frozen(path: str, cache: str, **options: Any) -> Text:
    return Text(frozen_corpus(path, cache), cache=cache, **options)


def hub(
    name: str,
    config: str | None,
    split: str,
    field: str,
    revision: str | None,
    streaming: bool,
    max_chars: int | None,
    cache: str,
    **options: Any,
) -> Text:
    corpus = hub_corpus(name, config, split, field, revision, streaming, max_chars, cache)
    return Text(corpus, cache=cache, **options)


# What each of these reads, for who wants the text without its tokens.
OPENS: Mapping[Callable[..., Text], Callable[..., Corpus]] = {
    pydocs: pydocs_corpus,
    file: file_corpus,
    code: code_corpus,
    frozen: frozen_corpus,
    hub: hub_corpus,
}
