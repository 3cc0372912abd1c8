import json
import platform

import pytest

from attnlab.data.corpora import hub as hubs
from attnlab.data.corpora.files import file_corpus
from attnlab.data.corpora.hub import hub_corpus
from attnlab.data.corpora.pydocs import pydocs_corpus


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
