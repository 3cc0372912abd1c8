"""Loaders of corpora: files, patterns, Hugging Face data sets."""

import gzip
import json
import os
import platform

import pytest

from attnlab.data.corpora import hub, text_files, token_cache
from attnlab.data.corpora.hub import load_hub_corpus
from attnlab.data.corpora.pydocs import load_pydocs_corpus
from attnlab.data.corpora.text_files import load_file_corpus
from attnlab.store.guards import inputs


@pytest.fixture
def load_hub(tmp_path, monkeypatch):
    """Load a hub corpus; keywords replace the settings, which name a local folder."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    settings = {
        "name": str(tmp_path / "rows"),
        "config": None,
        "split": "train",
        "field": "text",
        "revision": None,
        "streaming": True,
        "max_chars": None,
        "normalize": None,
        "cache": str(tmp_path / "cache"),
    }
    return lambda **changes: load_hub_corpus(**settings | changes)


@pytest.fixture
def local_data_set(tmp_path):
    """A local data set of four rows."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text(
        "".join(json.dumps({"text": row, "stars": 3}) + "\n" for row in ["one\n", "zwei ä", "", "drei"])
    )


@pytest.fixture
def load_file(tmp_path):
    """Load a file corpus with a temporary cache."""

    def load(path, text_key="text", normalize=None):
        return load_file_corpus(str(path), str(tmp_path / "cache"), text_key, normalize)

    return load


def test_a_file_is_read_to_the_byte(tmp_path, load_file):
    path = tmp_path / "some.text.txt"
    path.write_bytes("a\r\n\n é".encode())
    corpus = load_file(str(path))
    assert (corpus.metadata.name, corpus.load_text()) == ("some.text", "a\r\n\n é")


def test_a_missing_file_is_rejected(tmp_path, load_file):
    with pytest.raises(ValueError, match=r"data\.path=.*none\.txt: No such file .* give a UTF-8 text file"):
        load_file(str(tmp_path / "none.txt"))


def test_a_folder_is_rejected(tmp_path, load_file):
    with pytest.raises(ValueError, match=r"data\.path=.*: Is a directory"):
        load_file(str(tmp_path))


def test_an_error_gives_the_offset_of_an_invalid_byte(tmp_path, load_file):
    (tmp_path / "latin").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"data\.path=.*latin is not UTF-8: byte 0xe9 at offset 3; convert"):
        load_file(str(tmp_path / "latin")).load_text()


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_an_empty_file_is_rejected(tmp_path, load_file, content):
    (tmp_path / "empty").write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.path=.*empty is empty; give a text"):
        load_file(str(tmp_path / "empty")).load_text()


def test_files_are_joined_in_the_order_of_their_names(tmp_path, load_file):
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("bee")
    (tmp_path / "texts" / "deep" / "a.txt.gz").write_bytes(
        gzip.compress(b"a ", mtime=0) + gzip.compress(b"zip")
    )
    (tmp_path / "texts" / "a.dict.dz").write_bytes(gzip.compress("dä".encode(), mtime=7))
    corpus = load_file(tmp_path / "texts" / "**" / "*.[!x]*")
    assert corpus.load_text() == "dä\nbee\na zip"
    assert corpus.metadata.sources == ("a.dict.dz", "b.txt", "deep/a.txt.gz")
    assert corpus.metadata.name == "**/*.[!x]*"


def test_a_gzip_file_is_decompressed(tmp_path, load_file):
    (tmp_path / "book.txt").write_text("a book")
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(b"a book"))
    assert load_file(tmp_path / "book.txt").metadata == load_file(
        tmp_path / "book.txt.gz"
    ).metadata.model_copy(update={"sources": ("book.txt",)})


def test_a_file_name_with_wildcards_is_a_file(tmp_path, load_file):
    (tmp_path / "a[1].txt").write_text("one")
    (tmp_path / "a1.txt").write_text("other")
    assert load_file(tmp_path / "a[1].txt").load_text() == "one"


