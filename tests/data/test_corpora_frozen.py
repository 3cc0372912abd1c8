"""A frozen corpus: the same text, the same file; the same file, the same batches; and what is none."""

import gzip
import json

import pytest
import torch

from attnlab.data import text
from attnlab.data.corpora import frozen
from attnlab.data.corpora.corpus import About, Corpus, of
from attnlab.data.corpora.frozen import MARK, freeze, frozen_corpus
from attnlab.data.tokenizers import Byte

TEXT = ("é" * 40 + "packages that stay whole\n" * 40).encode()
GROUPS = (("alpha", 80), ("beta", 400), ("gamma", len(TEXT) - 480))


def corpus(data=TEXT, groups=GROUPS, **more):
    known = of("some", data, "data=some", "python 3").about
    return Corpus(known.model_copy(update={"groups": groups, **more}), "data=some", lambda: data)


@pytest.fixture
def file(tmp_path):
    freeze(corpus(), tmp_path / "some.gz")
    return tmp_path / "some.gz"


@pytest.fixture
def read(tmp_path):
    return lambda path: frozen_corpus(str(path), str(tmp_path / "cache"))


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_what_is_read_is_what_was_frozen(tmp_path, read, groups):
    one = corpus(groups=groups)
    freeze(one, tmp_path / "some.gz")
    other = read(tmp_path / "some.gz")
    assert other.about == one.about
    assert other.split(0.5) == one.split(0.5)
    settings = {
        "tokenizer": Byte(),
        "length": 5,
        "val_fraction": 0.5,
        "val_windows": 3,
        "cache": str(tmp_path),
    }
    tasks = [text.Text(each, **settings) for each in (one, other)]
    assert tasks[0].fingerprint == tasks[1].fingerprint
    batches = [task.train_batch(1, 2, 3)["tokens"] for task in tasks]
    assert torch.equal(*batches)


def test_the_same_corpus_is_the_same_file(tmp_path, file):
    freeze(corpus(), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    freeze(corpus(data=TEXT + b"x", groups=()), tmp_path / "other")
    assert (tmp_path / "other").read_bytes() != file.read_bytes()


def test_every_broken_byte_is_found(file, read):
    whole = file.read_bytes()
    for place in range(10, len(whole), 7):  # past the head of gzip, which says nothing of the text
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        with pytest.raises(
            ValueError, match=r"^data\.path=.*some\.gz (is damaged|cannot be read): "
        ) as caught:
            read(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="copy or export it again"):
        read(file)


def head(**changes):
    return json.loads(corpus().about.model_dump_json()) | changes


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"some text", "it is no frozen corpus; a text of your own is data=text"),
        (MARK + b"{}\n" + TEXT, "is damaged: its head cannot be read"),
        (MARK + json.dumps(head(more=1)).encode() + b"\n" + TEXT, "is damaged: its head"),
        (MARK + json.dumps(head(bytes=3)).encode() + b"\n" + TEXT, "its text is not the one"),
        (MARK + json.dumps(head()).encode() + b"\n" + TEXT + b"x", "its text is not the one"),
        (MARK + json.dumps(head(name="\x1b[2J")).encode() + b"\n" + TEXT, "cannot be printed"),
        (MARK + json.dumps(head(groups=[["a\n", len(TEXT)]])).encode() + b"\n" + TEXT, "cannot be printed"),
        (MARK + json.dumps(head(groups=[["a", 3]])).encode() + b"\n" + TEXT, "divides another text"),
        (
            MARK + json.dumps(head(groups=[["a", -1], ["b", len(TEXT) + 1]])).encode() + b"\n" + TEXT,
            "divides",
        ),
        (MARK + json.dumps(head(groups=[["a", 3], ["b", len(TEXT) - 3]])).encode() + b"\n" + TEXT, "divides"),
    ],
)
def test_a_file_that_lies_is_one_line(file, read, content, says):
    file.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=says) as caught:
        read(file)
    assert "\n" not in str(caught.value)


def test_what_was_checked_is_not_unpacked_again(file, read, monkeypatch):
    monkeypatch.setattr("attnlab.data.corpora.kept.SETTLED", 0)
    about = read(file).about
    monkeypatch.setattr(frozen, "_parts", lambda *_: pytest.fail("unpacked again"))
    assert isinstance(about, About)
    assert read(file).about == about


def test_a_missing_file_is_named(read, tmp_path):
    with pytest.raises(ValueError, match=r"none\.gz: No such file .*corpus export` wrote"):
        read(tmp_path / "none.gz")
