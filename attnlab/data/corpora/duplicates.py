"""Near-duplicate texts, found by MinHash in bands.

MinHash: Broder 1997, "On the resemblance and containment of documents". Lee et al. 2022 (2107.06499) clean
training texts this way.

A text is the set of its lines, without blank lines and surrounding whitespace. Two texts are near duplicates
if the Jaccard similarity of their sets is at least `JACCARD_THRESHOLD`. Signatures only select candidate
pairs, whose similarity is then computed exactly, so no text is dropped because of a signature's randomness.
"""

from binascii import crc32
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

JACCARD_THRESHOLD = 0.8
N_BANDS = 32
ROWS_PER_BAND = 4  # 128 permutations; a pair at the threshold is missed with probability 10^-7
_SIGNATURE_SLACK = 0.25  # below the threshold: seven standard deviations of an estimate by 128 permutations

LineHashes = NDArray[np.uint64]
Signature = NDArray[np.uint32]

# h(x) = the upper half of a x + b, over 64-bit integers: one "permutation" for each odd a
_random = np.random.Generator(np.random.PCG64(2107_06499))
_draws = _random.integers(2**64, size=(2, N_BANDS * ROWS_PER_BAND), dtype=np.uint64)
_FACTORS = _draws[0, :, None] | np.uint64(1)
_SUMMANDS = _draws[1, :, None]


def hash_lines(text: bytes) -> LineHashes:
    """Return the set of a text's lines, as sorted hashes."""
    stripped = map(bytes.strip, text.split(b"\n"))
    return np.unique(np.fromiter(map(crc32, filter(None, stripped)), np.uint64))


def compute_signature(line_hashes: LineHashes) -> Signature:
    """Return the minimum of each permutation over a non-empty set [N_BANDS * ROWS_PER_BAND]."""
    minimums = np.full(N_BANDS * ROWS_PER_BAND, 2**64 - 1, np.uint64)
    for start in range(0, len(line_hashes), 1024):  # chunks that fit the processor's cache
        np.minimum(
            minimums, (_FACTORS * line_hashes[start : start + 1024] + _SUMMANDS).min(axis=1), out=minimums
        )
    return (minimums >> np.uint64(32)).astype(np.uint32)


def jaccard_similarity(one: LineHashes, other: LineHashes) -> float:
    """Return the size of the intersection of two sets, as a proportion of their union."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)


def find_near_duplicates(texts: Iterable[bytes]) -> list[int | None]:
    """Return, for each text, the index of an earlier text that it nearly duplicates, or None.

    A near duplicate is no original of later texts, so the first text of a family always stays.
    """
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    sets: dict[int, LineHashes] = {}
    signatures: dict[int, Signature] = {}
    originals: list[int | None] = []
    for index, text in enumerate(texts):
        line_hashes = hash_lines(text)
        if not len(line_hashes):
            originals.append(None)
            continue
        signature = compute_signature(line_hashes)
        bands = [(band, row.tobytes()) for band, row in enumerate(signature.reshape(N_BANDS, ROWS_PER_BAND))]
        candidates = sorted({other for band in bands for other in buckets.get(band, ())})
        original = next(
            (
                other
                for other in candidates
                if (signatures[other] == signature).mean() >= JACCARD_THRESHOLD - _SIGNATURE_SLACK
                and jaccard_similarity(sets[other], line_hashes) >= JACCARD_THRESHOLD
            ),
            None,
        )
        originals.append(original)
        if original is None:
            sets[index], signatures[index] = line_hashes, signature
            for band in bands:
                buckets[band].append(index)
    return originals
