"""Kinds of tokens: by their signs, and by what the window has shown before. Never imports torch.

Surprising: the two divisions overlap. Each target has one kind by its sign (a space, a letter inside a word,
...), and one by whether the pair of it and the token before stood in the window before.
"""

from collections.abc import Sequence

SIGNS = {
    "space": "spaces and line ends",
    "inside": "letters inside a word",
    "first": "first letters of a word",
    "digit": "digits",
    "other": "punctuation and other signs",
}
SEEN = {
    "seen": "pairs of tokens that stood in the window before",
    "new": "pairs of tokens that did not",
}
KINDS = SIGNS | SEEN


def signs_of(pieces: Sequence[str]) -> list[str]:
    """The kind of each token by its first sign that is no space, and by what stands before that."""
    kinds = []
    before = " "
    for piece in pieces:
        body = piece.lstrip()
        apart = len(body) < len(piece) or not before.isalpha()
        sign = body[:1]
        letter = ("first" if apart else "inside") if sign.isalpha() else "other"
        kinds.append("space" if piece and not body else "digit" if sign.isdigit() else letter)
        before = piece[-1:] or before
    return kinds
