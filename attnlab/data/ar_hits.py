"""A text whose losses are told apart by whether a token could be looked up in the window (Arora et al. 2023,
2312.04927): that is where architectures differ most.

    the quick brown fox saw the quick ...     "quick" after "the" has been seen: an AR hit

Surprising: a pair that training is full of needs no looking up, so a hit is a pair that stands earlier in the
window and makes up at most `rare` of the training text.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab.data.corpora.code import code_corpus
from attnlab.data.corpora.corpus import Corpus
from attnlab.data.corpora.kept import whole
from attnlab.data.corpora.pydocs import pydocs_corpus
from attnlab.data.task import Batch, fingerprint
from attnlab.data.text import Text
from attnlab.data.tokenizers import Tokenizer

PART = 1 << 22  # training tokens that are looked through at once


class ArHits(Text):
    """`Text`, reported by `ar_hit/1` and `ar_hit/0`; what is trained is the same. Meant for tokens of several
    characters: a pair of characters says little.
    """

    conditions = ("ar_hit/0", "ar_hit/1")

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rare: float, cache: str, **options: Any) -> None:
        if not 0 < rare <= 1:
            raise ValueError(f"data.rare={rare}: a share of the training text, above 0 and at most 1")
        super().__init__(corpus, tokenizer, cache=cache, **options)
        self.rare = rare
        self._cache = cache
        self.fingerprint = fingerprint(text=self.fingerprint, rare=rare)

    def val_batches(self, batch_size: int) -> list[Batch]:
        batches = super().val_batches(batch_size)
        pairs = [batch["tokens"] * self.vocab_size + batch["targets"] for batch in batches]
        repeated = [_seen_before(each) for each in pairs]
        asked = np.unique(torch.cat([each[hit] for each, hit in zip(pairs, repeated, strict=True)]).numpy())
        rare = asked[self._counts(asked) <= self.rare * (self.train_tokens - 1)]
        for batch, each, hit in zip(batches, pairs, repeated, strict=True):
            batch["condition"] = (hit & torch.from_numpy(np.isin(each.numpy(), rare))).long()
        return batches

    def _counts(self, asked: np.ndarray) -> np.ndarray:
        """How often each of these pairs, sorted, stands in the training text; looked up once, and kept. Which
        pairs are asked for is a matter of the validation windows, and so of the fingerprint.
        """
        kept = Path(self._cache) / "pairs" / self.fingerprint[:32]
        if not kept.exists():
            with whole(kept) as partial:
                np.save(partial / "counts.npy", self._counted(asked))
        return np.load(kept / "counts.npy")

    def _counted(self, asked: np.ndarray) -> np.ndarray:
        counts = np.zeros(len(asked) + 1, dtype=np.int64)
        for start in range(0, self.train_tokens - 1, PART):
            tokens = self.training[start : start + PART + 1].astype(np.int64)
            pairs = tokens[:-1] * self.vocab_size + tokens[1:]
            at = np.searchsorted(asked, pairs)
            found = asked[np.minimum(at, len(asked) - 1)] == pairs if len(asked) else at < 0
            counts += np.bincount(np.where(found, at, len(asked)), minlength=len(asked) + 1)
        return counts[:-1]


def _seen_before(pairs: torch.Tensor) -> torch.Tensor:
    """Whether each pair [B, T] stands further left in its row."""
    order = pairs.sort(dim=1, stable=True)
    same = torch.nn.functional.pad(order.values[:, 1:] == order.values[:, :-1], (1, 0))
    return torch.zeros_like(same).scatter(1, order.indices, same)


def pydocs(**options: Any) -> ArHits:
    return ArHits(pydocs_corpus(), **options)


def code(cache: str, **options: Any) -> ArHits:
    return ArHits(code_corpus(cache), cache=cache, **options)
