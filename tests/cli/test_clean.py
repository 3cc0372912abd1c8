"""`clean` removes only old runs without references."""

import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from filelock import FileLock
from processes import change_identity

from attnlab.cli.commands import parse_verb_line
from attnlab.cli.main import main
from attnlab.cli.verbs import clean
from attnlab.errors import InvalidConfig
from attnlab.store import file_names, fingerprint
from attnlab.store.guards import ownership, run_references
from attnlab.store.run_schema import RunConfig, Use


def run_clean(*line, ask=None):
    return clean.main(parse_verb_line("clean", line), ask or input)


def store_run(root, name, experiment=None, parent=None, days=100):
    """Store a run of the given age under the id of its identity."""
    config = {"parent": parent, "note": name}
    identity = {"config": config, "source": {}}
    spec = RunConfig(
        id=fingerprint.compute_digest(identity),
        config=config,
        identity=identity,
        use=Use(experiment=experiment),
    )
    folder = root / spec.id
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()))
    timestamp = time.time() - 86400 * days
    os.utime(folder / "spec.json", (timestamp, timestamp))
    return spec.id


def reference_runs(root, experiment, ids, reports=Path("reports"), *, published=False, running=False):
    """Record a command that references runs; its process is this one or has ended."""
    reference = run_references.create_reference(
        experiment, experiment, f"+experiment={experiment}", reports, ids
    )
    if not running:
        reference = reference.model_copy(update={"process": change_identity(start="1")})
    [path] = run_references.write_references(root, [reference])
    if published:
        run_references.mark_published(path)


def write_report(folder, *ids):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps({"schema": 3, "runs": [{"id": name} for name in ids]}))


def list_run_ids(root):
    return {path.name for path in root.iterdir() if file_names.RUN_ID_PATTERN.fullmatch(path.name)}


def read_tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty run directory and an empty reports folder in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("reports").mkdir()
    ownership.mark_store(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def store(root):
    """Five runs: two unreferenced, one in a report, its parent, and a locked one."""
    ids = {name: store_run(root, name) for name in ("single", "other", "parent", "running")}
    ids["reported"] = store_run(root, "reported", parent=ids["parent"])
    write_report(Path("reports/one"), ids["reported"])
    with FileLock(root / ids["running"] / "lock"):
        yield root, ids


def test_candidates_and_reasons_to_keep_are_listed_before_confirmation(store, capsys):
    root, ids = store
    (root / ids["single"] / "model.safetensors").write_bytes(b"x" * 2_000_000)
    os.utime(root / ids["single"] / "model.safetensors", (0, 0))
    questions = []
    assert run_clean(ask=lambda question: questions.append(question) or "") == 0
    out = capsys.readouterr().out
    assert f"to remove: runs/{ids['single']}  - run  2.0 MB\n" in out
    assert "kept: 1 runs locked by a process, 0.0 MB\nkept: 1 runs listed in a report, 0.0 MB\n" in out
    assert "kept: 1 runs that are parents of kept runs, 0.0 MB\n" in out
    assert questions == ["remove 2 unreferenced runs, 2.0 MB? [y/N] "]
    assert out.endswith("nothing removed\n")
    assert run_clean(ask=raise_end_of_file) == 0
    assert len(list_run_ids(root)) == 5
    assert run_clean(ask=lambda _: "y") == 0
    assert list_run_ids(root) == {ids[name] for name in ("reported", "parent", "running")}
    assert "removed 2 unreferenced runs, 2.0 MB\n" in capsys.readouterr().out
    assert run_clean("--yes", ask=raise_end_of_file) == 0
    assert "nothing to remove" in capsys.readouterr().out


def raise_end_of_file(_):
    """Answer as `input` does without a terminal."""
    raise EOFError


@pytest.mark.parametrize(("words", "n_kept"), [((), 2), (("days=5",), 1), (("days=0",), 0)])
def test_run_is_kept_until_it_reaches_the_age_limit(root, capsys, words, n_kept):
    store_run(root, "of the month", days=29)
    store_run(root, "of today", days=0)
    store_run(root, "old", days=31)
    run_clean("--yes", *words)
    assert len(list_run_ids(root)) == n_kept
    assert ("kept: 2 runs newer than 30 days" in capsys.readouterr().out) == (not words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--force"], "clean: unknown flag --force"),
        (["runs"], "clean: unknown word 'runs'"),
        (["paths.run=here"], "nearest: paths.runs"),
        (["paths.runs="], "paths.runs=: must not be empty"),
        (["--yes=1"], "clean: argument --yes"),
        (["--forget", "ning", "--yes"], "--forget ning: no such experiment in runs"),
        (["paths.reports=reprots", "--yes"], "paths.reports=reprots: folder not found"),
        (["paths.runs=a", "paths.runs=runs"], "paths.runs= is given twice"),
        (["days=-1", "--yes"], "days=-1: must be an integer of at least 0"),
        (["days=soon", "--yes"], "days=soon: must be an integer of at least 0"),
        (
            ["paths.runs=reports", "--yes"],
            "paths.runs=reports is not a folder of attnlab runs, because it has no .attnlab",
        ),
        (["paths.runs=gone", "--yes"], "paths.runs=gone: folder not found"),
        (["paths.runs=file", "--yes"], "paths.runs=file: folder not found"),
    ],
)
def test_bad_input_is_one_line_with_exit_2_and_removes_nothing(store, capsys, words, message):
    Path("file").touch()
    files_before = read_tree(store[0])
    assert main(["clean", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert read_tree(store[0]) == files_before


def test_foreign_files_folders_and_links_survive_and_are_named(root, tmp_path, capsys):
    """Covers training with paths.runs=. inside a project."""
    foreign = {"id": "fedcba9876543210", "schema": 2, "config": {}, "identity": {}}
    for name in ("src", "fedcba9876543210"):
        (root / name).mkdir()
        (root / name / "spec.json").write_text(json.dumps(foreign))
    (root / "notes.txt").write_text("mine")
    linked = store_run(tmp_path / "another", "linked")
    (root / linked).symlink_to(tmp_path / "another" / linked)
    files_before = read_tree(root)
    store_run(root, "single")
    run_clean("--yes")
    assert read_tree(root) == files_before
    assert (tmp_path / "another" / linked / "spec.json").exists()
    names = ", ".join(sorted([linked, "fedcba9876543210", "notes.txt", "src"]))
    assert f"ignored: 4 entries that no run wrote: {names}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change", [{"id": "0123456789abcdef"}, {"identity": {}}, {"config": 3}, {"schema": 1}, {"surplus": 1}]
)
def test_run_with_an_invalid_identity_is_kept(root, change):
    name = store_run(root, "single")
    spec = root / name / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | change))
    os.utime(spec, (0, 0))
    run_clean("--yes")
    assert list_run_ids(root) == {name}


