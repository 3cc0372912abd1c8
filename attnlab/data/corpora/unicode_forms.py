"""Unicode normalization: one character may be one code point (NFC) or a letter and combining marks (NFD)."""

import sys
import unicodedata
from functools import cache
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


def normalize_text(text: str, form: Form | None) -> str:
    """Return the text in a normal form; None leaves it unchanged."""
    return text if form is None else unicodedata.normalize(form, text)


def normalize_bytes(data: bytes, form: Form | None) -> bytes:
    """Return UTF-8 text in a normal form; None leaves it unchanged."""
    return data if form is None else normalize_text(data.decode(), form).encode()


def warn_of_mixed_forms(text: str, source: str) -> None:
    """Print a warning, once per process, if a text holds composed and decomposed characters."""
    decomposed, composed = count_forms(text)
    if decomposed and composed:
        _print_once(
            f"warning: {source} has {composed:,} composed and {decomposed:,} decomposed characters, such as é"
            " as one or two code points, which get different tokens: data.normalize=NFC writes them alike"
        )


def count_forms(text: str) -> tuple[int, int]:
    """Return the number of combining marks that NFC would join to a letter, and of composed characters."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return 0, 0  # composed characters alone are not mixed with others
    decomposed = len(text) - len(unicodedata.normalize("NFC", text))
    composed = sum(
        text.count(character) for character in {*text} if not unicodedata.is_normalized("NFD", character)
    )
    return max(0, decomposed), composed


@cache
def _print_once(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
