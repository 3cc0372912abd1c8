"""Tokens that could be looked up: counted again in plain Python, and the training stays the text's own."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from attnlab.data import ar_hits
from attnlab.data.corpora.files import file_corpus
from attnlab.data.tokenizers import Char

SETTINGS = {"length": 29, "val_fraction": 0.3, "val_windows": None}


@pytest.fixture
def hits(novel, tmp_path):
    def build(**changes):
        cache = str(tmp_path / "cache")
        settings = {"tokenizer": Char(), "rare": 0.01, "cache": cache} | SETTINGS | changes
        return ar_hits.ArHits(file_corpus(str(novel), cache), **settings)

    return build


@pytest.mark.parametrize("rare", [0.005, 0.01, 1])
def test_a_hit_stands_earlier_in_the_window_and_is_rare_in_training(hits, rare, monkeypatch):
    monkeypatch.setattr(ar_hits, "PART", 100)
    task = hits(rare=rare)
    training = task.training.tolist()
    often = Counter(pairwise(training))
    found = set()
    for batch in task.val_batches(3):
        rows = zip(*(batch[key].tolist() for key in ("tokens", "targets", "condition")), strict=True)
        for tokens, targets, condition in rows:
            pairs = list(zip(tokens, targets, strict=True))
            for i, pair in enumerate(pairs):
                hit = pair in pairs[:i] and often[pair] <= rare * (len(training) - 1)
                assert task.conditions[condition[i]] == f"ar_hit/{int(hit)}"
                found.add(hit)
    assert found == {True, False}


def test_what_is_trained_and_validated_is_the_texts_own(hits, make):
    task, plain = hits(), make(**SETTINGS)
    for key in ("tokens", "targets"):
        assert torch.equal(task.train_batch(3, 5, 4)[key], plain.train_batch(3, 5, 4)[key])
        both = [torch.cat([batch[key] for batch in each.val_batches(4)]) for each in (task, plain)]
        assert torch.equal(*both)
    assert len({task.fingerprint, plain.fingerprint, hits(rare=0.5).fingerprint}) == 3


def test_pairs_are_counted_once(hits, monkeypatch):
    first = hits().val_batches(7)
    monkeypatch.setattr(ar_hits.ArHits, "_counted", lambda *_: pytest.fail("counted again"))
    again = hits().val_batches(7)
    assert all(torch.equal(a["condition"], b["condition"]) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("rare", [0, 1.5])
def test_a_share_is_a_share(hits, rare):
    with pytest.raises(ValueError, match=rf"data\.rare={rare}: a share of the training text"):
        hits(rare=rare)
