import json

import pytest
from filelock import FileLock

from attnlab.cli.commands import parse
from attnlab.cli.verbs import clean
from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.schema import RunSpec, Use


def run(*line, ask=None):
    return clean.main(parse("clean", line), ask or input)


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
        config, use = {"parent": parent}, Use(experiment=experiment)
        spec = RunSpec(id=name, config=config, identity={"source": source}, use=use)
        (folder / "spec.json").write_text(json.dumps(spec.plain()))
    (tmp_path / "reports" / "one").mkdir(parents=True)
    (tmp_path / "reports" / "one" / "report.json").write_text('{"runs": [{"id": "reported"}]}')
    with FileLock(tmp_path / "runs" / "running" / "lock"):
        yield tmp_path / "runs"


def test_only_what_nothing_refers_to_is_removed_and_only_after_a_yes(store, capsys):
    assert run(ask=lambda _: "") == 0
    assert len(list(store.iterdir())) == 6
    assert run(ask=lambda _: "y") == 0
    assert {path.name for path in store.iterdir()} == {"reported", "parent", "wanted", "running"}
    assert "removed 2 that nothing refers to" in capsys.readouterr().out
    assert run("--yes") == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_yes_needs_no_answer_and_no_terminal_is_a_no(store):
    def ends(_):
        raise EOFError

    run(ask=ends)
    assert len(list(store.iterdir())) == 6
    run("--yes", ask=ends)
    assert len(list(store.iterdir())) == 4


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--force", "clean does not know --force"),
        ("runs", "clean does not know 'runs'"),
        ("paths.run=here", "nearest: paths.runs"),
        ("paths.runs=", "paths.runs=: it must not be empty"),
        ("--yes=1", "clean: argument --yes"),
    ],
)
def test_an_unknown_word_removes_nothing(store, word, says):
    with pytest.raises(Refused, match=says):
        run(word)
    assert len(list(store.iterdir())) == 6
