"""Text that training and validation share, measured in windows of characters and in lines.

Shared windows find a copy of the training text or of its passages, also if its lines are wrapped at another
width: white space is removed, and the Unicode form is made equal. Shared lines find copies whose lines are in
another order, and short lines, such as verses, names or code.

Every distinct window and every distinct line that is not blank counts once. Otherwise closing brackets, rules
and headings, which recur in unrelated texts, would decide: they make up a quarter of the lines of code. For
the same reason a larger proportion of lines than of windows may be shared.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attnlab.data.corpora.unicode_forms import normalize_text

VERSION = 1  # raise it when the same texts have other shares
WINDOW_CHARS = 100  # without white space; a shorter validation text is one window
MAX_SHARES = {"windows": 0.05, "lines": 0.5}
MAX_SAMPLED_WINDOWS = 10_000  # of the validation text; the standard error at the limit is 0.2%
PIECE_CHARS = 1 << 15  # whose hashes fit the processor's cache
_TABLE_SIZE = np.uint64(1 << 22)
_BASE = 0x9E3779B97F4A7C15  # odd, so that no character drops out of a hash modulo 2^64

Hashes = NDArray[np.uint64]


def measure_overlap(training: str, validation: str) -> dict[str, float]:
    """Return the proportions of the validation text's `windows` and `lines` that the training text has.

    The windows with the smallest hashes are a sample that does not depend on positions, so the same windows
    of the training text are found wherever they are.
    """
    start = normalize_text(validation.strip()[: 100 * WINDOW_CHARS], "NFC")
    n_chars = min(WINDOW_CHARS, len("".join(start.split())))
    if not n_chars:
        return dict.fromkeys(MAX_SHARES, 0.0)
    lines: set[str] = set()
    sample = np.empty(0, np.uint64)  # sorted
    limit = np.uint64(2**64 - 1)
    for piece_lines, hashes in _scan_text(validation, n_chars):
        lines |= piece_lines
        sample = np.union1d(sample, hashes[hashes <= limit])[:MAX_SAMPLED_WINDOWS]
        if len(sample) == MAX_SAMPLED_WINDOWS:
            limit = sample[-1]
    lines.discard("")
    limit = sample[-1]
    is_possible = np.zeros(_TABLE_SIZE, bool)  # by low bits, since the search is slow
    is_possible[sample % _TABLE_SIZE] = True
    shared_lines: set[str] = set()
    is_shared = np.zeros(len(sample), bool)
    for piece_lines, hashes in _scan_text(training, n_chars):
        shared_lines |= lines & piece_lines
        candidates = hashes[hashes <= limit]
        candidates = candidates[is_possible[candidates % _TABLE_SIZE]]
        indices = np.searchsorted(sample, candidates)
        is_shared[indices[sample[indices] == candidates]] = True
    return {"windows": float(is_shared.mean()), "lines": len(shared_lines) / len(lines)}


def reject_overlap(shares: dict[str, float], validation: str, training: str) -> None:
    """Reject a validation text that shares too much with the training text; both are named for the message.

    Raises:
        ValueError: more than 5% of its windows, or more than half of its lines, are in the training text.
    """
    if any(shares[unit] > limit for unit, limit in MAX_SHARES.items()):
        raise ValueError(
            f"{validation}: {shares['windows']:.1%} of the validation text's windows of {WINDOW_CHARS}"
            f" characters and {shares['lines']:.1%} of its lines are in the training text ({training};"
            f" at most {MAX_SHARES['windows']:.0%} and {MAX_SHARES['lines']:.0%} may be), so its loss would"
            " not measure generalization: give another text, or permit it with data.allow_overlap=true"
        )


def _scan_text(text: str, n_chars: int) -> Iterator[tuple[set[str], Hashes]]:
    """Yield the lines of each piece of a text, and the hashes of the windows that end in it.

    A line that is longer than a piece may be divided; its windows are not.
    """
    tail = ""
    start = 0
    while start < len(text):
        longest = start + 2 * PIECE_CHARS
        end = text.find("\n", start + PIECE_CHARS, longest) + 1 or min(longest, len(text))
        piece = normalize_text(text[start:end], "NFC")
        characters = tail + "".join(piece.split())
        yield {*map(str.strip, piece.splitlines())}, _hash_windows(characters, n_chars)
        tail = characters[max(0, len(characters) - n_chars + 1) :]
        start = end


def _hash_windows(characters: str, n_chars: int) -> Hashes:
    """Return polynomial hashes modulo 2^64 of all windows of `n_chars` characters.

    Windows whose length is a power of two are joined from two halves, others from the powers of their length.
    """
    powers = np.frombuffer(characters.encode("utf-32-le"), np.uint32).astype(np.uint64)
    hashes = np.zeros(len(powers) + 1, np.uint64)  # of empty windows
    base, length = _BASE, 1
    while True:
        if n_chars & length:
            hashes = _join_windows(hashes, powers, n_chars % length, base)
        if 2 * length > n_chars:
            return hashes
        powers = _join_windows(powers, powers, length, base)
        base, length = base * base % 2**64, 2 * length


def _join_windows(left: Hashes, right: Hashes, distance: int, factor: int) -> Hashes:
    """Return the hashes of windows of `left`, each followed by the window of `right` at a distance."""
    n_windows = max(0, len(right) - distance)
    joined = left[:n_windows] * np.uint64(factor)
    joined += right[distance:]
    return joined
