"""Labels of tokens: each character once, at its first token, and a mark at the other tokens."""

import pytest

from attnlab.data.token_labels import CONTINUATION, label_bytes, label_pieces, label_spans
from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer

TEXT = "Zoë said “naïve” 東京 🙂"
MARK = CONTINUATION


@pytest.mark.parametrize(
    ("pieces", "labels"),
    [
        (["a", "", "é", "b"], ["a", "é", MARK, "b"]),
        (["", "", "東x", ""], ["東", MARK, "x", MARK]),
        (["", "\ufffd", "a"], ["\ufffd", MARK, "a"]),
        (["whole ", "words"], ["whole ", "words"]),
    ],
)
def test_character_of_several_pieces_is_at_the_first(pieces: list[str], labels: list[str]) -> None:
    assert label_pieces(pieces) == labels


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BpeTokenizer(270)], ids=["byte", "bpe"])
def test_every_character_is_in_the_label_of_its_first_token(tokenizer: ByteTokenizer | BpeTokenizer) -> None:
    tokenizer.fit(" “ " * 50 + TEXT, "")
    ids = tokenizer.encode(TEXT).tolist()
    byte_counts = tokenizer.count_token_bytes()[ids].tolist()
    labels = label_bytes(TEXT, byte_counts, tokenizer.decode(ids))
    assert len(labels) == len(ids)
    assert "".join(label for label in labels if label != MARK) == TEXT
    position = start = 0  # in bytes, of the token and of the next character
    for label, count in zip(labels, byte_counts, strict=True):
        for character in label.replace(MARK, ""):
            assert position <= start < position + count
            start += len(character.encode())
        position += count
    if isinstance(tokenizer, BpeTokenizer):
        assert " “" in labels, "a token of a space and the start of the mark"


def test_tokens_that_do_not_fit_the_text_are_rejected() -> None:
    with pytest.raises(ValueError, match="the tokens have 3 bytes, and the text has 2"):
        label_bytes("é", [1, 2], ["", "é"])


def test_overlapping_spans_share_no_character() -> None:
    spans = [(0, 0), (0, 1), (1, 2), (1, 2), (1, 3)]
    assert label_spans("aéb", spans, ["<s>", "a", "Ã", "©", "b"]) == ["<s>", "a", "é", MARK, "b"]
