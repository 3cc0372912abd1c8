"""Digests tell vocabularies apart where their ids mean other tokens, and nowhere else."""

import json
from itertools import combinations

import pytest
from drawn_tasks import MAKE

from attnlab.data.tokenizers import Bpe, Byte, Char
from attnlab.data.vocabulary import Vocabulary, compare, of_tokenizer

TEXT = "the quick brown fox jumps over the lazy dog. " * 9
SAME = [  # words of the same meaning: keys and values, symbols
    ("recall", {}, "recall", {"length": 40, "pairs": 3, "power": 1, "val_windows": 7}),
    ("induction", {}, "induction", {"length": 29, "shortest": 2, "longest": 9}),
    ("copy", {}, "reverse", {"longest": 3}),
    ("recall", {}, "forgetting", {}),
]
OTHER = [  # some of as many words
    ("recall", {}, "recall", {"vocabulary": 16}),
    ("induction", {}, "recall", {}),
    ("induction", {"vocabulary": 7}, "copy", {}),
    ("needle", {"values": 3}, "copy", {}),
    ("noisy_recall", {"symbols": 5}, "mano", {}),
]


def digest(name: str, more: dict[str, int]) -> str:
    return MAKE[name](**more).vocabulary().digest()


@pytest.mark.parametrize(("one", "of_one", "two", "of_two"), SAME)
def test_tasks_whose_words_mean_the_same_share_a_vocabulary(one, of_one, two, of_two):
    assert digest(one, of_one) == digest(two, of_two)


@pytest.mark.parametrize(("one", "of_one", "two", "of_two"), OTHER)
def test_tasks_whose_words_mean_something_else_do_not(one, of_one, two, of_two):
    assert digest(one, of_one) != digest(two, of_two)


@pytest.mark.parametrize("name", MAKE)
def test_a_drawn_task_and_its_stored_vocabulary_read_and_write_the_same(name, tmp_path):
    task = MAKE[name]()
    task.vocabulary().write(tmp_path)
    codec = Vocabulary(**json.loads((tmp_path / "vocabulary.json").read_text())).codec()
    ids = list(range(task.vocab_size))
    assert codec.decode(ids) == task.decode(ids) == list(task.words)
    assert codec.encode(" ".join(task.words)).tolist() == ids


def fitted(tokenizer, text):
    return of_tokenizer(tokenizer, tokenizer.fit(text, text))


def test_texts_share_a_vocabulary_where_ids_mean_the_same():
    backwards = TEXT[::-1]
    assert fitted(Char(), TEXT).digest() == fitted(Char(), backwards).digest()
    assert fitted(Byte(), TEXT).digest() == fitted(Byte(), "ß").digest()
    assert fitted(Bpe(262), TEXT).digest() == fitted(Bpe(262), TEXT).digest()
    kinds = [fitted(Char(), TEXT), fitted(Char(), TEXT.replace("z", "ß")), fitted(Byte(), TEXT)]
    kinds += [
        fitted(Bpe(262), TEXT),
        fitted(Bpe(262), backwards),
        Vocabulary("names", fitted(Char(), TEXT).state),
    ]
    for a, b in combinations(kinds, 2):
        assert a.digest() != b.digest()


@pytest.mark.parametrize(
    ("kind", "parent", "child", "told"),
    [
        ("char", "abc", "abd", "2 of 4 characters shared; only the parent has 'c'; only this run has 'd'"),
        ("char", "abcdef", "a", "1 of 6 characters shared; only the parent has 'b', 'c', 'd', ..."),
        ("char", "abc", "acb", "the same characters in another order"),
        (
            "words",
            '["k0", "v0"]',
            '["k0", "k1"]',
            "1 of 3 words shared; only the parent has 'v0'; only this run has 'k1'",
        ),
        ("byte", "", "", ""),
    ],
)
def test_a_comparison_names_what_differs(kind, parent, child, told):
    assert compare(Vocabulary(kind, parent), Vocabulary(kind, child)) == told
