"""`clean` removes what carries this store's marks and nothing refers to: all else stays."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from filelock import FileLock

from attnlab.cli.commands import parse
from attnlab.cli.main import main
from attnlab.cli.verbs import clean
from attnlab.errors import Refused
from attnlab.store import fingerprint, lease
from attnlab.store.guards import marks, users
from attnlab.store.schema import RunSpec, Use


def run(*line, ask=None):
    return clean.main(parse("clean", line), ask or input)


def stored(root, name, experiment=None, source=None, parent=None):
    """A run in a store, under the id that its identity gives it."""
    config = {"parent": parent, "note": name}
    identity = {"config": config, "source": source or {}}
    spec = RunSpec(
        id=fingerprint.digest(identity), config=config, identity=identity, use=Use(experiment=experiment)
    )
    folder = root / spec.id
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.plain()))
    return spec.id


def used(root, experiment, ids, reports=Path("reports"), *, published=False, alive=False):
    """A command that said that it uses runs."""
    one = users.user(experiment, experiment, f"+experiment={experiment}", reports, ids)
    if not alive:
        one = one.model_copy(update={"host": "elsewhere"})
    [path] = users.begin(root, [one])
    if published:
        users.published(path)
    return path


def report(folder, *ids, text=None):
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"schema": 3, "runs": [{"id": name} for name in ids]})
    (folder / "report.json").write_text(content if text is None else text)


def here(root):
    return {path.name for path in root.iterdir() if marks.ID.fullmatch(path.name)}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty store of ours."""
    monkeypatch.chdir(tmp_path)
    marks.mark(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def store(root):
    """Six runs: reported, its parent, of an experiment, of one whose source has changed, single, running."""
    today = fingerprint.sources(["attnlab.model.transformer"])
    stale = {**today, "attnlab.model.transformer": "another"}
    ids = {"parent": stored(root, "parent")}
    ids["reported"] = stored(root, "reported", parent=ids["parent"])
    ids["wanted"] = stored(root, "wanted", "gqa_vs_mha", today)
    ids["stale"] = stored(root, "stale", "gqa_vs_mha", stale)
    ids["single"] = stored(root, "single", source=today)
    ids["running"] = stored(root, "running")
    report(Path("reports/one"), ids["reported"])
    with FileLock(root / ids["running"] / "lock"):
        yield root, ids


def test_only_what_nothing_refers_to_is_removed_and_only_after_a_yes(store, capsys):
    root, ids = store
    assert run(ask=lambda _: "") == 0
    assert len(here(root)) == 6
    assert run(ask=lambda _: "y") == 0
    assert here(root) == {ids[name] for name in ("reported", "parent", "wanted", "running")}
    out = capsys.readouterr().out
    assert "removed 2 that nothing refers to" in out
    assert "kept: 1 that a report lists\n" in out
    assert "kept: 1 of gqa_vs_mha, which the same command would find again\n" in out
    assert run("--yes") == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_yes_needs_no_answer_and_no_terminal_is_a_no(store):
    def ends(_):
        raise EOFError

    root, _ = store
    run(ask=ends)
    assert len(here(root)) == 6
    run("--yes", ask=ends)
    assert len(here(root)) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--force"], "clean does not know --force"),
        (["runs"], "clean does not know 'runs'"),
        (["paths.run=here"], "nearest: paths.runs"),
        (["paths.runs="], "paths.runs=: it must not be empty"),
        (["--yes=1"], "clean: argument --yes"),
        (["--forget", "gqa_vs_mhq", "--yes"], "--forget gqa_vs_mhq: nothing in runs is of that name"),
        (["paths.reports=reprots", "--yes"], "paths.reports=reprots: there is no such folder"),
        (["paths.runs=a", "paths.runs=runs"], "paths.runs= is given twice"),
    ],
)
def test_an_unknown_word_removes_nothing(store, words, says):
    with pytest.raises(Refused, match=says):
        run(*words)
    assert len(here(store[0])) == 6