def test_only_files_written_by_a_run_are_removed_from_its_folder(root, tmp_path, capsys):
    plain, noted = store_run(root, "plain"), store_run(root, "noted")
    (tmp_path / "precious").write_text("mine")
    for folder in (root / plain, root / noted):
        for name in ownership.RUN_FILE_NAMES:
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
    run_clean("--yes", "days=0")
    assert list_run_ids(root) == {noted}
    assert read_tree(root / noted) == {Path("notes.txt"): b"mine"}
    assert (root / noted / "wandb" / "mine").is_dir()
    assert (root / noted / "away").is_symlink()
    assert (
        f"{noted} kept because of files that no run wrote: away, notes.txt, wandb" in capsys.readouterr().out
    )
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("n_unlinked", range(6))
def test_interrupt_leaves_whole_runs_and_the_next_command_finishes(root, monkeypatch, n_unlinked):
    ids = [store_run(root, str(number)) for number in range(2)]
    for name in ids:
        (root / name / "run.json").touch()
        (root / name / "notes.txt").write_text("mine")
    unlink, unlinked = Path.unlink, []

    def interrupt_unlink(self, missing_ok=False):
        if self.name in ownership.RUN_FILE_NAMES:
            unlinked.append(self)
        if len(unlinked) > n_unlinked:
            raise KeyboardInterrupt
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", interrupt_unlink)
    with pytest.raises(KeyboardInterrupt):
        run_clean("--yes", "days=0")
    monkeypatch.setattr(Path, "unlink", unlink)
    for name in list_run_ids(root):
        assert set(os.listdir(root / name)) - {"lock"} in (
            {"run.json", "spec.json", "notes.txt"},
            {"notes.txt"},
        )
    run_clean("--yes", "days=0")
    assert list_run_ids(root) == set(ids)
    assert all(os.listdir(root / name) == ["notes.txt"] for name in ids)
    assert not (root / ownership.REMOVAL_FOLDER).exists()


def hold_lock(path, lock_held, release_lock):
    with FileLock(path):
        lock_held.set()
        release_lock.wait(60)


def test_run_locked_during_the_question_is_kept(root, capsys):
    """Locks are acquired again before removal."""
    name = store_run(root, "single")
    fork = multiprocessing.get_context("spawn")
    lock_held, release_lock = fork.Event(), fork.Event()
    process = fork.Process(target=hold_lock, args=(root / name / "lock", lock_held, release_lock))

    def ask(_):
        process.start()
        lock_held.wait(30)
        return "y"

    assert run_clean(ask=ask) == 0
    release_lock.set()
    process.join()
    assert list_run_ids(root) == {name}
    assert "kept: now locked by a process" in capsys.readouterr().out


