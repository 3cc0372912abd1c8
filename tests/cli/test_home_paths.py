"""`~/` in a path is the home folder, wherever a user writes it; other special characters need quotes."""

from pathlib import Path

import pytest

from attnlab.cli.main import main
from attnlab.config import expand_home
from attnlab.sweep.plan import config_files


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    (folder / "book.txt").write_text("the cat sat on the mat. " * 99)
    return folder


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("paths.runs=~/runs", "paths.runs=HOME/runs"),
        ("paths.runs='~/runs'", "paths.runs='HOME/runs'"),
        ("data.path=~/a.txt,~/b.txt", "data.path=HOME/a.txt,HOME/b.txt"),
        ("hydra.searchpath=[~/conf,'~/more']", "hydra.searchpath=[HOME/conf,'HOME/more']"),
        ("heads=mha data.path=~/a.txt", "heads=mha data.path=HOME/a.txt"),
        ("--config-dir=~/conf", "--config-dir=HOME/conf"),
        ("~/mine.yaml", "HOME/mine.yaml"),
        ("~heads", "~heads"),  # Hydra deletes a key
        ("~hydra/launcher", "~hydra/launcher"),
        ("data.path=a~/b", "data.path=a~/b"),
        ("prompt=~/ is the home folder", "prompt=~/ is the home folder"),
        ("text=~/x", "text=~/x"),
    ],
)
def test_a_path_starts_with_the_home_folder(home, word, expanded):
    assert expand_home(word) == expanded.replace("HOME", str(home))


@pytest.mark.parametrize("path", ["~/book.txt", "'~/book.txt'"])
def test_a_command_reads_and_writes_below_the_home_folder(home, path, capsys):
    assert main(["corpus", "export", "data=text", f"data.path={path}", "to=~/book.gz"]) == 0
    assert (home / "book.gz").is_file()
    assert not Path("~").exists()
    assert main(["new", "mask", "banded", "--into=~/mine"]) == 0
    assert (home / "mine" / "banded.py").is_file()


def test_a_config_file_may_write_the_home_folder(home):
    file = home / "mine.yaml"
    file.write_text("paths: {runs: ~/runs}\narms: {a: [data.path=~/a.txt]}\nnull_value: ~\nnote: see ~/x\n")
    assert config_files.load_content(file) == {
        "paths": {"runs": f"{home}/runs"},
        "arms": {"a": [f"data.path={home}/a.txt"]},
        "null_value": None,
        "note": "see ~/x",
    }


@pytest.mark.parametrize("value", ["a=b.txt", "a&b.txt", "a;b.txt", "a#b.txt", "a!b.txt"])
def test_a_value_with_special_characters_is_quoted(home, value, refuse):
    Path(value).write_text("the cat sat on the mat. " * 99)
    words = ["corpus", "show", "data=text"]
    refuse([*words, f"data.path={value}"], f"quote the value, as in 'data.path=\"{value}\"'")
    assert main([*words, f"data.path='{value}'"]) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "seed=[0,1",
            "seed=[0,1: a bracket is not closed: to mean the characters themselves, quote the value",
        ),
        ("data.path=a (b).txt", """quote the value, as in 'data.path="a (b).txt"'"""),
        ("data.path=it's", """quote the value, as in 'data.path="it'"'"'s"'"""),
        ("heads=gqa size=S", "heads=gqa size=S: several overrides in one argument: remove the quotes"),
        ("+protocol=" + "[" * 99 + "]" * 99, "nested more than 40 levels deep"),
        (f"+protocol.{'a.' * 99}a=1", "nested more than 40 levels deep"),
        (f"heads={'x' * 300}", "a name of 305 characters is too long for a file"),
        (f"+experiment={'x' * 300}", "a name of 305 characters is too long for a file"),
    ],
)
def test_invalid_syntax_is_explained_by_how_to_quote_it(home, refuse, line, message):
    refuse(["plan", line], message)
