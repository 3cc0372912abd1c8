"""Next-token prediction over one long text.

Training windows start anywhere; validation windows are fixed, spread evenly, and score no token twice.
Surprising: both parts are tokenised apart, so no token, and no window, reaches across the border.
"""

import math
import os
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from attnlab.data import sources
from attnlab.data.sources import Source
from attnlab.data.task import Batch, check_split, fingerprint, generator
from attnlab.data.tokenizers import Tokenizer

VERSION = 1  # of the way from text to batches: raise it when the same settings give other batches


class Text:
    """The last `val_fraction` of the text is for validation, at most `val_windows` windows of it (None: all).

    Tokens are kept under `cache` and memory-mapped: the runs of a sweep tokenise once and share the memory.
    """

    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer,
        length: int,
        val_fraction: float,
        val_windows: int | None,
        cache: str,
    ) -> None:
        check_split(length, val_fraction, val_windows)
        prepared = fingerprint(
            version=VERSION,
            text=sha256(source.data).hexdigest(),
            tokenizer=tokenizer.key,
            val_fraction=val_fraction,
        )
        folder = Path(cache) / "tokens" / prepared[:32]
        if not folder.exists():
            _prepare(source.text(), tokenizer, val_fraction, folder)
        tokenizer.load((folder / "tokenizer").read_bytes().decode())
        self.name = source.name
        self.unit = tokenizer.unit
        self.vocab_size = tokenizer.vocab_size
        self.length = length
        self.training = np.load(folder / "training.npy", mmap_mode="r")
        self.validation = np.load(folder / "validation.npy", mmap_mode="r")
        self._tokenizer = tokenizer
        self.train_tokens = len(self.training)
        self.val_tokens = len(self.validation)
        for part, tokens in (("training", self.training), ("validation", self.validation)):
            if len(tokens) <= length:
                shortest = math.ceil((length + 1) / val_fraction)
                raise ValueError(
                    f"{source.key}: the {part} text has {len(tokens)} tokens ({self.unit}), but one window of"
                    f" data.length={length} takes {length + 1}; lower data.length, or give a text of at least"
                    f" {shortest} tokens (at data.val_fraction={val_fraction})"
                )
        # A window scores `length` tokens and reads one more before them, so neighbours share one token.
        possible = (self.val_tokens - 1) // length
        self.val_windows = possible if val_windows is None else min(val_windows, possible)
        self.fingerprint = fingerprint(
            prepared=prepared, origin=source.origin, length=length, val_windows=self.val_windows
        )

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        last = self.train_tokens - self.length
        starts = torch.randint(last, (batch_size,), generator=generator(seed, step))
        return self._windows(self.training, starts.numpy())

    def val_batches(self, batch_size: int) -> list[Batch]:
        free = self.val_tokens - 1 - self.length  # 0 where a single window fills the text
        starts = np.arange(self.val_windows) * free // max(1, self.val_windows - 1)
        return [
            self._windows(self.validation, starts[i : i + batch_size])
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

    def _windows(self, tokens: np.ndarray, starts: np.ndarray) -> Batch:
        windows = torch.from_numpy(tokens[starts[:, None] + np.arange(self.length + 1)].astype(np.int64))
        return {"tokens": windows[:, :-1].contiguous(), "targets": windows[:, 1:].contiguous()}

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> list[str]:
        return self._tokenizer.decode(ids)


def _prepare(text: str, tokenizer: Tokenizer, val_fraction: float, folder: Path) -> None:
    """Write a folder of tokens: complete or not there at all, also when several processes do it at once."""
    border = len(text) - math.ceil(len(text) * val_fraction)
    training, validation = text[:border], text[border:]
    state = tokenizer.fit(training, validation)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{uuid4().hex}")
    partial.mkdir()
    sources.write(partial / "tokenizer", state.encode())
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    for name, part in (("training", training), ("validation", validation)):
        with open(partial / f"{name}.npy", "wb") as f:
            np.save(f, tokenizer.encode(part).astype(dtype))
            f.flush()
            os.fsync(f.fileno())
    try:
        partial.rename(folder)
    except OSError:  # another process was faster, and wrote the same
        shutil.rmtree(partial)
        if not folder.exists():
            raise


def pydocs(**options: Any) -> Text:
    return Text(sources.pydocs(), **options)


def file(path: str, **options: Any) -> Text:
    return Text(sources.file(path), **options)


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
    source = sources.hub(name, config, split, field, revision, streaming, max_chars, cache)
    return Text(source, cache=cache, **options)
