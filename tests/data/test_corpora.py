import gzip
import json
import os
import platform

import pytest

from attnlab.data.corpora import files, kept
from attnlab.data.corpora import hub as hubs
from attnlab.data.corpora.files import file_corpus
from attnlab.data.corpora.hub import hub_corpus
from attnlab.data.corpora.pydocs import pydocs_corpus
from attnlab.store.guards import inputs


@pytest.fixture
def hub(tmp_path, monkeypatch):
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
        "cache": str(tmp_path / "cache"),
    }
    return lambda **changes: hub_corpus(**settings | changes)


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text(
        "".join(json.dumps({"text": row, "stars": 3}) + "\n" for row in ["one\n", "zwei ä", "", "drei"])
    )


@pytest.fixture
def read(tmp_path):
    return lambda path: file_corpus(str(path), str(tmp_path / "cache"))


def test_a_file_is_read_to_the_byte(tmp_path, read):
    path = tmp_path / "some.text.txt"
    path.write_bytes("a\r\n\n é".encode())
    source = read(str(path))
    assert (source.about.name, source.text()) == ("some.text", "a\r\n\n é")


def test_a_missing_file_is_refused(tmp_path, read):
    with pytest.raises(ValueError, match=r"data\.path=.*none\.txt: No such file .* give a UTF-8 text file"):
        read(str(tmp_path / "none.txt"))


def test_a_folder_is_refused(tmp_path, read):
    with pytest.raises(ValueError, match=r"data\.path=.*: Is a directory"):
        read(str(tmp_path))


def test_the_offset_of_a_wrong_byte_is_named(tmp_path, read):
    (tmp_path / "latin").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"data\.path=.*latin is not UTF-8: byte 0xe9 at offset 3; convert"):
        read(str(tmp_path / "latin")).text()


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_an_empty_file_is_refused(tmp_path, read, content):
    (tmp_path / "empty").write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.path=.*empty is empty; give a text"):
        read(str(tmp_path / "empty")).text()


def test_many_files_are_one_text_in_the_order_of_their_names(tmp_path, read):
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("bee")
    (tmp_path / "texts" / "deep" / "a.txt.gz").write_bytes(
        gzip.compress(b"a ", mtime=0) + gzip.compress(b"zip")
    )
    (tmp_path / "texts" / "a.dict.dz").write_bytes(gzip.compress("dä".encode(), mtime=7))
    source = read(tmp_path / "texts" / "**" / "*.[!x]*")
    assert source.text() == "dä\nbee\na zip"
    assert source.about.sources == ("a.dict.dz", "b.txt", "deep/a.txt.gz")
    assert source.about.name == "**/*.[!x]*"


def test_a_packed_file_is_the_text_that_is_in_it(tmp_path, read):
    (tmp_path / "book.txt").write_text("a book")
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(b"a book"))
    assert read(tmp_path / "book.txt").about == read(tmp_path / "book.txt.gz").about.model_copy(
        update={"sources": ("book.txt",)}
    )


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path, read):
    (tmp_path / "a[1].txt").write_text("one")
    (tmp_path / "a1.txt").write_text("other")
    assert read(tmp_path / "a[1].txt").text() == "one"


def test_what_cannot_be_read_of_many_files_is_named(tmp_path, read, monkeypatch):
    with pytest.raises(ValueError, match=r"data\.path=.*\*\.txt: no file matches; quote it"):
        read(tmp_path / "*.txt")
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"b\.txt is not UTF-8: byte 0xe9 at offset 3"):
        read(tmp_path / "*.txt")
    (tmp_path / "b.txt").unlink()
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    with pytest.raises(ValueError, match=r"data\.path=.*c\.txt\.gz is broken: .*end"):
        read(tmp_path / "*")
    os.mkfifo(tmp_path / "d.txt")
    with pytest.raises(ValueError, match=r"d\.txt is a pipe: match files alone"):
        read(tmp_path / "*.txt")
    monkeypatch.setattr(inputs, "MOST", 2)
    with pytest.raises(ValueError, match=r"more than 2 files: name fewer"):
        read(tmp_path / "*")


def test_what_was_hashed_is_not_read_again_until_it_changes(tmp_path, read, monkeypatch):
    (tmp_path / "book.txt").write_text("one")
    monkeypatch.setattr(kept, "SETTLED", 0)
    first = read(tmp_path / "book.txt").about
    with monkeypatch.context() as closed:
        closed.setattr(files, "_joined", lambda *_: pytest.fail("read again"))
        assert read(tmp_path / "book.txt").about == first
    (tmp_path / "book.txt").write_text("two")
    assert read(tmp_path / "book.txt").text() == "two"


