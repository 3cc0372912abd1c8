"""`corpus`: what is told of a text, and the file of it."""

import pytest

from attnlab.cli.main import main


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """The status, output and complaint of a line, typed in a folder with two texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("one text, and not so short\n" * 9)
    (tmp_path / "two.txt").write_text("another\n" * 9)

    def run(*line):
        status = main(["corpus", *line])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def test_a_text_is_told_of_without_a_token_of_it(said, tmp_path):
    status, out, _ = said("show", "data=text", "data.path=*.txt")
    assert status == 0
    assert "316 bytes" in out
    assert "files 2" in out
    assert "made of one.txt, two.txt" in out
    assert not (tmp_path / ".cache" / "tokens").exists()


def test_what_is_exported_is_what_was_there_and_nothing_is_written_over(said, tmp_path):
    status, out, _ = said("export", "data=text", "data.path=*.txt", "to=both.gz")
    assert status == 0
    assert "data=frozen data.path=both.gz" in out
    assert said("show", "data=frozen", "data.path=both.gz")[1].splitlines()[:4] == out.splitlines()[:4]
    before = (tmp_path / "both.gz").read_bytes()
    assert said("export", "data=text", "data.path=*.txt", "to=both.gz")[0] == 0
    status, _, complaint = said("export", "data=text", "data.path=one.txt", "to=both.gz")
    assert status == 2
    assert complaint == "attnlab: to=both.gz is there, with other content: name another file, or remove it\n"
    assert (tmp_path / "both.gz").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".both")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["shwo", "data=pydocs"], "corpus shwo: name one of show, export (nearest: show)"),
        (["show", "data=pydocs", "to=x"], "corpus export needs to=FILE, and corpus show takes none"),
        (["export", "data=pydocs"], "corpus export needs to=FILE"),
        (["export", "data=pydocs", "to=no/folder/x"], "to=no/folder/x: give a file in a folder that is"),
        (["show", "data=recall"], "there is no text to show: give data=pydocs, text, code, hub or frozen"),
        (["show", "data=text", "data.path=*.md"], "data.path=*.md: no file matches"),
        (["show", "data=text"], "data.path has no value"),
    ],
)
def test_what_cannot_be_done_is_one_line(said, line, complaint):
    status, _, err = said(*line)
    assert status == 2
    assert complaint in err
    assert err.count("\n") == 1
