"""Tokenizers: round trips, vocabularies, states and byte pairs."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharTokenizer

TEXT = "Zoë said:\n\n\t“naïve” — 東京 🙂\r\nthe end, the end, the end\n"


@pytest.fixture(params=[CharTokenizer, ByteTokenizer, lambda: BpeTokenizer(270)], ids=["char", "byte", "bpe"])
def tokenizer(request):
    fitted = request.param()
    fitted.fit(TEXT, "validation")
    return fitted


def test_decoded_strings_join_to_the_text(tokenizer):
    assert "".join(tokenizer.decode(tokenizer.encode(TEXT).tolist())) == TEXT


def test_ids_are_below_the_vocabulary_size(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert 0 <= ids.min() <= ids.max() < tokenizer.vocab_size


def test_empty_text_is_no_tokens(tokenizer):
    assert len(tokenizer.encode("")) == 0
    assert tokenizer.decode([]) == []


def test_a_state_restores_the_tokenizer(tokenizer):
    fresh = type(tokenizer)(*([270] if tokenizer.unit == "bpe" else []))
    fresh.load(tokenizer.fit(TEXT, "validation"))
    assert np.array_equal(fresh.encode(TEXT), tokenizer.encode(TEXT))
    assert fresh.vocab_size == tokenizer.vocab_size


def test_char_vocabulary_includes_validation_characters():
    char = CharTokenizer()
    char.fit("abc", "xa")
    assert char.encode("cxba").tolist() == [2, 3, 1, 0]


def test_char_error_names_the_first_unknown_character():
    char = CharTokenizer()
    char.fit("abc", "")
    with pytest.raises(
        ValueError, match=r"'é' \(U\+00E9, character 2\) .* 3 characters .* data/tokenizer=byte"
    ):
        char.encode("abéz")


def test_a_split_character_decodes_at_its_last_byte():
    byte = ByteTokenizer()
    assert byte.decode(list("aéb".encode())) == ["a", "", "é", "b"]
    assert byte.decode([0xC3]) == ["�"]


def test_bpe_learns_from_training_text_only():
    one, other = BpeTokenizer(270), BpeTokenizer(270)
    assert one.fit("the end " * 50, "abab" * 500) == other.fit("the end " * 50, "")
    assert other.encode("the end the end").size < len("the end the end")


def test_bpe_of_a_small_text_has_fewer_tokens_than_requested():
    bpe = BpeTokenizer(5000)
    bpe.fit("abab", "")
    assert 256 < bpe.vocab_size < 265


def test_bpe_round_trips_a_text_in_pieces():
    bpe = BpeTokenizer(270)
    bpe.fit(TEXT, "")
    bpe.piece_chars = 11
    assert "".join(bpe.decode(bpe.encode(TEXT).tolist())) == TEXT


CODE = "".join(
    f"class C{i}:\n    def read(self):\n        if self:\n            return {i}\n\n        return None\n\n\n"
    for i in range(200)
)


def fit_by_lines(text: str, vocab_size: int) -> BpeTokenizer:
    """Train byte pairs on lines, so that no token begins with a newline."""
    lines = Tokenizer(models.BPE())
    lines.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    lines.train_from_iterator(text.splitlines(keepends=True), trainer)
    bpe = BpeTokenizer(vocab_size)
    bpe.load(lines.to_str())
    return bpe


@pytest.mark.parametrize(
    ("text", "token"),
    [
        (CODE, "\n    "),
        ("One paragraph.\n\nAnother one.\n\n" * 50, "\n\n"),
        ("one\x0c\x0b\x0btwo " * 50, "\x0c\x0b"),
    ],
    ids=["code", "prose", "form feeds"],
)
def test_bpe_learns_tokens_across_line_ends(text, token):
    bpe = BpeTokenizer(280)
    bpe.fit(text, "")
    assert any(token in piece.decode("utf-8", "replace") for piece in bpe.token_bytes)
    assert bpe.encode(text).size < fit_by_lines(text, 280).encode(text).size


def test_bpe_learns_from_the_pieces_that_it_encodes(monkeypatch):
    monkeypatch.setattr(BpeTokenizer, "piece_chars", 7)
    bpe = BpeTokenizer(5000)
    bpe.fit("abcdefg" * 3 + "hij", "")
    assert bpe.encode("abcdefg" * 3 + "hij").size == 4
    assert not any(b"gh" in piece for piece in bpe.token_bytes)
    assert "7" in bpe.key.split()


def test_bpe_with_fewer_than_257_tokens_is_rejected():
    with pytest.raises(ValueError, match=r"data\.tokenizer\.vocab_size must be at least 257, .* got 256"):
        BpeTokenizer(256)