def test_an_error_names_the_unreadable_file_of_a_pattern(tmp_path, load_file, monkeypatch):
    with pytest.raises(ValueError, match=r"data\.path=.*\*\.txt: no file matches; quote it"):
        load_file(tmp_path / "*.txt")
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"b\.txt is not UTF-8: byte 0xe9 at offset 3"):
        load_file(tmp_path / "*.txt")
    (tmp_path / "b.txt").unlink()
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    with pytest.raises(ValueError, match=r"data\.path=.*c\.txt\.gz is damaged: .*end"):
        load_file(tmp_path / "*")
    os.mkfifo(tmp_path / "d.txt")
    with pytest.raises(ValueError, match=r"d\.txt is a pipe: match regular files only"):
        load_file(tmp_path / "*.txt")
    monkeypatch.setattr(inputs, "MAX_DATA_FILES", 2)
    with pytest.raises(ValueError, match=r"more than 2 files: narrow the pattern"):
        load_file(tmp_path / "*")


def test_a_hashed_file_is_not_read_again_until_it_changes(tmp_path, load_file, monkeypatch):
    (tmp_path / "book.txt").write_text("one")
    monkeypatch.setattr(token_cache, "MIN_AGE_NS", 0)
    first = load_file(tmp_path / "book.txt").metadata
    with monkeypatch.context() as patch:
        patch.setattr(text_files, "_join_files", lambda *_: pytest.fail("read again"))
        assert load_file(tmp_path / "book.txt").metadata == first
    (tmp_path / "book.txt").write_text("two")
    assert load_file(tmp_path / "book.txt").load_text() == "two"


def test_a_recently_written_file_is_hashed_each_time(tmp_path, load_file):
    (tmp_path / "book.txt").write_text("one")
    before = (tmp_path / "book.txt").stat()
    first = load_file(tmp_path / "book.txt")
    assert not list(tmp_path.glob("cache/corpora/*"))
    (tmp_path / "book.txt").write_text("two")
    os.utime(tmp_path / "book.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match="changed after it was hashed: run the command ag"):
        first.load_text()


ROWS = "".join(json.dumps({"text": row}) + "\n" for row in ("one line", "two x", "three\nfour"))


JSON_LINES_NAMES = (
    "a.jsonl", "a.JSONL", "a.jsonlines", "a.NdJson", "a.jsonl.gz", "a.jsonl.GZ", "a.jsonlines.gzip",
    "a.JsonL.DZ", "a.gz", "a.GZ", "a.jl", "a.dat", "a",
)  # fmt: skip


@pytest.mark.parametrize("name", JSON_LINES_NAMES)
def test_json_lines_are_read_under_any_name(tmp_path, load_file, name):
    is_gzip = name.lower().endswith((".gz", ".gzip", ".dz"))
    (tmp_path / name).write_bytes(gzip.compress(ROWS.encode()) if is_gzip else ROWS.encode())
    corpus = load_file(tmp_path / name)
    assert corpus.load_text() == "one line\ntwo x\nthree\nfour"
    assert corpus.metadata.name == "a"


def test_a_txt_file_is_read_as_it_is(tmp_path, load_file):
    (tmp_path / "a.TXT").write_text(ROWS)
    (tmp_path / "b.txt.GZ").write_bytes(gzip.compress(ROWS.encode()))
    (tmp_path / "c.tex").write_text('{"a" is quoted}\n')
    assert load_file(tmp_path / "*").load_text() == f'{ROWS}\n{ROWS}\n{{"a" is quoted}}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.JSON.GZ", ROWS, r"is a \.json file, whose text is in a column"),
        ("a.csv.GZ", ROWS, r"is a \.csv file, whose text is in a column"),
        ("a.Parquet.gz", ROWS, r"is a \.parquet file"),
        ("a.gz", json.dumps([{"text": "one"}]), r"no text under 'text' \(keys: none"),
        ("a.gz", json.dumps({"text": "one"}, indent=1), r"line 1 is not JSON: .* or name the file \.txt"),
        (
            "a.data",
            '{"body": "one"}\n',
            r"no text under 'text' \(keys: body\): set data\.text_key",
        ),
        (
            "a.txt.gz",
            gzip.compress(b"one", mtime=0),
            r"is compressed twice, not text: unpack it with `gunzip`",
        ),
        ("a.txt.GZ", "", "empty"),
    ],
)
def test_other_formats_are_rejected_under_any_name(tmp_path, load_file, name, content, message):
    content = content if isinstance(content, bytes) else content.encode()
    is_gzip = name.lower().endswith(".gz")
    (tmp_path / name).write_bytes(gzip.compress(content) if is_gzip else content)
    with pytest.raises(ValueError, match=rf"^data\.path=.*{name},? .*{message}"):
        load_file(tmp_path / name).load_text()


