"""Short words, one example each: a start token, the characters, and the start token again as the end.

Surprising: which names are for validation is decided by a hash of the name. Files of names are often sorted
by popularity, so a split by position would validate on another kind of name; repeated names count once,
else the same name could be on both sides.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch

from attnlab.data.corpora.corpus import Corpus
from attnlab.data.corpora.files import file_corpus
from attnlab.data.corpora.hub import hub_corpus
from attnlab.data.task import IGNORE, Batch, check_split, fingerprint, generator
from attnlab.data.tokenizers import START, NameCodec
from attnlab.data.vocabulary import Vocabulary

VERSION = 1  # of the way from names to batches: raise it when the same settings give other batches


class Names:
    """Windows are as long as the longest name needs, `length` at the most. With `pack` above 1 each holds as
    many names, back to back, and "documents" says which token belongs to which, so that none sees another.
    """

    unit = "char"

    def __init__(
        self, corpus: Corpus, length: int, val_fraction: float, val_windows: int | None, pack: int
    ) -> None:
        if pack < 1:
            raise ValueError(f"data.pack={pack}: a window holds at least one name")
        check_split(length, val_fraction, val_windows)
        names = sorted({name for line in corpus.text().splitlines() if (name := line.strip())}, key=_order)
        longest = max(names, key=len)
        if len(longest) + 1 > length:
            raise ValueError(
                f"{corpus.key}: {longest!r} has {len(longest)} characters, more than the {length - 1} that"
                f" data.length={length} has room for; use data.length={len(longest) + 1}"
            )
        held_out = round(len(names) * val_fraction)
        if not held_out:
            raise ValueError(
                f"{corpus.key}: {len(names)} names leave none for validation; give more names or a larger"
                f" data.val_fraction than {val_fraction}"
            )
        self._codec = NameCodec()
        self._state = self._codec.fit("".join(names), "")
        self.name = corpus.about.name
        self.pack = pack
        self._width = len(longest) + 1
        self.length = self._width * pack
        self.vocab_size = self._codec.vocab_size
        scored = held_out if val_windows is None else min(val_windows * pack, held_out)
        self.val_windows = -(-scored // pack)
        self._val = self._examples(names[:scored])
        self._train = self._examples(names[held_out:])
        self.train_tokens = sum(len(name) + 1 for name in names[held_out:])
        self.epoch_tokens = self._width * len(self._train[0])
        self.val_tokens = sum(len(name) + 1 for name in names[:held_out])
        self.fingerprint = fingerprint(
            version=VERSION,
            names=names,
            origin=corpus.about.origin,
            held_out=held_out,
            scored=scored,
            pack=pack,
        )

    def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
        rows, lengths = self._train
        chosen = torch.randint(len(rows), (batch_size * self.pack,), generator=generator(seed, step))
        return self._batch(rows[chosen], lengths[chosen])

    def val_batches(self, batch_size: int) -> list[Batch]:
        rows, lengths = self._val
        return [
            self._batch(rows[i : i + batch_size * self.pack], lengths[i : i + batch_size * self.pack])
            for i in range(0, len(rows), batch_size * self.pack)
        ]

    def _examples(self, names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded rows [N, T + 1], and how many targets each of them has [N]."""
        sizes = np.array([len(name) for name in names])
        rows = np.full((len(names), self._width + 1), START)  # padding, neither read nor scored
        inside = np.arange(self._width + 1)[None, :] < sizes[:, None] + 1
        inside[:, 0] = False
        rows[inside] = self._codec.places("".join(names))
        return torch.from_numpy(rows), torch.from_numpy(sizes + 1)

    def _batch(self, rows: torch.Tensor, lengths: torch.Tensor) -> Batch:
        padding = torch.arange(self._width) >= lengths[:, None]
        targets = rows[:, 1:].masked_fill(padding, IGNORE)
        tokens = rows[:, :-1].contiguous()
        if self.pack == 1:
            return {"tokens": tokens, "targets": targets, "lengths": lengths}
        missing = -len(rows) % self.pack  # the last validation window may be short of names

        def together(x: torch.Tensor, fill: int | bool) -> torch.Tensor:
            extra = x.new_full((missing, self._width), fill)
            return torch.cat((x, extra)).view(-1, self.length)

        order = together(padding, True).byte().argsort(dim=1, stable=True)  # names first, in their order
        which = torch.arange(self.length).expand_as(order) // self._width
        return {
            "tokens": together(tokens, START).gather(1, order),
            "targets": together(targets, IGNORE).gather(1, order),
            "documents": which.gather(1, order),
            "lengths": (~together(padding, True)).sum(1),
        }

    def vocabulary(self) -> Vocabulary:
        return Vocabulary("names", self._state)

    def encode(self, text: str) -> list[int]:
        """A prompt begins with the start token, as every example does."""
        return self._codec.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> list[str]:
        return self._codec.decode(ids)


def _order(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


def names(
    path: str | None,
    name: str | None,
    config: str | None,
    split: str,
    field: str,
    cache: str,
    length: int,
    val_fraction: float,
    val_windows: int | None,
    pack: int,
) -> Names:
    """From a file, or from a field of a data set of the hub."""
    if path is not None and name is None:
        corpus = file_corpus(path, cache)
    elif name is not None and path is None:
        corpus = hub_corpus(name, config, split, field, None, False, None, cache)
    else:
        raise ValueError("give one of data.path (a file, one name a line) and data.name (a hub data set)")
    return Names(corpus, length, val_fraction, val_windows, pack)
