"""Near duplicates equal those of comparing every pair."""

import random

import numpy as np
import pytest

from attnlab.data.corpora.duplicates import (
    JACCARD_THRESHOLD,
    compute_signature,
    find_near_duplicates,
    hash_lines,
    jaccard_similarity,
)


def make_text(names):
    return "".join(f"  line {name}\n\n" for name in names).encode()


def test_blank_lines_and_surrounding_space_do_not_count():
    assert (hash_lines(b"a\n\n  b \r\na\n") == hash_lines(b"\tb\na")).all()
    assert len(hash_lines(b" \n")) == 0


@pytest.mark.parametrize(("size", "share", "original"), [(9, 8 / 10, 0), (8, 7 / 9, None)])
def test_the_threshold_is_exact(size, share, original):
    one, other = make_text(range(size)), make_text(range(1, size + 1))
    assert jaccard_similarity(hash_lines(one), hash_lines(other)) == share
    assert find_near_duplicates([one, other]) == [None, original]


def test_duplicates_equal_those_of_comparing_every_pair():
    generator, texts = random.Random(1), []
    for _ in range(40):
        base = generator.sample(range(10**6), 60)
        texts += [base] + [
            base[generator.randrange(20) :] + generator.sample(range(10**6), generator.randrange(8))
            for _ in "ab"
        ]
    generator.shuffle(texts)
    sets = [hash_lines(make_text(one)) for one in texts]
    expected = []
    for index, line_hashes in enumerate(sets):
        earlier = [
            i
            for i in range(index)
            if expected[i] is None and jaccard_similarity(sets[i], line_hashes) >= JACCARD_THRESHOLD
        ]
        expected.append(min(earlier, default=None))
    assert find_near_duplicates(map(make_text, texts)) == expected
    assert 20 < sum(one is not None for one in expected) < 80


def test_signatures_estimate_similarity_and_are_deterministic():
    one, other = hash_lines(make_text(range(3000))), hash_lines(make_text(range(1000, 4000)))
    shared = (compute_signature(one) == compute_signature(other)).mean()
    assert abs(shared - 0.5) < 0.2
    assert compute_signature(hash_lines(b"a\nb\n"))[:3].tolist() == [2073512878, 536142674, 417509598]


def test_a_text_without_lines_is_no_duplicate():
    assert find_near_duplicates([b"", b"\n", make_text(range(5)), make_text(range(5))]) == [
        None,
        None,
        None,
        2,
    ]


def test_a_duplicate_is_no_original_of_later_texts():
    """The third is near the second only; the second is dropped, so the third stays."""
    texts = [make_text(range(start, start + 18)) for start in (0, 2, 4)]
    assert find_near_duplicates(texts) == [None, 0, None]
    assert np.isclose(jaccard_similarity(hash_lines(texts[1]), hash_lines(texts[2])), 0.8)