def test_pydocs_are_the_topics_of_this_python():
    corpus = load_pydocs_corpus()
    assert 'The "if" statement' in corpus.load_text()
    assert corpus.metadata.origin == f"python {platform.python_version()}"


@pytest.mark.usefixtures("local_data_set")
@pytest.mark.parametrize("streaming", [True, False])
def test_rows_of_a_data_set_are_joined_by_newlines(load_hub, streaming):
    assert load_hub(streaming=streaming).load_text() == "one\n\nzwei ä\n\ndrei"


def test_max_chars_is_exact(load_hub, monkeypatch):
    rows = ["one\n", "", "zwei ä", "", "drei"]
    monkeypatch.setattr(hub, "_iterate_rows", lambda *_: iter(rows))
    text = "\n".join(rows)
    prefixes = [load_hub(name="some/set", max_chars=n).read().decode() for n in range(1, len(text) + 3)]
    assert prefixes == [text[:n] for n in range(1, len(text) + 3)]


def test_no_more_rows_are_fetched_than_max_chars_needs(load_hub, monkeypatch):
    def rows(*_):
        yield from ("one", "two")
        pytest.fail("requested more rows")

    monkeypatch.setattr(hub, "_iterate_rows", rows)
    assert load_hub(name="some/set", max_chars=7).load_text() == "one\ntwo"


@pytest.mark.usefixtures("local_data_set")
def test_a_local_folder_is_read_each_time(load_hub, tmp_path):
    load_hub()
    (tmp_path / "rows" / "train.jsonl").write_text(json.dumps({"text": "something else"}))
    assert load_hub().load_text() == "something else"


@pytest.mark.usefixtures("local_data_set")
def test_an_error_lists_the_fields_of_the_data_set(load_hub):
    with pytest.raises(ValueError, match=r"data\.field=body does not exist \(known: stars, text"):
        load_hub(field="body")


@pytest.mark.usefixtures("local_data_set")
def test_a_field_that_is_not_text_is_rejected(load_hub):
    with pytest.raises(ValueError, match=r"data\.field=stars is not text"):
        load_hub(field="stars")


def test_an_unknown_data_set_gives_a_one_line_error(load_hub):
    with pytest.raises(ValueError, match=r"data\.name=no/such cannot be read: .*; check the name") as caught:
        load_hub(name="no/such")
    assert "\n" not in str(caught.value)


def test_hub_text_is_cached(load_hub, monkeypatch):
    monkeypatch.setattr(hub, "_iterate_rows", lambda *_: iter(["once", "only"]))
    first = load_hub(name="some/set")
    monkeypatch.setattr(hub, "_iterate_rows", lambda *_: pytest.fail("requested again"))
    second = load_hub(name="some/set")
    assert second.metadata == first.metadata
    assert second.load_text() == first.load_text() == "once\nonly"


def test_max_chars_below_one_is_rejected(load_hub):
    with pytest.raises(ValueError, match=r"data\.max_chars must be at least 1"):
        load_hub(max_chars=0)


