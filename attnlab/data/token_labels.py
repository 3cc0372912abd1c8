"""Labels of tokens: a character that several tokens share is shown at the first of them.

The other tokens have a continuation mark, so that each character is shown once and each token has a label.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

CONTINUATION = "‹"  # in the font of Pillow, too


def label_pieces(pieces: Sequence[str]) -> list[str]:
    """Label tokens by their decoded strings, of which an incomplete character is empty.

    The string of a token with whole characters does not show that another one starts in it. The label of such
    a character is at the first token after it.
    """
    labels = list(pieces)
    start = None  # of a character whose tokens so far are empty
    for i, piece in enumerate(pieces):
        if not piece:
            start = i if start is None else start
            labels[i] = CONTINUATION
        elif start is not None:
            labels[start], labels[i] = piece[0], piece[1:] or CONTINUATION
            start = None
    return labels


def label_bytes(text: str, byte_counts: Sequence[int], pieces: Sequence[str]) -> list[str]:
    """Label tokens by their numbers of UTF-8 bytes of the text; a token of no byte keeps its decoded string.

    Raises:
        ValueError: the tokens have more or fewer bytes than the text.
    """
    owners = [i for i, character in enumerate(text) for _ in character.encode()]
    edges = list(accumulate(byte_counts, initial=0))
    if edges[-1] != len(owners):
        raise ValueError(f"the tokens have {edges[-1]} bytes, and the text has {len(owners)}")
    spans = [
        (owners[start], owners[end - 1] + 1) if end > start else (0, 0) for start, end in pairwise(edges)
    ]
    return label_spans(text, spans, pieces)


def label_spans(text: str, spans: Sequence[tuple[int, int]], names: Sequence[str]) -> list[str]:
    """Label tokens by the characters that they overlap, from start to end; a token of none has its name."""
    labels = []
    labeled = 0  # characters before this one have a token
    for (start, end), name in zip(spans, names, strict=True):
        labels.append((text[max(start, labeled) : end] or CONTINUATION) if end > start else name)
        labeled = max(labeled, end)
    return labels
