"""Vocabulary digests differ exactly if ids mean different tokens."""

import json
from itertools import combinations

import pytest
from synthetic_tasks import TASK_FACTORIES

from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharTokenizer
from attnlab.data.vocabulary import Vocabulary, build_vocabulary, describe_difference

TEXT = "the quick brown fox jumps over the lazy dog. " * 9
EQUAL = [  # words with equal meanings: keys and values, symbols
    ("recall", {}, "recall", {"length": 40, "pairs": 3, "power": 1, "val_windows": 7}),
    ("induction", {}, "induction", {"length": 29, "shortest": 2, "longest": 9}),
    ("copy", {}, "reverse", {"longest": 3}),
    ("recall", {}, "forgetting", {}),
]
DIFFERENT = [  # some with equally many words
    ("recall", {}, "recall", {"vocabulary": 16}),
    ("induction", {}, "recall", {}),
    ("induction", {"vocabulary": 7}, "copy", {}),
    ("needle", {"values": 3}, "copy", {}),
    ("noisy_recall", {"symbols": 5}, "mano", {}),
]


def compute_task_digest(name: str, changes: dict[str, int]) -> str:
    return TASK_FACTORIES[name](**changes).vocabulary().compute_digest()


@pytest.mark.parametrize(("one", "of_one", "two", "of_two"), EQUAL)
def test_tasks_with_equal_words_share_a_digest(one, of_one, two, of_two):
    assert compute_task_digest(one, of_one) == compute_task_digest(two, of_two)


@pytest.mark.parametrize(("one", "of_one", "two", "of_two"), DIFFERENT)
def test_tasks_with_different_words_have_different_digests(one, of_one, two, of_two):
    assert compute_task_digest(one, of_one) != compute_task_digest(two, of_two)


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_a_stored_vocabulary_encodes_and_decodes_as_its_task(name, tmp_path):
    task = TASK_FACTORIES[name]()
    task.vocabulary().write(tmp_path)
    codec = Vocabulary(**json.loads((tmp_path / "vocabulary.json").read_text())).load_codec()
    ids = list(range(task.vocab_size))
    assert codec.decode(ids) == task.decode(ids) == list(task.words)
    assert codec.encode(" ".join(task.words)).tolist() == ids


def build_fitted_vocabulary(tokenizer, text):
    return build_vocabulary(tokenizer, tokenizer.fit(text, text))


def test_text_digests_are_equal_exactly_if_ids_mean_the_same():
    backwards = TEXT[::-1]
    assert (
        build_fitted_vocabulary(CharTokenizer(), TEXT).compute_digest()
        == build_fitted_vocabulary(CharTokenizer(), backwards).compute_digest()
    )
    assert (
        build_fitted_vocabulary(ByteTokenizer(), TEXT).compute_digest()
        == build_fitted_vocabulary(ByteTokenizer(), "ß").compute_digest()
    )
    assert (
        build_fitted_vocabulary(BpeTokenizer(262), TEXT).compute_digest()
        == build_fitted_vocabulary(BpeTokenizer(262), TEXT).compute_digest()
    )
    kinds = [
        build_fitted_vocabulary(CharTokenizer(), TEXT),
        build_fitted_vocabulary(CharTokenizer(), TEXT.replace("z", "ß")),
        build_fitted_vocabulary(ByteTokenizer(), TEXT),
    ]
    kinds += [
        build_fitted_vocabulary(BpeTokenizer(262), TEXT),
        build_fitted_vocabulary(BpeTokenizer(262), backwards),
        Vocabulary("names", build_fitted_vocabulary(CharTokenizer(), TEXT).state),
    ]
    for a, b in combinations(kinds, 2):
        assert a.compute_digest() != b.compute_digest()


@pytest.mark.parametrize(
    ("kind", "parent", "child", "expected"),
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
def test_a_difference_names_the_unshared_tokens(kind, parent, child, expected):
    assert describe_difference(Vocabulary(kind, parent), Vocabulary(kind, child)) == expected
