"""`clean` removes old runs that nothing refers to: all else stays."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from attnlab.cli.commands import parse
from attnlab.cli.main import main
from attnlab.cli.verbs import clean
from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.guards import marks, users
from attnlab.store.schema import RunSpec, Use


def run(*line, ask=None):
    return clean.main(parse("clean", line), ask or input)


def stored(root, name, experiment=None, parent=None, days=100):
    """A run that is so many days old, under the id that its identity gives it."""
    config = {"parent": parent, "note": name}
    identity = {"config": config, "source": {}}
    spec = RunSpec(
        id=fingerprint.digest(identity), config=config, identity=identity, use=Use(experiment=experiment)
    )
    folder = root / spec.id
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.plain()))
    then = time.time() - 86400 * days
    os.utime(folder / "spec.json", (then, then))
    return spec.id


def used(root, experiment, ids, reports=Path("reports"), *, published=False, running=False):
    """A command that uses runs; this process where it is running, else one that has ended."""
    user = users.user(experiment, experiment, f"+experiment={experiment}", reports, ids)
    if not running:
        ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
        ended.wait()
        user = user.model_copy(update={"pid": ended.pid})
    [path] = users.begin(root, [user])
    if published:
        users.published(path)


def report(folder, *ids, text=None):
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"schema": 3, "runs": [{"id": name} for name in ids]})
    (folder / "report.json").write_text(content if text is None else text)


def here(root):
    return {path.name for path in root.iterdir() if marks.ID.fullmatch(path.name)}


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty store of ours, and an empty folder of reports."""
    monkeypatch.chdir(tmp_path)
    Path("reports").mkdir()
    marks.mark(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def store(root):
    """Five runs: two that nothing refers to, one in a report, its parent, and one that a process holds."""
    ids = {name: stored(root, name) for name in ("single", "other", "parent", "running")}
    ids["reported"] = stored(root, "reported", parent=ids["parent"])
    report(Path("reports/one"), ids["reported"])
    with FileLock(root / ids["running"] / "lock"):
        yield root, ids


def test_what_is_to_go_and_why_others_stay_is_listed_before_a_yes_removes_it(store, capsys):
    root, ids = store
    (root / ids["single"] / "model.safetensors").write_bytes(b"x" * 2_000_000)
    os.utime(root / ids["single"] / "model.safetensors", (0, 0))
    asked = []
    assert run(ask=lambda question: asked.append(question) or "") == 0
    out = capsys.readouterr().out
    assert f"to remove: runs/{ids['single']}  - run  2.0 MB\n" in out
    assert "kept: 1 that a process holds, 0.0 MB\nkept: 1 that a report lists, 0.0 MB\n" in out
    assert "kept: 1 that others of them started from, 0.0 MB\n" in out
    assert asked == ["remove 2 that nothing refers to, 2.0 MB? [y/N] "]
    assert out.endswith("nothing removed\n")
    assert len(here(root)) == 5
    assert run(ask=lambda _: "y") == 0
    assert here(root) == {ids[name] for name in ("reported", "parent", "running")}
    assert "removed 2 that nothing refers to, 2.0 MB\n" in capsys.readouterr().out
    assert run("--yes") == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_yes_needs_no_answer_and_no_terminal_is_a_no(store):
    def ends(_):
        raise EOFError

    root, _ = store
    run(ask=ends)
    assert len(here(root)) == 5
    run("--yes", ask=ends)
    assert len(here(root)) == 3


@pytest.mark.parametrize(("words", "stay"), [((), 2), (("days=5",), 1), (("days=0",), 0)])
def test_a_run_stays_until_it_is_so_many_days_old(root, capsys, words, stay):
    stored(root, "of the month", days=29)
    stored(root, "of today", days=0)
    stored(root, "old", days=31)
    run("--yes", *words)
    assert len(here(root)) == stay
    assert ("kept: 2 newer than 30 days" in capsys.readouterr().out) == (not words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--force"], "clean does not know --force"),
        (["runs"], "clean does not know 'runs'"),
        (["paths.run=here"], "nearest: paths.runs"),
        (["paths.runs="], "paths.runs=: it must not be empty"),
        (["--yes=1"], "clean: argument --yes"),
        (["--forget", "ning", "--yes"], "--forget ning: nothing in runs is of that name"),
        (["paths.reports=reprots", "--yes"], "paths.reports=reprots: there is no such folder"),
        (["paths.runs=a", "paths.runs=runs"], "paths.runs= is given twice"),
        (["days=-1", "--yes"], "days=-1: it must be a whole number of at least 0"),
        (["days=soon", "--yes"], "days=soon: it must be a whole number of at least 0"),
        (["paths.runs=reports", "--yes"], "paths.runs=reports is no store of attnlab's: it has no .attnlab"),
        (["paths.runs=gone", "--yes"], "paths.runs=gone: there is no such folder"),
        (["paths.runs=file", "--yes"], "paths.runs=file: there is no such folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_and_removes_nothing(store, capsys, words, says):
    Path("file").touch()
    before = tree(store[0])
    assert main(["clean", *words]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err
    assert tree(store[0]) == before


def test_files_folders_and_links_of_others_survive_in_a_store_and_are_named(root, tmp_path, capsys):
    """Also where somebody has trained with paths.runs=. in a project."""
    foreign = {"id": "fedcba9876543210", "schema": 2, "config": {}, "identity": {}}
    for name in ("src", "fedcba9876543210"):
        (root / name).mkdir()
        (root / name / "spec.json").write_text(json.dumps(foreign))
    (root / "notes.txt").write_text("mine")
    linked = stored(tmp_path / "another", "linked")
    (root / linked).symlink_to(tmp_path / "another" / linked)
    before = tree(root)
    stored(root, "single")
    run("--yes")
    assert tree(root) == before
    assert (tmp_path / "another" / linked / "spec.json").exists()
    names = ", ".join(sorted([linked, "fedcba9876543210", "notes.txt", "src"]))
    assert f"left alone: 4 that no run has written: {names}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change", [{"id": "0123456789abcdef"}, {"identity": {}}, {"config": 3}, {"schema": 1}, {"surplus": 1}]
)
def test_a_run_whose_marks_do_not_hold_stays(root, change):
    name = stored(root, "single")
    spec = root / name / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | change))
    os.utime(spec, (0, 0))
    run("--yes")
    assert here(root) == {name}


def test_only_what_a_run_writes_is_removed_from_its_folder(root, tmp_path, capsys):
    plain, noted = stored(root, "plain"), stored(root, "noted")
    (tmp_path / "precious").write_text("mine")
    for folder in (root / plain, root / noted):
        for name in marks.WRITTEN:
            (folder / name).touch() if name not in ("spec.json", "owner.json") else None
        (folder / ".run.json.ab12_xyz.json").touch()
        wandb = folder / "wandb" / "offline-run-1-a" / "files"
        wandb.mkdir(parents=True)
        (wandb / "away").symlink_to(tmp_path)
        (folder / "wandb" / "latest-run").symlink_to("offline-run-1-a")
        (folder / "wandb" / "debug.log").touch()
    (root / noted / "notes.txt").write_text("mine")
    (root / noted / "away").symlink_to(tmp_path)
    (root / noted / "wandb" / "mine").mkdir()
    run("--yes", "days=0")
    assert here(root) == {noted}
    assert tree(root / noted) == {Path("notes.txt"): b"mine"}
    assert (root / noted / "wandb" / "mine").is_dir()
    assert (root / noted / "away").is_symlink()
    assert f"{noted} stays for what no run has written: away, notes.txt, wandb" in capsys.readouterr().out
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("at", range(6))
def test_an_interrupt_leaves_whole_runs_only_and_the_next_command_does_the_rest(root, monkeypatch, at):
    ids = [stored(root, str(number)) for number in range(2)]
    for name in ids:
        (root / name / "run.json").touch()
        (root / name / "notes.txt").write_text("mine")
    unlink, done = Path.unlink, []

    def interrupted(self, missing_ok=False):
        if self.name in marks.WRITTEN:
            done.append(self)
        if len(done) > at:
            raise KeyboardInterrupt
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("--yes", "days=0")
    monkeypatch.setattr(Path, "unlink", unlink)
    for name in here(root):
        assert set(os.listdir(root / name)) - {"lock"} in (
            {"run.json", "spec.json", "notes.txt"},
            {"notes.txt"},
        )
    run("--yes", "days=0")
    assert here(root) == set(ids)
    assert all(os.listdir(root / name) == ["notes.txt"] for name in ids)
    assert not (root / marks.REMOVING).exists()


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

    assert run(ask=ask) == 0
    over.set()
    process.join()
    assert here(root) == {name}
    assert "stays" in capsys.readouterr().out


def test_a_command_that_begins_while_the_question_is_open_keeps_its_runs(root, capsys):
    name = stored(root, "single")
    run(ask=lambda _: used(root, "mine", [name]) or "y")
    assert here(root) == {name}
    assert f"{name} stays: kept of mine, which has not finished" in capsys.readouterr().out


def test_what_cannot_be_removed_is_named_and_the_status_is_1(root, monkeypatch, capsys):
    stored(root, "single")

    def refuse(self, missing_ok=False):
        raise PermissionError(1, "not permitted", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert run("--yes") == 1
    assert "could not be removed: [Errno 1] not permitted" in capsys.readouterr().out


def test_reports_in_nested_several_and_linked_folders_keep_their_runs(root, tmp_path):
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


@pytest.mark.parametrize("text", ["", '{"schema": 3, "runs": [{"id": "', "\x00", "[" * 99999])
def test_an_unreadable_report_keeps_all_runs(root, capsys, text):
    ids = {stored(root, str(number)) for number in range(2)}
    report(Path("reports/deep/broken"), text=text)
    run("--yes")
    assert here(root) == ids
    assert "kept: 2 since reports/deep/broken/report.json cannot be read" in capsys.readouterr().out


def test_an_unreadable_file_of_a_command_keeps_all_runs(root, capsys):
    name = stored(root, "single")
    (root / "users").mkdir()
    (root / "users" / "a.json").write_text("{")
    run("--yes")
    assert here(root) == {name}
    assert "kept: 1 since runs/users/a.json cannot be read" in capsys.readouterr().out


def test_a_report_json_of_another_program_keeps_nothing(root):
    stored(root, "single")
    report(Path("reports/coverage"), text='{"totals": 3}')
    run("--yes")
    assert here(root) == set()


def test_an_unfinished_command_keeps_its_runs_until_it_is_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name, "0" * 16])
    run("--yes")
    assert here(root) == {name}
    assert "kept: 1 of mine, which has not finished (--forget mine)" in capsys.readouterr().out
    run("--yes", "--forget", "mine")
    assert here(root) == set()
    assert not list((root / "users").iterdir())
    assert "forgotten: mine keeps no runs any more" in capsys.readouterr().out


