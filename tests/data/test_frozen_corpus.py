"""Frozen corpora: freezing is deterministic, loading restores the corpus, and damaged files are rejected."""

import gzip
import json

import pytest
import torch

from attnlab.data import text
from attnlab.data.corpora import frozen
from attnlab.data.corpora.corpus import Corpus, CorpusMetadata, build_corpus
from attnlab.data.corpora.frozen import FILE_SIGNATURE, freeze_corpus, load_frozen_corpus
from attnlab.data.tokenizers import ByteTokenizer

TEXT = ("é" * 40 + "packages that stay whole\n" * 40).encode()
GROUPS = (("alpha", 80), ("beta", 400), ("gamma", len(TEXT) - 480))


def make_corpus(data=TEXT, groups=GROUPS, **changes):
    metadata = build_corpus("some", data, "data=some", "python 3").metadata
    return Corpus(metadata.model_copy(update={"groups": groups, **changes}), "data=some", lambda: data)


@pytest.fixture
def frozen_file(tmp_path):
    freeze_corpus(make_corpus(), tmp_path / "some.gz")
    return tmp_path / "some.gz"


@pytest.fixture
def load_frozen(tmp_path):
    return lambda path: load_frozen_corpus(str(path), str(tmp_path / "cache"))


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_a_loaded_corpus_equals_the_frozen_one(tmp_path, load_frozen, groups):
    original = make_corpus(groups=groups)
    freeze_corpus(original, tmp_path / "some.gz")
    loaded = load_frozen(tmp_path / "some.gz")
    assert loaded.metadata == original.metadata
    assert loaded.split_text(0.5) == original.split_text(0.5)
    settings = {
        "tokenizer": ByteTokenizer(),
        "length": 5,
        "val_fraction": 0.5,
        "val_windows": 3,
        "allow_overlap": True,
        "cache": str(tmp_path),
    }
    tasks = [text.TextTask(corpus, **settings) for corpus in (original, loaded)]
    assert tasks[0].fingerprint == tasks[1].fingerprint
    batches = [task.train_batch(1, 2, 3)["tokens"] for task in tasks]
    assert torch.equal(*batches)


def test_equal_corpora_give_equal_files(tmp_path, frozen_file):
    freeze_corpus(make_corpus(), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == frozen_file.read_bytes()
    freeze_corpus(make_corpus(data=TEXT + b"x", groups=()), tmp_path / "other")
    assert (tmp_path / "other").read_bytes() != frozen_file.read_bytes()


def test_every_changed_byte_is_detected(frozen_file, load_frozen):
    content = frozen_file.read_bytes()
    for index in range(10, len(content), 7):  # past the gzip header, which does not affect the text
        frozen_file.write_bytes(content[:index] + bytes([content[index] ^ 8]) + content[index + 1 :])
        with pytest.raises(
            ValueError, match=r"^data\.path=.*some\.gz (is damaged|cannot be read): "
        ) as caught:
            load_frozen(frozen_file)
        assert "\n" not in str(caught.value)
    frozen_file.write_bytes(content[:-5])
    with pytest.raises(ValueError, match="copy or export it again"):
        load_frozen(frozen_file)


def make_head(**changes):
    return json.loads(make_corpus().metadata.model_dump_json()) | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"some text", "it is not a frozen corpus; for your own text, use data=text"),
        (FILE_SIGNATURE + b"{}\n" + TEXT, "is damaged: its header cannot be read"),
        (FILE_SIGNATURE + json.dumps(make_head(more=1)).encode() + b"\n" + TEXT, "is damaged: its head"),
        (
            FILE_SIGNATURE + json.dumps(make_head(bytes=3)).encode() + b"\n" + TEXT,
            "its header describes a different text",
        ),
        (
            FILE_SIGNATURE + json.dumps(make_head()).encode() + b"\n" + TEXT + b"x",
            "its header describes a different text",
        ),
        (
            FILE_SIGNATURE + json.dumps(make_head(name="\x1b[2J")).encode() + b"\n" + TEXT,
            "contains an unprintable name",
        ),
        (
            FILE_SIGNATURE + json.dumps(make_head(groups=[["a\n", len(TEXT)]])).encode() + b"\n" + TEXT,
            "contains an unprintable name",
        ),
        (
            FILE_SIGNATURE + json.dumps(make_head(groups=[["a", 3]])).encode() + b"\n" + TEXT,
            "group sizes in its header",
        ),
        (
            FILE_SIGNATURE
            + json.dumps(make_head(groups=[["a", -1], ["b", len(TEXT) + 1]])).encode()
            + b"\n"
            + TEXT,
            "the group sizes",
        ),
        (
            FILE_SIGNATURE
            + json.dumps(make_head(groups=[["a", 3], ["b", len(TEXT) - 3]])).encode()
            + b"\n"
            + TEXT,
            "the group sizes",
        ),
    ],
)
def test_an_inconsistent_file_gives_a_one_line_error(frozen_file, load_frozen, content, message):
    frozen_file.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=message) as caught:
        load_frozen(frozen_file)
    assert "\n" not in str(caught.value)


def test_a_validated_file_is_not_decompressed_again(frozen_file, load_frozen, monkeypatch):
    monkeypatch.setattr("attnlab.data.corpora.token_cache.MIN_AGE_NS", 0)
    metadata = load_frozen(frozen_file).metadata
    monkeypatch.setattr(frozen, "_read_frozen", lambda *_: pytest.fail("decompressed again"))
    assert isinstance(metadata, CorpusMetadata)
    assert load_frozen(frozen_file).metadata == metadata


def test_a_missing_file_is_rejected(load_frozen, tmp_path):
    with pytest.raises(ValueError, match=r"none\.gz: No such file .*written by `.*corpus export`"):
        load_frozen(tmp_path / "none.gz")