def test_the_sources_name_the_commit(load_hub, monkeypatch):
    import huggingface_hub

    class Info:
        sha = "c0ffee"

    requests = []
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda *_, **settings: requests.append(settings) or Info
    )
    monkeypatch.setattr(hub, "_iterate_rows", lambda *settings: iter([f"rows of {settings[5]}"]))
    corpus = load_hub(name="some/set", revision="main")
    assert corpus.load_text() == "rows of c0ffee"
    assert corpus.metadata.sources == ("some/set train text at commit c0ffee",)
    assert load_hub(name="some/set", revision="main").metadata == corpus.metadata
    assert [settings["revision"] for settings in requests] == ["main"]
    assert corpus.metadata.origin == ""  # equal rows under another name are the same text


def test_without_a_network_the_error_suggests_a_frozen_corpus(load_hub, monkeypatch):
    import huggingface_hub

    def unreachable(*_, **__):
        raise TimeoutError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(hub, "_iterate_rows", lambda *_: pytest.fail("tries again and again"))
    with pytest.raises(
        ValueError, match=r"^data\.name=some/set: the hub cannot be reached \(Name .*data=frozen"
    ):
        load_hub(name="some/set")


@pytest.mark.parametrize("shape", ["parquet", "parts"])
def test_a_folder_with_the_hubs_layout_is_loaded(load_hub, tmp_path, shape):
    """`data/train-00000-of-00002.parquet`, as on the hub, with a card and separate splits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "rows" / "data").mkdir(parents=True)
    (tmp_path / "rows" / "README.md").write_text("# A set\n")
    parts = {"train-00000-of-00001": ["one", "two", "three"], "test-00000-of-00001": ["four"]}
    if shape == "parts":
        parts = {"train-00000-of-00002": ["one"], "train-00001-of-00002": ["two", "three"]} | {
            "test-00000-of-00001": ["four"]
        }
    for name, rows in parts.items():
        pq.write_table(pa.table({"text": rows}), tmp_path / "rows" / "data" / f"{name}.parquet")
    assert load_hub().load_text() == "one\ntwo\nthree"
    assert load_hub(split="test").load_text() == "four"


@pytest.mark.parametrize("name", ["text", "csv", "json"])
def test_a_folder_named_like_a_reader_of_datasets_is_read(load_hub, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "notes.txt").write_text("of another folder")
    with pytest.raises(ValueError, match=rf"data\.name={name} cannot be read: there is no folder {name} "):
        load_hub(name=name, cache="c", revision="main")
    (tmp_path / name).mkdir()
    (tmp_path / name / "train.txt").write_text("mine 1\nmine 2")
    assert load_hub(name=name).load_text() == load_hub(name=f"./{name}").load_text() == "mine 1\nmine 2"


def test_a_saved_data_set_is_read(load_hub, tmp_path):
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["one", "two"]}).with_format("numpy")
    rows.save_to_disk(tmp_path / "rows")
    assert load_hub().load_text() == "one\ntwo"
    assert load_hub(max_chars=5).load_text() == "one\nt"
    with pytest.raises(ValueError, match=r"one saved split: set data\.config=null data\.split=train"):
        load_hub(split="test")
    datasets.DatasetDict(train=rows, test=rows.select([1])).save_to_disk(tmp_path / "splits")
    assert load_hub(name=str(tmp_path / "splits"), split="test").load_text() == "two"


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("part.JSONL", {}, r"`datasets` skips part\.JSONL: write its suffix in small letters"),
        (
            "deep/part.jsonlines.gz",
            {},
            r"skips deep/part\.jsonlines\.gz: .*\.jsonl for JSON lines",
        ),
        ("part.jsonl", {"revision": "main"}, r"a local folder has no data\.revision: remove it"),
        (
            "part.jsonl",
            {"name": "rows/train.jsonl"},
            r"it is a file: .* data\.path=rows/train\.jsonl",
        ),
    ],
)
@pytest.mark.usefixtures("local_data_set")
def test_a_local_folder_that_would_be_read_in_part_is_rejected(
    load_hub, tmp_path, monkeypatch, file, settings, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "rows" / file).write_text(json.dumps({"text": "five", "stars": 5}))
    with pytest.raises(ValueError, match=message) as caught:
        load_hub(**settings)
    assert "network" not in str(caught.value)
