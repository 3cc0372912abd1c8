"""`corpus`: description and export of a corpus."""

import pytest

from attnlab.cli.main import main


@pytest.fixture
def run_corpus(tmp_path, monkeypatch, capsys):
    """A function that runs `corpus` in a folder with two texts and returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("one text, and not so short\n" * 9)
    (tmp_path / "two.txt").write_text("another\n" * 9)

    def run_line(*line):
        status = main(["corpus", *line])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_line


def test_show_describes_a_corpus_without_tokenizing(run_corpus, tmp_path):
    status, out, _ = run_corpus("show", "data=text", "data.path=*.txt")
    assert status == 0
    assert "316 bytes" in out
    assert "files 2" in out
    assert "sources: one.txt, two.txt" in out
    assert not (tmp_path / ".cache" / "tokens").exists()


def test_show_describes_the_validation_text_and_export_refuses_it(run_corpus):
    line = ["data=text", "data.path=one.txt", "data.validation_path=two.txt"]
    status, out, _ = run_corpus("show", *line)
    assert status == 0
    assert "validation:\ntwo: 72 bytes" in out
    status, _, message = run_corpus("export", *line, "to=one.gz")
    assert status == 2
    assert "data.validation_path: export writes one text" in message


def test_export_keeps_content_and_overwrites_nothing(run_corpus, tmp_path):
    status, out, _ = run_corpus("export", "data=text", "data.path=*.txt", "to=both.gz")
    assert status == 0
    assert "data=frozen data.path=both.gz" in out
    assert run_corpus("show", "data=frozen", "data.path=both.gz")[1].splitlines()[:4] == out.splitlines()[:4]
    bytes_before = (tmp_path / "both.gz").read_bytes()
    assert run_corpus("export", "data=text", "data.path=*.txt", "to=both.gz")[0] == 0
    status, _, message = run_corpus("export", "data=text", "data.path=one.txt", "to=both.gz")
    assert status == 2
    assert (
        message
        == "attnlab: to=both.gz already exists with other content: choose another file, or remove it\n"
    )
    assert (tmp_path / "both.gz").read_bytes() == bytes_before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".both")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["shwo", "data=pydocs"], "corpus shwo: unknown action; use one of show, export (nearest: show)"),
        (["show", "data=pydocs", "to=x"], "to=FILE is required by corpus export and invalid for corpus show"),
        (["export", "data=pydocs"], "to=FILE is required by corpus export"),
        (["export", "data=pydocs", "to=no/folder/x"], "to=no/folder/x: its folder does not exist"),
        (["show", "data=recall"], "the config selects no corpus: set data=pydocs, text, code, hub or frozen"),
        (["show", "data=text", "data.path=*.md"], "data.path=*.md: no file matches"),
        (["show", "data=text"], "data.path has no value"),
        (["show", "data=pydocs", "data=code"], "data is set twice, data=pydocs and data=code: remove one\n"),
        (["show", "corpora=[code]"], "corpora=[code]: corpora= is only for sweeps"),
    ],
)
def test_invalid_line_is_one_line_with_exit_2(run_corpus, line, message):
    status, _, err = run_corpus(*line)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
