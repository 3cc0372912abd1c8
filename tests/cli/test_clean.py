"""`clean` removes what carries this store's marks and nothing refers to: all else stays."""

import json
import multiprocessing
import os
import shutil
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
    (root / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match=r"holds notes\.txt"):
        run("--yes")
    (root / "notes.txt").unlink()
    run("--yes")
    assert here(root) == set()
    assert (root / "timing").is_dir()


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


def test_nested_reports_and_several_folders_of_them_keep_their_runs(root, tmp_path):
    ids = [stored(root, str(number)) for number in range(5)]
    report(Path("reports/2024/spring/one"), ids[0])
    report(Path("old/two"), ids[1])
    report(Path("linked/three"), ids[2])
    Path("reports/link").symlink_to(tmp_path / "linked")
    Path("reports/link/again").symlink_to(tmp_path / "linked")  # a circle
    used(root, "elsewhere", [], Path("third"), published=True)
    report(Path("third/other/four"), ids[3])
    run("--yes", "paths.reports=reports", "paths.reports=old")
    assert here(root) == set(ids[:4])


@pytest.mark.parametrize("text", ["", '{"schema": 3, "runs": [{"id": "', '{"runs": 5}', "\x00", "[" * 99999])
def test_an_unreadable_report_keeps_all_runs_that_it_could_list(root, capsys, text):
    ids = {stored(root, str(number)) for number in range(2)}
    report(Path("reports/deep/broken"), text=text)
    run("--yes")
    assert here(root) == ids
    path = Path("reports/deep/broken/report.json")
    assert f"kept: 2 since {path} cannot be read as a report" in capsys.readouterr().out


def test_an_unreadable_report_of_a_known_command_keeps_that_commands_runs(root, capsys):
    theirs, cited, other = (stored(root, name) for name in ("theirs", "cited", "other"))
    used(root, "mine", [theirs], published=True)
    report(Path("reports/mine"), text=f'{{"runs": [{{"id": "{cited}"')
    run("--yes")
    assert here(root) == {theirs, cited}
    assert "of mine: reports/mine/report.json cannot be read" in capsys.readouterr().out
    assert other not in here(root)


def test_a_report_json_of_another_program_keeps_nothing(root):
    stored(root, "single")
    report(Path("reports/coverage"), text='{"totals": 3}')
    run("--yes")
    assert here(root) == set()


def test_a_command_that_was_killed_before_its_report_keeps_its_runs_until_it_is_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name, "0" * 16])
    run("--yes")
    assert here(root) == {name}
    assert "kept: 1 of mine, which was not finished (--forget mine)" in capsys.readouterr().out
    run("--yes", "--forget", "mine")
    assert here(root) == set()
    assert not list((root / "users").iterdir())


def test_a_command_that_runs_is_not_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name], alive=True)
    run("--yes", "--forget", "mine")
    assert here(root) == {name}
    assert "it is not forgotten" in capsys.readouterr().out


def test_what_was_forgotten_stays_so_though_a_report_keeps_its_runs_for_now(root):
    name = stored(root, "one", "mine", fingerprint.sources(["attnlab.errors"]))
    used(root, "mine", [name])
    report(Path("reports/other"), name)
    run("--yes", "--forget", "mine")
    assert here(root) == {name}
    shutil.rmtree("reports/other")
    run("--yes")
    assert here(root) == set()


@pytest.mark.parametrize("gone", ["reports/mine", "reports"])
def test_a_published_report_keeps_its_commands_runs_until_it_is_deleted(root, gone):
    listed, tuning = stored(root, "listed", "mine"), stored(root, "of its grid", "mine")
    used(root, "mine", [listed, tuning], published=True)
    report(Path("reports/mine"), listed)
    run("--yes")
    assert here(root) == {listed, tuning}
    shutil.rmtree(gone)
    run("--yes")
    assert here(root) == set()
    assert not list((root / "users").iterdir())


def test_a_report_that_shows_other_runs_now_keeps_those_of_before_no_more(root):
    old, new = stored(root, "old", "mine"), stored(root, "new", "mine")
    used(root, "mine", [old], published=True)
    used(root, "mine", [new], published=True)
    report(Path("reports/mine"), new)
    run("--yes")
    assert here(root) == {new}


def test_reports_that_cannot_be_seen_from_here_keep_their_runs(root):
    name = stored(root, "one", "mine")
    used(root, "mine", [name], Path("/not/mounted/reports"), published=True)
    run("--yes")
    assert here(root) == {name}


def test_a_store_of_an_older_version_keeps_the_runs_of_experiments_that_nobody_remembers(root):
    today = fingerprint.sources(["attnlab.errors"])
    name = stored(root, "one", "of_my_own", today)
    unseen = stored(root, "two", "of_my_own", {**today, "a_module_of_mine": "0"})
    run("--yes")
    assert here(root) == {name, unseen}
    run("--yes", "--forget", "of_my_own")
    assert here(root) == set()


def test_what_cannot_be_read_of_the_stores_memory_keeps_all(root, capsys):
    name = stored(root, "single")
    (root / "users").mkdir()
    (root / "users" / "a.json").write_text("{")
    run("--yes")
    assert here(root) == {name}
    assert "kept: 1 since runs/users/a.json cannot be read" in capsys.readouterr().out
