import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnlab.data.tokenizers import Bpe, Byte, Char

TEXT = "Zoë said:\n\n\t“naïve” — 東京 🙂\r\nthe end, the end, the end\n"


@pytest.fixture(params=[Char, Byte, lambda: Bpe(270)], ids=["char", "byte", "bpe"])
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


def test_char_knows_characters_seen_only_in_validation():
    char = Char()
    char.fit("abc", "xa")
    assert char.encode("cxba").tolist() == [2, 3, 1, 0]


def test_char_names_the_first_unknown_character():
    char = Char()
    char.fit("abc", "")
    with pytest.raises(
        ValueError, match=r"'é' \(U\+00E9, character 2\) .* 3 characters .* data/tokenizer=byte"
    ):
        char.encode("abéz")


def test_a_cut_character_is_shown_where_it_ends():
    byte = Byte()
    assert byte.decode(list("aéb".encode())) == ["a", "", "é", "b"]
    assert byte.decode([0xC3]) == ["�"]


def test_bpe_learns_from_training_text_only():
    one, other = Bpe(270), Bpe(270)
    assert one.fit("the end " * 50, "abab" * 500) == other.fit("the end " * 50, "")
    assert other.encode("the end the end").size < len("the end the end")


def test_bpe_of_a_small_text_is_as_small_as_it_is():
    bpe = Bpe(5000)
    bpe.fit("abab", "")
    assert 256 < bpe.vocab_size < 265


def test_bpe_encodes_a_long_text_in_pieces():
    bpe = Bpe(270)
    bpe.fit(TEXT, "")
    bpe.piece = 11
    assert "".join(bpe.decode(bpe.encode(TEXT).tolist())) == TEXT


CODE = "".join(
    f"class C{i}:\n    def read(self):\n        if self:\n            return {i}\n\n        return None\n\n\n"
    for i in range(200)
)


def fit_by_lines(text: str, vocab_size: int) -> Bpe:
    """Byte pairs trained on lines, which no newline begins."""
    lines = Tokenizer(models.BPE())
    lines.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    lines.train_from_iterator(text.splitlines(keepends=True), trainer)
    bpe = Bpe(vocab_size)
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
def test_bpe_learns_tokens_that_reach_across_line_ends(text, token):
    bpe = Bpe(280)
    bpe.fit(text, "")
    assert any(token in piece.decode("utf-8", "replace") for piece in bpe.pieces)
    assert bpe.encode(text).size < fit_by_lines(text, 280).encode(text).size


def test_bpe_learns_from_the_pieces_that_it_encodes(monkeypatch):
    monkeypatch.setattr(Bpe, "piece", 7)
    bpe = Bpe(5000)
    bpe.fit("abcdefg" * 3 + "hij", "")
    assert bpe.encode("abcdefg" * 3 + "hij").size == 4
    assert not any(b"gh" in piece for piece in bpe.pieces)
    assert "7" in bpe.key.split()


def test_bpe_below_the_bytes_is_refused():
    with pytest.raises(ValueError, match=r"data\.tokenizer\.vocab_size=256: .* at least 257"):
        Bpe(256)
