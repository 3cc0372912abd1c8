"""Text files of other encodings, formats and Unicode forms: the right text, or one line with the remedy."""

import bz2
import gzip
import json
import lzma
import unicodedata

import pytest

from attnlab.data.corpora import unicode_forms
from attnlab.data.corpora.text_files import load_file_corpus

TEXT = "zoë\nand «more» 🙂\n"


@pytest.fixture
def load_content(tmp_path):
    """`load_content(content, name, ...)`: the corpus of a file with this content."""

    def load(content, name="a.txt", text_key="text", normalize=None):
        (tmp_path / name).write_bytes(content)
        return load_file_corpus(str(tmp_path / name), str(tmp_path / "cache"), text_key, normalize)

    return load


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-32"], ids=["utf-8 with a mark", "utf-16", "utf-32"]
)
def test_a_byte_order_mark_is_no_character(load_content, encoding):
    plain = load_content(TEXT.encode()).metadata
    marked = load_content(TEXT.encode(encoding))
    assert marked.load_text() == TEXT
    assert marked.metadata.fingerprint == plain.fingerprint


def test_big_endian_text_with_a_mark_is_decoded(load_content):
    assert load_content("\ufeff".encode("utf-16-be") + TEXT.encode("utf-16-be")).load_text() == TEXT


def test_each_file_of_a_pattern_loses_its_mark(tmp_path, load_content):
    load_content(b"\xef\xbb\xbfone")
    load_content(gzip.compress(b"\xef\xbb\xbftwo"), "b.txt")  # gzip, whatever its name
    corpus = load_file_corpus(str(tmp_path / "*.txt"), str(tmp_path / "cache"), "text", None)
    assert corpus.load_text() == "one\ntwo"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04rest", "is a zip archive or an Office document, not text: unpack it"),
        (b"\x28\xb5\x2f\xfdrest", "is compressed with zstd, not text: unpack it with `zstd -d`"),
        (bz2.compress(b"text"), "is compressed with bzip2, not text: unpack it with `bunzip2`"),
        (lzma.compress(b"text"), "is compressed with xz, not text: unpack it with `unxz`"),
        (b"%PDF-1.4 all of it ASCII", "is a PDF file, not text: extract its text"),
        (b"PAR1rest", "is a parquet file, not text: load its folder with data=hub"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer, not text: fetch the file"),
        (b"\x89PNG\r\n", "is an image, not text"),
        ("half".encode("utf-16-le"), "has a zero byte at offset 1: it is binary, or UTF-16 without"),
        (b"\xff\xfeo", "starts with the byte-order mark of UTF-16, but cannot be decoded at offset"),
        (b"caf\xe9", "is not UTF-8: byte 0xe9 at offset 3; convert the file to UTF-8"),
    ],
)
def test_a_file_without_plain_text_is_named_by_its_kind(load_content, content, message):
    with pytest.raises(ValueError, match=r"^data\.path=.*a\.txt ") as caught:
        load_content(content)
    assert message in str(caught.value)


def test_the_lines_of_a_jsonl_file_are_documents(load_content):
    lines = [{"text": "one\ntwo", "id": 1}, {"id": 2, "text": "zoë\u2028"}]
    content = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode()
    assert load_content(content, "a.jsonl").load_text() == "one\ntwo\nzoë\u2028"
    assert load_content(gzip.compress(content), "a.jsonl.gz").load_text() == "one\ntwo\nzoë\u2028"
    assert load_content(b'{"body": "three"}', "b.jsonl", text_key="body").load_text() == "three"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (
            b'{"text": "a"}\n{"body": "b", "n": 1}',
            "a.jsonl",
            "line 2 has no text under 'text' (keys: body, n)",
        ),
        (b'{"text": 3}', "a.jsonl", "line 1 has no text under 'text' (keys: text): set data.text_key"),
        (b'["text"]', "a.jsonl", "line 1 has no text under 'text' (keys: none, it is no object)"),
        (b'{"text": "a"', "a.jsonl", "line 1 is not JSON: give one JSON object per line"),
        (b'{"text": "\\ud800"}', "a.jsonl", "line 1 has half of a surrogate pair"),
        (b"[]", "a.json", "is a .json file, whose text is in a column: load its folder with data=hub"),
        (b"a,b", "a.csv", "is a .csv file"),
        (b"a,b", "a.csv.gz", "is a .csv file"),
    ],
)
def test_structured_files_are_no_prose(load_content, content, name, message):
    with pytest.raises(ValueError, match=r"^data\.path=") as caught:
        load_content(content, name)
    assert message in str(caught.value)


def test_mixed_unicode_forms_are_reported_once_and_normalized(load_content, capsys):
    unicode_forms._print_once.cache_clear()
    composed, decomposed = (unicodedata.normalize(form, "zoë é") for form in ("NFC", "NFD"))
    mixed = f"{composed} {composed} {decomposed}"
    for _ in range(2):
        assert load_content(mixed.encode()).load_text() == mixed
    message = capsys.readouterr().err
    assert message.count("has 4 composed and 2 decomposed characters") == message.count("\n") == 1
    assert "data.normalize=NFC" in message
    assert load_content(mixed.encode(), normalize="NFC").load_text() == f"{composed} {composed} {composed}"
    for alike in (composed, decomposed, "plain"):
        load_content(alike.encode(), normalize=None)
    load_content(mixed.encode(), normalize="NFD")
    assert capsys.readouterr().err == ""
