"""Token categories by characters and by repetition in the window. Never imports torch.

The two divisions overlap. Each target has one category by its characters (a space, a letter inside a word,
...), and one by whether the pair of the previous token and the target occurs earlier in the window.
"""

from collections.abc import Sequence

CHARACTER_CATEGORIES = {
    "space": "spaces and line ends",
    "inside": "letters inside a word",
    "first": "first letters of a word",
    "digit": "digits",
    "other": "punctuation and other symbols",
}
REPETITION_CATEGORIES = {
    "seen": "token pairs seen earlier in the window",
    "new": "token pairs not seen earlier in the window",
}
TOKEN_CATEGORIES = CHARACTER_CATEGORIES | REPETITION_CATEGORIES


def categorize_tokens(pieces: Sequence[str]) -> list[str]:
    """Return the category of each token by its first non-space character and the character before that."""
    categories = []
    previous = " "
    for piece in pieces:
        body = piece.lstrip()
        is_word_start = len(body) < len(piece) or not previous.isalpha()
        character = body[:1]
        other_category = ("first" if is_word_start else "inside") if character.isalpha() else "other"
        categories.append(
            "space" if piece and not body else "digit" if character.isdigit() else other_category
        )
        previous = piece[-1:] or previous
    return categories