@pytest.mark.parametrize("where", ["gone", "file"])
def test_a_missing_store_is_one_line_and_exit_2(tmp_path, monkeypatch, capsys, where):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert main(["clean", f"paths.runs={where}", "--yes"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"paths.runs={where}: there is no such folder" in said.err
    assert said.err.count("\n") == 1


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_foreign_project_stays_whatever_spec_json_lies_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("src", "api", "0123456789abcdef"):
        Path(name).mkdir()
        Path(name, "spec.json").write_text('{"openapi": "3.0"}')
        Path(name, "main.py").write_text("print()")
    stored(tmp_path, "a run that somebody has copied here")
    before = tree(tmp_path)
    assert main(["clean", "paths.runs=.", "--yes"]) == 2
    assert "is no store of attnlab's: it has no .attnlab, and holds api" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_in_a_store_that_is_a_project_too_only_runs_go(root, capsys):
    """Somebody has trained with paths.runs=. in a project."""
    theirs = {"id": "fedcba9876543210", "schema": 2, "config": {}, "identity": {}}
    for name in ("src", "fedcba9876543210"):
        (root / name).mkdir()
        (root / name / "spec.json").write_text(json.dumps(theirs))
    before = tree(root)
    stored(root, "single")
    assert run("--yes") == 0
    assert {name: text for name, text in tree(root).items() if name.name != marks.LOCK} == {
        name: text for name, text in before.items() if name.name != marks.LOCK
    }
    assert "left alone: 2" in capsys.readouterr().out


def test_a_store_of_an_older_version_has_nothing_but_runs_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    stored(root, "single")
    (root / "timing").mkdir()
    (root / marks.LOG).write_text("{}\n")
    (root / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match=r"holds notes\.txt"):
        run("--yes")
    (root / "notes.txt").unlink()
    run("--yes")
    assert here(root) == set()
    assert (root / "timing").is_dir()
    assert (root / marks.LOG).read_text() == "{}\n"


@pytest.mark.parametrize(
    "change", [{"id": "0123456789abcdef"}, {"identity": {}}, {"config": 3}, {"schema": 1}, {"surplus": 1}]
)
def test_a_run_whose_marks_do_not_hold_stays(root, change):
    name = stored(root, "single")
    spec = root / name / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | change))
    run("--yes")
    assert here(root) == {name}


def test_a_link_to_a_run_is_never_followed(root, tmp_path):
    name = stored(tmp_path / "another", "single")
    (root / name).symlink_to(tmp_path / "another" / name)
    run("--yes")
    assert (root / name).is_symlink()
    assert (tmp_path / "another" / name / "spec.json").exists()


def test_only_what_a_run_writes_is_removed_from_its_folder(root, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lease, "STALE", 0.1)  # of owner.json, which a lost host left behind
    plain, noted = stored(root, "plain"), stored(root, "noted")
    (tmp_path / "precious").write_text("mine")
    for folder in (root / plain, root / noted):
        for name in marks.WRITTEN:
            (folder / name).touch() if name != "spec.json" else None
        (folder / ".run.json.ab12_xyz.json").touch()
        wandb = folder / "wandb" / "offline-run-1-a" / "files"
        wandb.mkdir(parents=True)
        (wandb / "away").symlink_to(tmp_path)
        (folder / "wandb" / "latest-run").symlink_to("offline-run-1-a")
        (folder / "wandb" / "debug.log").touch()
    (root / noted / "notes.txt").write_text("mine")
    (root / noted / "wandb" / "mine").mkdir()
    run("--yes")
    assert here(root) == {noted}
    assert tree(root / noted) == {Path("notes.txt"): b"mine"}
    assert (root / noted / "wandb" / "mine").is_dir()
    assert f"{noted} stays for what no run has written: notes.txt, wandb" in capsys.readouterr().out
    assert (tmp_path / "precious").exists()


def hold(path, held, over):
    with FileLock(path):
        held.set()
        over.wait(60)


def test_a_run_that_a_process_takes_while_the_question_is_open_stays(root, capsys):
    """Locks are asked for again, and held, when it comes to removing."""
    name = stored(root, "single")
    fork = multiprocessing.get_context("spawn")
    held, over = fork.Event(), fork.Event()
    process = fork.Process(target=hold, args=(root / name / "lock", held, over))

    def ask(_):
        process.start()
        held.wait(30)
        return "y"

    run(ask=ask)
    over.set()
    process.join()
    assert here(root) == {name}
    assert "stays" in capsys.readouterr().out


def test_a_run_is_locked_while_it_is_removed(root, monkeypatch):
    name = stored(root, "single")
    seen = []

    def unlink(self, missing_ok=False):
        if self.name == "spec.json":
            with pytest.raises(TimeoutError), FileLock(root / name / "lock", timeout=0, is_singleton=False):
                pass
            seen.append(self)
        os.unlink(self)

    monkeypatch.setattr(Path, "unlink", unlink)
    run("--yes")
    assert len(seen) == 1


def test_a_sweep_that_begins_while_the_question_is_open_keeps_its_runs(root, capsys):
    name = stored(root, "single")

    def ask(_):
        used(root, "mine", [name])
        return "y"

    run(ask=ask)
    assert here(root) == {name}
    assert "stays" in capsys.readouterr().out
