"""The text that attention maps are shown on: of a task that is a text a window that a reader can read.

Surprising: it is chosen for its letters, so it is not like the text on the average. Nothing is scored on it:
losses and head scores have windows of their own.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

CANDIDATES = 256  # stretches of validation text, evenly spread over it


def is_text(task: Any) -> bool:
    """Whether the task is running text, whose tokens join to it."""
    return hasattr(task, "spans") and hasattr(task, "byte_batches")


def probe(data: Any) -> Tensor:
    """One window of validation text [1, at most 128]: the first examples' beginning, and of a running text,
    among a fixed number of windows that begin with a word, the one of which most is letters and single
    spaces. The same for every seed.
    """
    first: Tensor = data.probe(1)
    length = first.shape[1]
    try:
        rows = data.task.spans(CANDIDATES, 2 * length) if is_text(data.task) else []
    except ValueError:  # the text is too short to choose from
        return first
    best = first
    most = 0.0
    for row in rows:
        pieces = data.task.decode(row.tolist())
        start = begin(pieces[: length + 1])
        if start is None:
            continue
        readable = prose("".join(pieces[start : start + length]))
        if readable > most:
            best = row[None, start : start + length]
            most = readable
    return best


def begin(pieces: Sequence[str]) -> int | None:
    """The first token at which a word begins, behind another token."""
    for at, (before, piece) in enumerate(pairwise(pieces), 1):
        apart = before[-1:].isspace() or piece[:1].isspace()
        if apart and piece.strip()[:1].isalpha():
            return at
    return None


def prose(text: str) -> float:
    """The share of letters and of single spaces or line ends in a text."""
    good = sum(sign.isalpha() or (sign.isspace() and not before.isspace()) for before, sign in pairwise(text))
    return good / max(1, len(text) - 1)
