"""Short words, one per example: the start token, the characters, and the start token again as the end.

A hash of the name assigns it to training or validation. Files of names are often sorted by popularity, so a
split by position would validate on a different distribution. Repeated names count once, so that no name is on
both sides.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch

from attnlab.data.corpora.corpus import Corpus
from attnlab.data.corpora.hub import load_hub_corpus
from attnlab.data.corpora.text_files import load_file_corpus
from attnlab.data.corpora.unicode_forms import Form
from attnlab.data.task import IGNORE, Batch, compute_fingerprint, make_generator, validate_split
from attnlab.data.tokenizers import START_ID, NameCodec
from attnlab.data.vocabulary import Vocabulary

VERSION = 1  # raise it when the same settings give other batches


class NamesTask:
    """Windows as long as the longest name needs, at most `length`.

    With `pack` above 1, each window holds `pack` names back to back, and `documents` assigns each token to
    its name, so that no name attends to another.
    """

    unit = "char"

    def __init__(
        self, corpus: Corpus, length: int, val_fraction: float, val_windows: int | None, pack: int
    ) -> None:
        if pack < 1:
            raise ValueError(f"data.pack must be at least 1 name per window, got {pack}")
        validate_split(length, val_fraction, val_windows)
        names = sorted(
            {name for line in corpus.load_text().splitlines() if (name := line.strip())}, key=_hash_name
        )
        longest = max(names, key=len)
        if len(longest) + 1 > length:
            raise ValueError(
                f"{corpus.key}: {longest!r} has {len(longest)} characters, but data.length={length} "
                "allows only"
                f" {length - 1}; use data.length={len(longest) + 1}"
            )
        held_out = round(len(names) * val_fraction)
        if not held_out:
            raise ValueError(
                f"{corpus.key}: {len(names)} names leave none for validation; give more names or raise"
                f" data.val_fraction={val_fraction}"
            )
        self._codec = NameCodec()
        self._codec_state = self._codec.fit("".join(names), "")
        self.name = corpus.metadata.name
        self.pack = pack
        self._row_length = len(longest) + 1
        self.length = self._row_length * pack
        self.vocab_size = self._codec.vocab_size
        scored = held_out if val_windows is None else min(val_windows * pack, held_out)
        self.val_windows = -(-scored // pack)
        self._val_examples = self._build_examples(names[:scored])
        self._train_examples = self._build_examples(names[held_out:])
        self.train_tokens = sum(len(name) + 1 for name in names[held_out:])
        self.epoch_tokens = self._row_length * len(self._train_examples[0])
        self.val_tokens = sum(len(name) + 1 for name in names[:held_out])
        self.fingerprint = compute_fingerprint(
            version=VERSION,
            names=names,
            origin=corpus.metadata.origin,
            held_out=held_out,
            scored=scored,
            pack=pack,
        )

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        rows, lengths = self._train_examples
        chosen = torch.randint(len(rows), (batch_size * self.pack,), generator=make_generator(seed, step))
        return self._build_batch(rows[chosen], lengths[chosen])

    def val_batches(self, batch_size: int) -> list[Batch]:
        rows, lengths = self._val_examples
        return [
            self._build_batch(rows[i : i + batch_size * self.pack], lengths[i : i + batch_size * self.pack])
            for i in range(0, len(rows), batch_size * self.pack)
        ]

    def _build_examples(self, names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return padded rows [N, T + 1] and the number of targets of each row [N]."""
        sizes = np.array([len(name) for name in names])
        rows = np.full((len(names), self._row_length + 1), START_ID)  # padding is neither read nor scored
        is_character = np.arange(self._row_length + 1)[None, :] < sizes[:, None] + 1
        is_character[:, 0] = False
        rows[is_character] = self._codec.encode_characters("".join(names))
        return torch.from_numpy(rows), torch.from_numpy(sizes + 1)

    def _build_batch(self, rows: torch.Tensor, lengths: torch.Tensor) -> Batch:
        padding = torch.arange(self._row_length) >= lengths[:, None]
        targets = rows[:, 1:].masked_fill(padding, IGNORE)
        tokens = rows[:, :-1].contiguous()
        if self.pack == 1:
            return {"tokens": tokens, "targets": targets, "lengths": lengths}
        missing = -len(rows) % self.pack  # the last validation window may have fewer names

        def pack_rows(x: torch.Tensor, fill: int | bool) -> torch.Tensor:
            extra = x.new_full((missing, self._row_length), fill)
            return torch.cat((x, extra)).view(-1, self.length)

        order = (
            pack_rows(padding, True).byte().argsort(dim=1, stable=True)
        )  # real tokens first, in their order
        documents = torch.arange(self.length).expand_as(order) // self._row_length
        return {
            "tokens": pack_rows(tokens, START_ID).gather(1, order),
            "targets": pack_rows(targets, IGNORE).gather(1, order),
            "documents": documents.gather(1, order),
            "lengths": (~pack_rows(padding, True)).sum(1),
        }

    def vocabulary(self) -> Vocabulary:
        return Vocabulary("names", self._codec_state)

    def encode(self, text: str) -> list[int]:
        """Encode a prompt, which begins with the start token as every example does."""
        return self._codec.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> list[str]:
        return self._codec.decode(ids)


def _hash_name(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


def names_task(
    path: str | None,
    name: str | None,
    config: str | None,
    split: str,
    field: str,
    normalize: Form | None,
    cache: str,
    length: int,
    val_fraction: float,
    val_windows: int | None,
    pack: int,
) -> NamesTask:
    """Build the task from a file of names, or from a field of a Hugging Face data set."""
    if path is not None and name is None:
        corpus = load_file_corpus(path, cache, field, normalize)
    elif name is not None and path is None:
        corpus = load_hub_corpus(name, config, split, field, None, False, None, normalize, cache)
    else:
        raise ValueError(
            "set either data.path (a file with one name per line) or data.name (a data set on the hub)"
        )
    return NamesTask(corpus, length, val_fraction, val_windows, pack)
