"""The text on which attention maps are shown; for text tasks, a readable window.

The window is chosen for its letters, so it is not typical of the text. No score is computed on it: losses and
head scores use other windows.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

N_CANDIDATES = 256  # spans, evenly spread over the validation text


def is_text(task: Any) -> bool:
    """Return whether the task is running text, whose decoded tokens join to the text."""
    return hasattr(task, "spans") and hasattr(task, "byte_batches")


def choose_probe_window(data: Any) -> Tensor:
    """Return one window of validation text [1, at most 128], the same for every seed.

    For running text it is the candidate that begins with a word and has the most letters and single spaces.
    Otherwise it is the beginning of the first example.
    """
    first: Tensor = data.probe_tokens(1)
    length = first.shape[1]
    try:
        rows = data.task.spans(N_CANDIDATES, 2 * length) if is_text(data.task) else []
    except ValueError:  # the text has no room for candidates
        return first
    best = first
    best_readability = 0.0
    for row in rows:
        pieces = data.task.decode(row.tolist())
        start = find_word_start(pieces[: length + 1])
        if start is None:
            continue
        readable = compute_readability("".join(pieces[start : start + length]))
        if readable > best_readability:
            best = row[None, start : start + length]
            best_readability = readable
    return best


def find_word_start(pieces: Sequence[str]) -> int | None:
    """Return the index of the first token that begins a word and follows another token."""
    for index, (previous, piece) in enumerate(pairwise(pieces), 1):
        is_word_start = previous[-1:].isspace() or piece[:1].isspace()
        if is_word_start and piece.strip()[:1].isalpha():
            return index
    return None


def compute_readability(text: str) -> float:
    """Return the proportion of letters and of single spaces or line ends in a text."""
    readable = sum(
        character.isalpha() or (character.isspace() and not previous.isspace())
        for previous, character in pairwise(text)
    )
    return readable / max(1, len(text) - 1)