def test_what_was_only_just_written_is_hashed_each_time(tmp_path, read):
    (tmp_path / "book.txt").write_text("one")
    before = (tmp_path / "book.txt").stat()
    first = read(tmp_path / "book.txt")
    assert not list(tmp_path.glob("cache/corpora/*"))
    (tmp_path / "book.txt").write_text("two")
    os.utime(tmp_path / "book.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(
        ValueError, match="is not the text that it was when it was hashed: run the command ag"
    ):
        first.text()


def test_pydocs_is_prose_of_this_python():
    source = pydocs_corpus()
    assert 'The "if" statement' in source.text()
    assert source.about.origin == f"python {platform.python_version()}"


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("streaming", [True, False])
def test_rows_of_a_data_set_are_joined_by_newlines(hub, streaming):
    assert hub(streaming=streaming).text() == "one\n\nzwei ä\n\ndrei"


def test_max_chars_is_exact(hub, monkeypatch):
    rows = ["one\n", "", "zwei ä", "", "drei"]
    monkeypatch.setattr(hubs, "_rows", lambda *_: iter(rows))
    whole = "\n".join(rows)
    found = [hub(name="some/set", max_chars=n).read().decode() for n in range(1, len(whole) + 3)]
    assert found == [whole[:n] for n in range(1, len(whole) + 3)]


def test_no_more_rows_are_fetched_than_max_chars_needs(hub, monkeypatch):
    def rows(*_):
        yield from ("one", "two")
        pytest.fail("asked for more")

    monkeypatch.setattr(hubs, "_rows", rows)
    assert hub(name="some/set", max_chars=7).text() == "one\ntwo"


@pytest.mark.usefixtures("rows")
def test_a_local_folder_is_read_anew(hub, tmp_path):
    hub()
    (tmp_path / "rows" / "train.jsonl").write_text(json.dumps({"text": "something else"}))
    assert hub().text() == "something else"


@pytest.mark.usefixtures("rows")
def test_a_missing_field_is_named(hub):
    with pytest.raises(ValueError, match=r"no data\.field=body, only stars, text"):
        hub(field="body")


@pytest.mark.usefixtures("rows")
def test_a_field_that_is_not_text_is_refused(hub):
    with pytest.raises(ValueError, match=r"data\.field=stars is not text"):
        hub(field="stars")


def test_an_unreachable_hub_is_one_line(hub):
    with pytest.raises(ValueError, match=r"data\.name=no/such cannot be read: .*; check the name") as caught:
        hub(name="no/such")
    assert "\n" not in str(caught.value)


def test_what_came_from_the_hub_is_kept(hub, monkeypatch):
    monkeypatch.setattr(hubs, "_rows", lambda *_: iter(["once", "only"]))
    first = hub(name="some/set")
    monkeypatch.setattr(hubs, "_rows", lambda *_: pytest.fail("asked again"))
    again = hub(name="some/set")
    assert again.about == first.about
    assert again.text() == first.text() == "once\nonly"


def test_max_chars_below_one_is_refused(hub):
    with pytest.raises(ValueError, match=r"data\.max_chars=0: .* at least 1"):
        hub(max_chars=0)


def test_the_commit_that_was_read_is_on_record(hub, monkeypatch):
    import huggingface_hub

    class Info:
        sha = "c0ffee"

    asked = []
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda *_, **settings: asked.append(settings) or Info
    )
    monkeypatch.setattr(hubs, "_rows", lambda *settings: iter([f"rows of {settings[5]}"]))
    source = hub(name="some/set", revision="main")
    assert source.text() == "rows of c0ffee"
    assert source.about.sources == ("some/set train text at commit c0ffee",)
    assert hub(name="some/set", revision="main").about == source.about
    assert [settings["revision"] for settings in asked] == ["main"]
    assert source.about.origin == ""  # the same rows under another name are the same text


def test_without_a_network_it_says_at_once_what_to_do(hub, monkeypatch):
    import huggingface_hub

    def unreachable(*_, **__):
        raise TimeoutError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(hubs, "_rows", lambda *_: pytest.fail("tries again and again"))
    with pytest.raises(
        ValueError, match=r"^data\.name=some/set: the hub cannot be reached \(Name .*data=frozen"
    ):
        hub(name="some/set")


@pytest.mark.parametrize("shape", ["parquet", "parts"])
def test_a_folder_in_the_shape_of_the_hub_is_read(hub, tmp_path, shape):
    """`data/train-00000-of-00002.parquet`, as the hub has them, with a card; splits apart."""
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
    assert hub().text() == "one\ntwo\nthree"
    assert hub(split="test").text() == "four"
