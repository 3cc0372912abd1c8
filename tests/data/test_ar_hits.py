"""AR hits equal a plain Python count, and training equals that of the text task."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from attnlab.data import ar_hits
from attnlab.data.corpora.text_files import load_file_corpus
from attnlab.data.tokenizers import CharTokenizer

SETTINGS = {"length": 29, "val_fraction": 0.3, "val_windows": None, "allow_overlap": False}


@pytest.fixture
def make_ar_hits_task(novel_path, tmp_path):
    def build(**changes):
        cache = str(tmp_path / "cache")
        settings = {"tokenizer": CharTokenizer(), "rare": 0.01, "cache": cache} | SETTINGS | changes
        return ar_hits.ArHitsTask(load_file_corpus(str(novel_path), cache, "text", None), **settings)

    return build


@pytest.mark.parametrize("rare", [0.005, 0.01, 1])
def test_a_hit_repeats_a_pair_of_the_window_that_is_rare_in_training(make_ar_hits_task, rare, monkeypatch):
    monkeypatch.setattr(ar_hits, "CHUNK_TOKENS", 100)
    task = make_ar_hits_task(rare=rare)
    train_ids = task.train_ids.tolist()
    pair_counts = Counter(pairwise(train_ids))
    observed = set()
    for batch in task.val_batches(3):
        rows = zip(*(batch[key].tolist() for key in ("tokens", "targets", "condition")), strict=True)
        for tokens, targets, condition in rows:
            pairs = list(zip(tokens, targets, strict=True))
            for i, pair in enumerate(pairs):
                hit = pair in pairs[:i] and pair_counts[pair] <= rare * (len(train_ids) - 1)
                assert task.conditions[condition[i]] == f"ar_hit/{int(hit)}"
                observed.add(hit)
    assert observed == {True, False}


def test_batches_equal_those_of_the_text_task(make_ar_hits_task, make_text_task):
    task, plain = make_ar_hits_task(), make_text_task(**SETTINGS)
    for key in ("tokens", "targets"):
        assert torch.equal(task.train_batch(3, 5, 4)[key], plain.train_batch(3, 5, 4)[key])
        tokens = [torch.cat([batch[key] for batch in either.val_batches(4)]) for either in (task, plain)]
        assert torch.equal(*tokens)
    assert len({task.fingerprint, plain.fingerprint, make_ar_hits_task(rare=0.5).fingerprint}) == 3


def test_pair_counts_are_cached(make_ar_hits_task, monkeypatch):
    first = make_ar_hits_task().val_batches(7)
    monkeypatch.setattr(ar_hits.ArHitsTask, "_count_pairs", lambda *_: pytest.fail("counted again"))
    second = make_ar_hits_task().val_batches(7)
    assert all(torch.equal(a["condition"], b["condition"]) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("rare", [0, 1.5])
def test_a_rarity_outside_0_to_1_is_rejected(make_ar_hits_task, rare):
    with pytest.raises(
        ValueError, match=f"data.rare must be a proportion of the training text, .* got {rare}"
    ):
        make_ar_hits_task(rare=rare)
