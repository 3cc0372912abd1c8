import json

import pytest
from filelock import FileLock

from attnlab.cli.verbs import clean
from attnlab.errors import Refused
from attnlab.store import fingerprint


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Six runs: reported, its parent, of an experiment, of one whose source has changed, single, running."""
    monkeypatch.chdir(tmp_path)
    today = fingerprint.sources(["attnlab.model.transformer"])
    uses = {
        "reported": (None, {}, "parent"), "parent": (None, {}, None), "wanted": ("gqa_vs_mha", today, None),
        "stale": ("gqa_vs_mha", {**today, "attnlab.model.transformer": "another"}, None),
        "single": (None, today, None),
        "running": (None, {}, None),
    }  # fmt: skip
    for name, (experiment, source, parent) in uses.items():
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        spec = {
            "use": {"experiment": experiment},
            "semantic": {"source": source},
            "config": {"parent": parent},
        }
        (folder / "spec.json").write_text(json.dumps(spec))
    (tmp_path / "reports" / "one").mkdir(parents=True)
    (tmp_path / "reports" / "one" / "report.json").write_text('{"runs": [{"id": "reported"}]}')
    with FileLock(tmp_path / "runs" / "running" / "lock"):
        yield tmp_path / "runs"


def test_only_what_nothing_refers_to_is_removed_and_only_after_a_yes(store, capsys):
    assert clean.main([], ask=lambda _: "") == 0
    assert len(list(store.iterdir())) == 6
    assert clean.main([], ask=lambda _: "y") == 0
    assert {path.name for path in store.iterdir()} == {"reported", "parent", "wanted", "running"}
    assert "removed 2 that nothing refers to" in capsys.readouterr().out
    assert clean.main(["--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_yes_needs_no_answer_and_no_terminal_is_a_no(store):
    def ends(_):
        raise EOFError

    clean.main([], ask=ends)
    assert len(list(store.iterdir())) == 6
    clean.main(["--yes"], ask=ends)
    assert len(list(store.iterdir())) == 4


@pytest.mark.parametrize("word", ["--force", "runs", "paths.runs=", "--yes=1"])
def test_an_unknown_word_removes_nothing(store, word):
    with pytest.raises(Refused, match="clean takes"):
        clean.main([word])
    assert len(list(store.iterdir())) == 6
