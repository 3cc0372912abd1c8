"""`clean` removes only old runs without references."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import stored_runs
from filelock import FileLock
from processes import change_identity

from attnlab.cli.commands import parse_verb_line
from attnlab.cli.verbs import clean
from attnlab.errors import InvalidConfig
from attnlab.store import file_names
from attnlab.store.guards import ownership, run_references
from attnlab.store.run_schema import Use


@pytest.fixture
def run_clean(capfd):
    """`run_clean("--yes")`: run a line, whose question `ask` answers; return the status and stdout."""

    def call(line="--yes", ask=input):
        return clean.main(parse_verb_line("clean", line.split()), ask), capfd.readouterr().out

    return call


def store_run(root, name, experiment=None, parent=None, days=100):
    """Store a run of the given age under the id of its identity."""
    config = {"parent": parent, "note": name}
    spec = stored_runs.make_spec(config, use=Use(experiment=experiment))
    file = stored_runs.write_spec(root, spec) / "spec.json"
    timestamp = time.time() - 86400 * days
    os.utime(file, (timestamp, timestamp))
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


def test_candidates_and_reasons_to_keep_are_listed_before_confirmation(store, run_clean):
    root, ids = store
    (root / ids["single"] / "model.safetensors").write_bytes(b"x" * 2_000_000)
    os.utime(root / ids["single"] / "model.safetensors", (0, 0))

    def answer(text):
        def ask(question):
            assert question == "remove 2 unreferenced runs, 2.0 MB? [y/N] "
            if text is None:
                raise EOFError  # as without a terminal
            return text

        return ask

    for text in ("", None):
        status, out = run_clean("", answer(text))
        assert (status, len(list_run_ids(root))) == (0, 5)
        for line in (
            f"to remove: runs/{ids['single']}  - run  2.0 MB",
            "kept: 1 runs locked by a process, 0.0 MB",
            "kept: 1 runs listed in a report, 0.0 MB",
            "kept: 1 runs that are parents of kept runs, 0.0 MB",
            "nothing removed",
        ):
            assert f"{line}\n" in out
    assert "removed 2 unreferenced runs, 2.0 MB\n" in run_clean("", answer("y"))[1]
    assert list_run_ids(root) == {ids[name] for name in ("reported", "parent", "running")}
    status, out = run_clean("--yes", answer(None))
    assert (status, "nothing to remove" in out) == (0, True)


@pytest.mark.parametrize(("line", "n_kept"), [("", 2), ("days=5", 1), ("days=0", 0)])
def test_run_is_kept_until_it_reaches_the_age_limit(root, run_clean, line, n_kept):
    for days in (29, 0, 31):
        store_run(root, str(days), days=days)
    _, out = run_clean(f"--yes {line}")
    assert len(list_run_ids(root)) == n_kept
    assert ("kept: 2 runs newer than 30 days" in out) == (not line)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--force", "clean: unknown flag --force"),
        ("runs", "clean: unknown word 'runs'"),
        ("paths.run=here", "nearest: paths.runs"),
        ("paths.runs=", "paths.runs=: must not be empty"),
        ("--yes=1", "clean: argument --yes"),
        ("--forget ning --yes", "--forget ning: no such experiment in runs"),
        ("paths.reports=reprots --yes", "paths.reports=reprots: folder not found"),
        ("paths.runs=a paths.runs=runs", "paths.runs= is given twice"),
        ("days=-1 --yes", "days=-1: must be an integer of at least 0"),
        ("days=soon --yes", "days=soon: must be an integer of at least 0"),
        (
            "paths.runs=reports --yes",
            "paths.runs=reports is not a folder of attnlab runs, because it has no .attnlab",
        ),
        ("paths.runs=gone --yes", "paths.runs=gone: folder not found"),
        ("paths.runs=file --yes", "paths.runs=file: folder not found"),
    ],
)
def test_bad_input_is_one_line_with_exit_2_and_removes_nothing(store, refuse, words, message):
    Path("file").touch()
    files_before = read_tree(store[0])
    refuse(f"clean {words}", message)
    assert read_tree(store[0]) == files_before


def test_foreign_files_folders_and_links_survive_and_are_named(root, tmp_path, run_clean):
    """Covers training with paths.runs=. inside a project."""
    foreign = {"id": "fedcba9876543210", "schema": 2, "config": {}, "identity": {}}
    for name in ("src", "fedcba9876543210"):
        (root / name).mkdir()
        (root / name / "spec.json").write_text(json.dumps(foreign))
    (root / "notes.txt").write_text("mine")
    linked = store_run(tmp_path / "another", "linked")
    (root / linked).symlink_to(tmp_path / "another" / linked)
    files_before = read_tree(tmp_path)
    store_run(root, "single")
    _, out = run_clean()
    assert read_tree(tmp_path) == files_before
    names = ", ".join(sorted([linked, "fedcba9876543210", "notes.txt", "src"]))
    assert f"ignored: 4 entries that no run wrote: {names}\n" in out


@pytest.mark.parametrize(
    "change", [{"id": "0123456789abcdef"}, {"identity": {}}, {"config": 3}, {"schema": 1}, {"surplus": 1}]
)
def test_run_with_an_invalid_identity_is_kept(root, run_clean, change):
    name = store_run(root, "single")
    spec = root / name / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | change))
    os.utime(spec, (0, 0))
    run_clean()
    assert list_run_ids(root) == {name}


def test_only_files_written_by_a_run_are_removed_from_its_folder(root, tmp_path, run_clean):
    plain, noted = store_run(root, "plain"), store_run(root, "noted")
    (tmp_path / "precious").write_text("mine")
    for folder in (root / plain, root / noted):
        wandb = folder / "wandb" / "offline-run-1-a" / "files"
        wandb.mkdir(parents=True)
        (wandb / "away").symlink_to(tmp_path)
        (folder / "wandb" / "latest-run").symlink_to("offline-run-1-a")
        for name in {*ownership.RUN_FILE_NAMES, ".run.json.ab12_xyz.json", "wandb/debug.log"} - {
            "owner.json"
        }:
            (folder / name).touch()
    (root / noted / "notes.txt").write_text("mine")
    (root / noted / "away").symlink_to(tmp_path)
    (root / noted / "wandb" / "mine").mkdir()
    _, out = run_clean("--yes days=0")
    assert list_run_ids(root) == {noted}
    assert {path.relative_to(root / noted).as_posix() for path in (root / noted).rglob("*")} == {
        "notes.txt", "away", "wandb", "wandb/mine",
    }  # fmt: skip
    assert f"{noted} kept because of files that no run wrote: away, notes.txt, wandb" in out
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("n_unlinked", range(6))
def test_interrupt_leaves_whole_runs_and_the_next_command_finishes(root, monkeypatch, run_clean, n_unlinked):
    ids = {store_run(root, str(number)) for number in range(2)}
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
        run_clean("--yes days=0")
    monkeypatch.setattr(Path, "unlink", unlink)
    for name in list_run_ids(root):
        files = {*os.listdir(root / name)} - {"lock", "notes.txt"}
        assert files in ({"run.json", "spec.json"}, set())
    run_clean("--yes days=0")
    assert list_run_ids(root) == ids
    assert all(os.listdir(root / name) == ["notes.txt"] for name in ids)
    assert not (root / ownership.REMOVAL_FOLDER).exists()


def test_run_locked_during_the_question_is_kept(root, run_clean):
    """Locks are acquired again before removal."""
    name = store_run(root, "single")
    lock = FileLock(root / name / "lock")
    status, out = run_clean("", lambda _: lock.acquire() and "y")
    lock.release()
    assert (status, list_run_ids(root)) == (0, {name})
    assert "kept: now locked by a process" in out


def test_failed_removal_is_named_with_exit_1(root, monkeypatch, run_clean):
    store_run(root, "single")

    def deny_unlink(self, missing_ok=False):
        raise PermissionError(1, "not permitted", str(self))

    monkeypatch.setattr(Path, "unlink", deny_unlink)
    status, out = run_clean()
    assert (status, "was not removed: [Errno 1] not permitted" in out) == (1, True)


def test_reports_in_nested_and_linked_folders_keep_their_runs(root, tmp_path, run_clean):
    ids = [store_run(root, str(number)) for number in range(5)]
    folders = "reports/2024/spring/one", "old/two", "linked/three", "third/other/four"
    for number, folder in enumerate(folders):
        write_report(Path(folder), ids[number])
    Path("reports/link").symlink_to(tmp_path / "linked")
    Path("reports/link/again").symlink_to(tmp_path / "linked")  # a cycle
    reference_runs(root, "elsewhere", [], Path("third"), published=True)
    run_clean("--yes paths.reports=reports paths.reports=old")
    assert list_run_ids(root) == {*ids[:4]}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("reports/deep/broken/report.json", ""),
        ("reports/deep/broken/report.json", '{"schema": 3, "runs": [{"id": "'),
        ("reports/deep/broken/report.json", "\x00"),
        ("reports/deep/broken/report.json", "[" * 99999),
        ("runs/users/a.json", "{"),
        ("reports/coverage/report.json", '{"totals": 3}'),  # of another program
    ],
)
def test_only_an_unreadable_report_or_reference_keeps_all_runs(root, run_clean, path, text):
    ids = {store_run(root, str(number)) for number in range(2)}
    Path(path).parent.mkdir(parents=True)
    Path(path).write_text(text)
    _, out = run_clean()
    is_broken = "coverage" not in path
    assert list_run_ids(root) == (ids if is_broken else set())
    assert (f"kept: 2 runs because {path} cannot be read" in out) == is_broken


def test_unfinished_command_keeps_its_runs_until_forgotten(root, run_clean):
    name = store_run(root, "one")
    _, out = run_clean("", lambda _: reference_runs(root, "mine", [name], running=True) or "y")
    assert f"{name} kept: now of mine, which has not finished (--forget mine)" in out
    running = r"--forget mine: its command is running \(process \d+\): stop it first, or"
    with pytest.raises(InvalidConfig, match=running):
        run_clean("--yes --forget mine")
    reference_runs(root, "mine", [name])
    write_report(Path("reports/other"), name)
    assert "released the runs that only mine referenced" in run_clean("--yes --forget mine")[1]
    assert list_run_ids(root) == {name}, "a report lists it"
    shutil.rmtree("reports/other")
    run_clean()
    assert list_run_ids(root) == set()
    assert not list((root / "users").iterdir())


def test_published_report_keeps_its_commands_runs_until_deleted(root, run_clean):
    listed, tuning, replaced = (
        store_run(root, name, "mine") for name in ("listed", "of its grid", "replaced")
    )
    reference_runs(root, "mine", [replaced], published=True)  # by an earlier report in its place
    reference_runs(root, "mine", [listed, tuning], published=True)
    write_report(Path("reports/mine"), listed)
    run_clean()
    assert list_run_ids(root) == {listed, tuning}
    shutil.rmtree("reports/mine")
    run_clean()
    assert list_run_ids(root) == set()
    assert not list((root / "users").iterdir())


def test_run_directory_moved_away_from_its_reports_keeps_its_runs(root, tmp_path, run_clean):
    name = store_run(root, "one", "mine")
    reference_runs(root, "mine", [name], published=True)
    write_report(Path("reports/mine"), name)
    shutil.move(root, tmp_path / "there" / "runs")
    Path("reports").rename("unknown")
    _, out = run_clean("--yes paths.runs=there/runs")
    assert list_run_ids(Path("there/runs")) == {name}
    assert f"of mine, whose reports in {tmp_path}/reports are not accessible here" in out


def test_runs_copied_without_references_are_kept_until_forgotten(root, run_clean):
    name = store_run(root, "one", "mine")
    assert "of mine, whose report was not found (--forget mine)" in run_clean()[1]
    assert list_run_ids(root) == {name}
    run_clean("--yes --forget mine")
    assert list_run_ids(root) == set()