def test_what_was_forgotten_stays_so_though_a_report_keeps_its_runs_for_now(root):
    name = stored(root, "one", "mine")
    used(root, "mine", [name])
    report(Path("reports/other"), name)
    run("--yes", "--forget", "mine")
    assert here(root) == {name}
    shutil.rmtree("reports/other")
    run("--yes")
    assert here(root) == set()


def test_a_published_report_keeps_its_commands_runs_until_it_is_deleted(root):
    listed, tuning = stored(root, "listed", "mine"), stored(root, "of its grid", "mine")
    used(root, "mine", [listed, tuning], published=True)
    report(Path("reports/mine"), listed)
    run("--yes")
    assert here(root) == {listed, tuning}
    shutil.rmtree("reports/mine")
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


def test_a_store_that_was_moved_away_from_its_reports_keeps_its_runs(root, tmp_path, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name], published=True)
    report(Path("reports/mine"), name)
    Path("there").mkdir()
    shutil.move(root, "there/runs")
    Path("reports").rename("unknown")
    run("--yes", "paths.runs=there/runs")
    assert here(Path("there/runs")) == {name}
    assert f"of mine, whose reports in {tmp_path}/reports cannot be seen from here" in capsys.readouterr().out


def test_runs_that_were_copied_without_the_memory_of_their_store_stay_until_they_are_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    run("--yes")
    assert here(root) == {name}
    assert "of mine, whose report is not known here (--forget mine)" in capsys.readouterr().out
    run("--yes", "--forget", "mine")
    assert here(root) == set()


def test_a_running_command_is_not_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name], running=True)
    with pytest.raises(Refused, match=r"--forget mine: its command runs \(process \d+\); stop it first or"):
        run("--yes", "--forget", "mine")
    assert here(root) == {name}
