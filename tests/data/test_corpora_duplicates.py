"""Near duplicates: those that a comparison of every pair finds, and no others."""

import random

import numpy as np
import pytest

from attnlab.data.corpora.duplicates import THRESHOLD, jaccard, lines, near, signature


def text(names):
    return "".join(f"  line {name}\n\n" for name in names).encode()


def test_lines_are_a_set_without_blank_ones_and_the_space_around():
    assert (lines(b"a\n\n  b \r\na\n") == lines(b"\tb\na")).all()
    assert len(lines(b" \n")) == 0


@pytest.mark.parametrize(("size", "share", "original"), [(9, 8 / 10, 0), (8, 7 / 9, None)])
def test_the_threshold_is_exact(size, share, original):
    one, other = text(range(size)), text(range(1, size + 1))
    assert jaccard(lines(one), lines(other)) == share
    assert near([one, other]) == [None, original]


def test_the_same_as_comparing_every_pair():
    draw, texts = random.Random(1), []
    for _ in range(40):
        base = draw.sample(range(10**6), 60)
        texts += [base] + [
            base[draw.randrange(20) :] + draw.sample(range(10**6), draw.randrange(8)) for _ in "ab"
        ]
    draw.shuffle(texts)
    sets = [lines(text(one)) for one in texts]
    wanted = []
    for place, mine in enumerate(sets):
        earlier = [i for i in range(place) if wanted[i] is None and jaccard(sets[i], mine) >= THRESHOLD]
        wanted.append(min(earlier, default=None))
    assert near(map(text, texts)) == wanted
    assert 20 < sum(one is not None for one in wanted) < 80


def test_signatures_estimate_what_is_shared_and_are_the_same_everywhere():
    one, other = lines(text(range(3000))), lines(text(range(1000, 4000)))
    shared = (signature(one) == signature(other)).mean()
    assert abs(shared - 0.5) < 0.2
    assert signature(lines(b"a\nb\n"))[:3].tolist() == [2073512878, 536142674, 417509598]


def test_a_text_without_lines_is_nobodys_duplicate():
    assert near([b"", b"\n", text(range(5)), text(range(5))]) == [None, None, None, 2]


def test_a_chain_ends_at_its_first():
    """The third is near the second, not the first; the second is dropped, so the third stays."""
    texts = [text(range(start, start + 18)) for start in (0, 2, 4)]
    assert near(texts) == [None, 0, None]
    assert np.isclose(jaccard(lines(texts[1]), lines(texts[2])), 0.8)