def test_failed_removal_is_named_with_exit_1(root, monkeypatch, capsys):
    store_run(root, "single")

    def deny_unlink(self, missing_ok=False):
        raise PermissionError(1, "not permitted", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", deny_unlink)
        assert run_clean("--yes") == 1
    assert "was not removed: [Errno 1] not permitted" in capsys.readouterr().out


def test_reports_in_nested_and_linked_folders_keep_their_runs(root, tmp_path):
    ids = [store_run(root, str(number)) for number in range(5)]
    write_report(Path("reports/2024/spring/one"), ids[0])
    write_report(Path("old/two"), ids[1])
    write_report(Path("linked/three"), ids[2])
    Path("reports/link").symlink_to(tmp_path / "linked")
    Path("reports/link/again").symlink_to(tmp_path / "linked")  # a cycle
    reference_runs(root, "elsewhere", [], Path("third"), published=True)
    write_report(Path("third/other/four"), ids[3])
    run_clean("--yes", "paths.reports=reports", "paths.reports=old")
    assert list_run_ids(root) == set(ids[:4])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        *[
            ("reports/deep/broken/report.json", text)
            for text in ("", '{"schema": 3, "runs": [{"id": "', "\x00", "[" * 99999)
        ],
        ("runs/users/a.json", "{"),
        ("reports/coverage/report.json", '{"totals": 3}'),  # of another program
    ],
)
def test_only_an_unreadable_report_or_reference_keeps_all_runs(root, capsys, path, text):
    ids = {store_run(root, str(number)) for number in range(2)}
    Path(path).parent.mkdir(parents=True)
    Path(path).write_text(text)
    run_clean("--yes")
    is_broken = "coverage" not in path
    assert list_run_ids(root) == (ids if is_broken else set())
    message = f"kept: 2 runs because {path} cannot be read"
    assert (message in capsys.readouterr().out) == is_broken


def test_unfinished_command_keeps_its_runs_until_forgotten(root, capsys):
    name = store_run(root, "one")
    run_clean(ask=lambda _: reference_runs(root, "mine", [name], running=True) or "y")
    assert f"{name} kept: now of mine, which has not finished (--forget mine)" in capsys.readouterr().out
    running = r"--forget mine: its command is running \(process \d+\): stop it first, or"
    with pytest.raises(InvalidConfig, match=running):
        run_clean("--yes", "--forget", "mine")
    reference_runs(root, "mine", [name])
    write_report(Path("reports/other"), name)
    run_clean("--yes", "--forget", "mine")
    assert "released the runs that only mine referenced" in capsys.readouterr().out
    assert list_run_ids(root) == {name}, "a report lists it"
    shutil.rmtree("reports/other")
    run_clean("--yes")
    assert list_run_ids(root) == set()
    assert not list((root / "users").iterdir())


def test_published_report_keeps_its_commands_runs_until_deleted(root):
    listed, tuning = store_run(root, "listed", "mine"), store_run(root, "of its grid", "mine")
    replaced = store_run(root, "of an earlier report in its place", "mine")
    reference_runs(root, "mine", [replaced], published=True)
    reference_runs(root, "mine", [listed, tuning], published=True)
    write_report(Path("reports/mine"), listed)
    run_clean("--yes")
    assert list_run_ids(root) == {listed, tuning}
    shutil.rmtree("reports/mine")
    run_clean("--yes")
    assert list_run_ids(root) == set()
    assert not list((root / "users").iterdir())


def test_run_directory_moved_away_from_its_reports_keeps_its_runs(root, tmp_path, capsys):
    name = store_run(root, "one", "mine")
    reference_runs(root, "mine", [name], published=True)
    write_report(Path("reports/mine"), name)
    Path("there").mkdir()
    shutil.move(root, "there/runs")
    Path("reports").rename("unknown")
    run_clean("--yes", "paths.runs=there/runs")
    assert list_run_ids(Path("there/runs")) == {name}
    assert f"of mine, whose reports in {tmp_path}/reports are not accessible here" in capsys.readouterr().out


def test_runs_copied_without_references_are_kept_until_forgotten(root, capsys):
    name = store_run(root, "one", "mine")
    run_clean("--yes")
    assert list_run_ids(root) == {name}
    assert "of mine, whose report was not found (--forget mine)" in capsys.readouterr().out
    run_clean("--yes", "--forget", "mine")
    assert list_run_ids(root) == set()
