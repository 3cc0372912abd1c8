"""Texts that are nearly another one, by MinHash (Broder 1997, "On the resemblance and containment of
documents") in bands, as Lee et al. (2022, 2107.06499) clean training texts with it.

A text is the set of its lines, without blank ones and without the space around them. Two are near duplicates
where their sets share `THRESHOLD` of what is in either (Jaccard). Surprising: signatures only find the pairs
that are looked at; whether they are near is counted, so nothing is dropped by a signature's chance.
"""

from binascii import crc32
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.8
BANDS = 32
ROWS = 4  # 128 permutations; a pair at the threshold is missed once in 10^7
_SLACK = 0.25  # under the threshold: seven standard deviations of what 128 permutations say of it

Lines = NDArray[np.uint64]
Signature = NDArray[np.uint32]

# h(x) = the upper half of a x + b, over numbers of 64 bits: one "permutation" for each a, which is odd
_random = np.random.Generator(np.random.PCG64(2107_06499))
_draws = _random.integers(2**64, size=(2, BANDS * ROWS), dtype=np.uint64)
_FACTORS = _draws[0, :, None] | np.uint64(1)
_SUMMANDS = _draws[1, :, None]


def lines(text: bytes) -> Lines:
    """The set of a text's lines, as sorted numbers."""
    stripped = map(bytes.strip, text.split(b"\n"))
    return np.unique(np.fromiter(map(crc32, filter(None, stripped)), np.uint64))


def signature(found: Lines) -> Signature:
    """The least value of each permutation over a set that is not empty [BANDS * ROWS]."""
    least = np.full(BANDS * ROWS, 2**64 - 1, np.uint64)
    for start in range(0, len(found), 1024):  # in parts that the processor keeps near
        np.minimum(least, (_FACTORS * found[start : start + 1024] + _SUMMANDS).min(axis=1), out=least)
    return (least >> np.uint64(32)).astype(np.uint32)


def jaccard(one: Lines, other: Lines) -> float:
    """The share of what is in either set that is in both."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


def near(texts: Iterable[bytes]) -> list[int | None]:
    """For each text an earlier one that it nearly is, by its place, or None. One that is such a duplicate is
    nobody's original, so the first of a family stays, whatever the others are like.
    """
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    sets: dict[int, Lines] = {}
    signatures: dict[int, Signature] = {}
    originals: list[int | None] = []
    for place, text in enumerate(texts):
        found = lines(text)
        if not len(found):
            originals.append(None)
            continue
        mine = signature(found)
        bands = [(band, row.tobytes()) for band, row in enumerate(mine.reshape(BANDS, ROWS))]
        candidates = sorted({other for band in bands for other in buckets.get(band, ())})
        original = next(
            (
                other
                for other in candidates
                if (signatures[other] == mine).mean() >= THRESHOLD - _SLACK
                and jaccard(sets[other], found) >= THRESHOLD
            ),
            None,
        )
        originals.append(original)
        if original is None:
            sets[place], signatures[place] = found, mine
            for band in bands:
                buckets[band].append(place)
    return originals
