"""`corpus`: description and export of a corpus."""

import pytest

from attnlab.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with two texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("one text, and not so short\n" * 9)
    (tmp_path / "two.txt").write_text("another\n" * 9)
    return tmp_path


@pytest.fixture
def run_corpus(folder, capfd):
    """`run_corpus(line)`: stdout of a valid line."""

    def call(line):
        assert main(["corpus", *line.split()]) == 0
        return capfd.readouterr().out

    return call


def test_show_describes_a_corpus_without_tokenizing(run_corpus, folder):
    out = run_corpus("show data=text data.path=*.txt")
    assert [text in out for text in ("316 bytes", "files 2", "sources: one.txt, two.txt")] == [True] * 3
    assert not (folder / ".cache" / "tokens").exists()


def test_show_describes_the_validation_text_and_export_refuses_it(run_corpus, refuse):
    words = "data=text data.path=one.txt data.validation_path=two.txt"
    assert "validation:\ntwo: 72 bytes" in run_corpus(f"show {words}")
    refuse(f"corpus export {words} to=one.gz", "data.validation_path: export writes one text")


def test_export_keeps_content_and_overwrites_nothing(run_corpus, refuse, folder):
    line = "export data=text data.path=*.txt to=both.gz"
    out = run_corpus(line)
    assert "data=frozen data.path=both.gz" in out
    assert run_corpus("show data=frozen data.path=both.gz").splitlines()[:4] == out.splitlines()[:4]
    bytes_before = (folder / "both.gz").read_bytes()
    run_corpus(line)
    message = "to=both.gz already exists with other content: choose another file, or remove it\n"
    refuse("corpus export data=text data.path=one.txt to=both.gz", message, prints=True)
    assert (folder / "both.gz").read_bytes() == bytes_before
    assert not [path for path in folder.iterdir() if path.name.startswith(".both")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("shwo data=pydocs", "corpus shwo: unknown action; use one of show, export (nearest: show)"),
        ("show data=pydocs to=x", "to=FILE is required by corpus export and invalid for corpus show"),
        ("export data=pydocs", "to=FILE is required by corpus export"),
        ("export data=pydocs to=no/folder/x", "to=no/folder/x: its folder does not exist"),
        ("show data=recall", "the config selects no corpus: set data=pydocs, text, code, hub or frozen"),
        ("show data=text 'data.path=*.md'", "data.path=*.md: no file matches"),
        ("show data=text", "data.path has no value"),
        ("show data=pydocs data=code", "data is set twice, data=pydocs and data=code: remove one\n"),
        ("show 'corpora=[code]'", "corpora=[code]: corpora= is only for sweeps"),
    ],
)
def test_invalid_line_is_one_line_with_exit_2(folder, refuse, line, message):
    refuse(f"corpus {line}", message, prints="no/folder" in line)
