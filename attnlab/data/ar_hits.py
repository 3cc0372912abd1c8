"""Text losses split by whether a token could be looked up in the window (an AR hit).

From Arora et al. 2023 (2312.04927): architectures differ most on these tokens.

    the quick brown fox saw the quick ...     "quick" after "the" is a repeated pair: an AR hit

Pairs that are frequent in training need no lookup. A hit is therefore a pair that occurs earlier in the
window and makes up at most `rare` of the training text.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab.data.corpora.code import load_code_corpus
from attnlab.data.corpora.corpus import Corpus
from attnlab.data.corpora.pydocs import load_pydocs_corpus
from attnlab.data.corpora.token_cache import write_folder_atomically
from attnlab.data.task import Batch, compute_fingerprint
from attnlab.data.text import TextTask
from attnlab.data.tokenizers import Tokenizer

CHUNK_TOKENS = 1 << 22  # training tokens counted per chunk


class ArHitsTask(TextTask):
    """A `TextTask` whose validation is reported by `ar_hit/1` and `ar_hit/0`; training is unchanged.

    Meant for tokens of several characters: a pair of single characters carries little information.
    """

    conditions = ("ar_hit/0", "ar_hit/1")

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rare: float, cache: str, **options: Any) -> None:
        if not 0 < rare <= 1:
            raise ValueError(
                f"data.rare must be a proportion of the training text, above 0 and at most 1, got {rare}"
            )
        super().__init__(corpus, tokenizer, cache=cache, **options)
        self.rare = rare
        self._cache = cache
        self.fingerprint = compute_fingerprint(text=self.fingerprint, rare=rare)

    def val_batches(self, batch_size: int) -> list[Batch]:
        batches = super().val_batches(batch_size)
        pairs = [batch["tokens"] * self.vocab_size + batch["targets"] for batch in batches]
        repeated = [_find_repeated_pairs(batch_pairs) for batch_pairs in pairs]
        queried_pairs = np.unique(
            torch.cat([batch_pairs[hit] for batch_pairs, hit in zip(pairs, repeated, strict=True)]).numpy()
        )
        rare = queried_pairs[self._load_pair_counts(queried_pairs) <= self.rare * (self.train_tokens - 1)]
        for batch, batch_pairs, hit in zip(batches, pairs, repeated, strict=True):
            batch["condition"] = (hit & torch.from_numpy(np.isin(batch_pairs.numpy(), rare))).long()
        return batches

    def _load_pair_counts(self, queried_pairs: np.ndarray) -> np.ndarray:
        """Return how often each of these sorted pairs occurs in the training text, cached on disk.

        The fingerprint identifies the cache entry, since the validation windows determine the queried pairs.
        """
        cache_folder = Path(self._cache) / "pairs" / self.fingerprint[:32]
        if not cache_folder.exists():
            with write_folder_atomically(cache_folder) as temporary_folder:
                np.save(temporary_folder / "counts.npy", self._count_pairs(queried_pairs))
        return np.load(cache_folder / "counts.npy")

    def _count_pairs(self, queried_pairs: np.ndarray) -> np.ndarray:
        counts = np.zeros(len(queried_pairs) + 1, dtype=np.int64)
        for start in range(0, self.train_tokens - 1, CHUNK_TOKENS):
            tokens = self.train_ids[start : start + CHUNK_TOKENS + 1].astype(np.int64)
            pairs = tokens[:-1] * self.vocab_size + tokens[1:]
            indices = np.searchsorted(queried_pairs, pairs)
            is_queried = (
                queried_pairs[np.minimum(indices, len(queried_pairs) - 1)] == pairs
                if len(queried_pairs)
                else indices < 0
            )
            counts += np.bincount(
                np.where(is_queried, indices, len(queried_pairs)), minlength=len(queried_pairs) + 1
            )
        return counts[:-1]


def _find_repeated_pairs(pairs: torch.Tensor) -> torch.Tensor:
    """Return whether each pair [B, T] also occurs further left in its row."""
    order = pairs.sort(dim=1, stable=True)
    same = torch.nn.functional.pad(order.values[:, 1:] == order.values[:, :-1], (1, 0))
    return torch.zeros_like(same).scatter(1, order.indices, same)


def pydocs_ar_hits(**options: Any) -> ArHitsTask:
    return ArHitsTask(load_pydocs_corpus(), **options)


def code_ar_hits(cache: str, **options: Any) -> ArHitsTask:
    return ArHitsTask(load_code_corpus(cache), cache=cache, **options)
