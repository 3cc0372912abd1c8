"""Faults of disk, memory and lease: after each, the same command resumes from the run directories."""

import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack, suppress

import pytest
import torch
from disks import disk, fill  # noqa: F401 - fixtures
from processes import wait_until
from stored_runs import make_spec

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.lease import hold_lease
from attnlab.store.run_schema import RunResult
from attnlab.sweep.execute import process_control
from attnlab.sweep.execute.exit_records import record_exit
from attnlab.sweep.execute.submission import halve_batch, launch_with_retries
from attnlab.sweep.execute.worker import classify_exception


@pytest.mark.rare
def test_worker_that_cannot_write_its_failure_is_recorded_as_crashed(attnlab):
    status, out, err = attnlab("+experiment=ends", "arms=[train,full,hoard]")
    assert status == 1, err
    results = [json.loads(path.read_text()) for path in attnlab.folder.glob("runs/*/run.json")]
    ends = {record["config"]["model"]["act"]: record for record in results}
    assert {act: record["status"] for act, record in ends.items()} == {
        "train": "done",
        "full": "crashed",
        "hoard": "host_out_of_memory",
    }
    assert ends["full"]["failure"]["message"] == "the worker exited with status 1"
    assert not list(attnlab.folder.glob("runs/*/.*"))  # no partial file stays
    (attnlab.folder / "mended").touch()
    status, out, _ = attnlab("+experiment=ends", "arms=[train,full]", "sweep.retry_failed=true")
    assert (status, len(attnlab.load_attempts())) == (0, 6), out  # hoard is retried twice


def test_torch_allocation_failures_are_classified_as_out_of_memory():
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(2**60)
    assert classify_exception(cpu.value) == "host_out_of_memory"
    assert (
        classify_exception(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
        == "out_of_memory"
    )


@pytest.mark.parametrize("name", ["owner.json", "last.ckpt"])
def test_folder_in_place_of_a_run_file_is_rejected_before_training(name, tmp_path):
    run = make_spec({"seed": 3})
    (tmp_path / run.id / name).mkdir(parents=True)
    with pytest.raises(InvalidConfig, match=f"{name}: a folder in place of a file .*: move it away"):
        launch_with_retries([run], tmp_path, {}, None, {})


RUN = make_spec({"seed": 3, "data": {"batch_size": 8}})


class _RetryOfAnotherWorker:
    """A launcher; while it first trains, another worker retries the run, which it later waits for."""

    def __init__(self, root):
        self.folder, self.calls, self.lease = root / RUN.id, 0, ExitStack()

    def train(self, folders, settings):
        assert folders == [self.folder]
        self.calls += 1
        if self.calls == 1:
            self.lease.enter_context(hold_lease(self.folder))
            return
        self.lease.close()
        result = RunResult(id=RUN.id, status="done", seed=3, config=RUN.config, metrics={"val/loss": 1.0})
        run_directories.write_run_result(self.folder, result)


def test_run_that_another_worker_retries_is_waited_for(tmp_path):
    launcher = _RetryOfAnotherWorker(tmp_path)
    assert launch_with_retries([RUN], tmp_path, {}, launcher, {}) == 0
    assert launcher.calls == 2


class _KilledWorkers:
    """A launcher of which a signal ends every worker."""

    def __init__(self, number):
        self.number, self.calls = number, 0

    def train(self, folders, settings):
        self.calls += 1
        for folder in folders:
            (folder / "run.json").unlink(missing_ok=True)
            record_exit(folder, -self.number, False, 1.0)


@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        (signal.SIGSEGV, "crashed", "signal 11 (SIGSEGV) killed the worker process, after 2 retries"),
        (signal.SIGTERM, "killed", "signal 15 (SIGTERM) killed the worker process"),
    ],
)
def test_native_crash_is_that_of_the_run_after_two_retries(tmp_path, number, status, message):
    launcher = _KilledWorkers(number)
    launch_with_retries([RUN], tmp_path, {}, launcher, {})
    result = run_directories.load_run_result(tmp_path / RUN.id)
    assert (launcher.calls, result.status, result.failure.message) == (3, status, message)


def test_two_workers_halve_a_batch_once_and_leave_it_to_the_one_that_trains(tmp_path):
    run_directories.write_run_config(tmp_path, RUN)
    folder = tmp_path / RUN.id
    for n_parts in (2, 4, 8):
        run_directories.write_failure(folder, "out_of_memory", "no room", 1.0)
        first, second = halve_batch(RUN, tmp_path), halve_batch(RUN, tmp_path)
        assert first == second == run_directories.load_run_config(folder)
        assert (first.use.split, first.use.retried_failure) == (
            n_parts,
            run_directories.load_run_result(folder).failure_digest,
        )
    with hold_lease(folder):
        assert halve_batch(RUN, tmp_path) is None
    run_directories.write_failure(folder, "out_of_memory", "no room", 1.0)
    assert halve_batch(RUN, tmp_path) is None, "eight examples have no sixteenth"


class _ConvertingLauncher:
    """Gets a signal inside a library that turns its exception into another one, as pydantic does."""

    def __init__(self, number):
        self.number = number

    def launch(self, jobs, initial_job_idx):
        try:
            os.kill(os.getpid(), self.number)
            time.sleep(10)
        except BaseException as error:
            raise ValueError(repr(error)) from None


@pytest.fixture
def default_sigint():
    """The handler of an interactive Python; a process in the background of a shell ignores SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize(
    ("number", "exception"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, process_control.SigtermExit)],
)
def test_a_signal_that_a_library_turned_into_an_error_still_interrupts(number, exception, tmp_path):
    run = make_spec({"seed": 3})
    with process_control.raise_on_signals():
        with pytest.raises(exception):
            launch_with_retries([run], tmp_path, {}, _ConvertingLauncher(number), {})
        with pytest.raises(ValueError, match="an error of its own"):
            raise ValueError("an error of its own")
    with pytest.raises(exception), process_control.raise_on_signals():
        _ConvertingLauncher(number).launch([], 0)
    with process_control.raise_on_signals():
        with pytest.raises(ValueError, match=r"SigtermExit|KeyboardInterrupt"):
            _ConvertingLauncher(number).launch([], 0)
        process_control.mark_signal_handled()
        process_control.reraise_signal(ValueError("a later error"))  # does nothing


@pytest.fixture
def make_read_only():
    """`make_read_only(folder)`, also for root; undone after the test."""
    mounted = []

    def make(folder):
        folder.chmod(0o555)
        if os.access(folder, os.W_OK):  # root ignores permissions: remount
            for options in (["--bind"], ["-o", "remount,bind,ro"]):
                if subprocess.run(
                    ["mount", *options, str(folder), str(folder)], capture_output=True
                ).returncode:
                    pytest.skip("root, and no right to mount")
                mounted.append(folder)

    yield make
    with suppress(IndexError):
        subprocess.run(["umount", str(mounted[0])], check=True)


@pytest.mark.rare
def test_read_only_runs_folder_is_rejected_for_training_but_readable(attnlab, make_read_only):
    line = ("+experiment=heads", "arms=[two,one]", "claims=[]", "match=none")
    assert attnlab(*line, "seed=0")[0] == 0
    make_read_only(attnlab.folder / "runs")
    status, _, err = attnlab(*line)
    assert (status, len(attnlab.load_attempts())) == (2, 2)
    assert err.startswith("attnlab: paths.runs=runs is not writable (")
    assert err.count("\n") == 1
    status, out, err = attnlab(*line, "seed=0", "++sweep.show=status")
    assert status == 0, err
    assert out.count("done") >= 2


@pytest.mark.rare
def test_worker_that_lost_its_lease_writes_nothing_and_its_command_waits_for_the_new_owner(attnlab):
    process = attnlab.start("model.act=slow")
    wait_until(attnlab.load_attempts)
    worker = int(attnlab.load_attempts()[0][2])
    os.kill(worker, signal.SIGSTOP)
    [folder] = (path.parent for path in (attnlab.folder / "runs").glob("*/spec.json"))
    other = {"host": "elsewhere", "pid": 17, "time": time.time(), "token": "theirs"}
    (folder / "owner.json").write_text(json.dumps(other))
    os.kill(worker, signal.SIGCONT)
    line = f"{folder.name}: taken over by elsewhere, pid 17"
    wait_until(lambda: line in (folder / "log.txt").read_text().splitlines())
    time.sleep(1)
    assert not (folder / "run.json").exists()
    assert json.loads((folder / "owner.json").read_text()) == other
    assert process.poll() is None
    (folder / "owner.json").unlink()  # the other host was stopped
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f"taken over by elsewhere, pid 17  runs/{folder.name}" in out
    assert len(attnlab.load_attempts()) == 2


@pytest.mark.rare
def test_full_disk_is_recorded_and_the_same_command_resumes(attnlab, disk):  # noqa: F811
    line = ("model.act=fill", "seed=0,1", "sweep.slots=1", f"paths.runs={disk / 'runs'}")
    status, _, err = attnlab(*line)
    assert status == 1, err
    records = [json.loads(path.read_text()) for path in disk.glob("runs/*/run.json")]
    messages = {
        f"no space left on device: {disk / 'runs' / record['id'] / 'last.ckpt'}" for record in records
    }
    assert {record["failure"]["message"] for record in records} == messages
    assert {record["status"] for record in records} == {"killed"}
    assert len(records) == 2  # the sweep went on to the second run
    assert not list(disk.glob("runs/*/.*"))
    assert not list(disk.glob("runs/*/last.ckpt"))
    (attnlab.folder / "mended").touch()
    assert attnlab(*line)[0] == 0


@pytest.mark.rare
def test_unrecordable_failure_on_a_full_disk_is_one_line(attnlab, disk, fill):  # noqa: F811
    line = ("model.act=sleep", "seed=0", "sweep.slots=1", f"paths.runs={disk / 'runs'}")
    process = attnlab.start(*line)
    wait_until(attnlab.load_attempts)
    balloon = fill(0)
    os.kill(int(attnlab.load_attempts()[0][2]), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1, err
    assert "the failure was not recorded: no space left on device: " in err
    assert not list(disk.glob("runs/*/run.json"))
    status, _, err = attnlab("model.act=train", "seed=5", f"paths.runs={disk / 'runs'}")
    assert (status, err.count("\n")) == (1, 1), err
    assert err.startswith("attnlab: no space left on device: ")
    balloon.unlink()
    (attnlab.folder / "mended").touch()
    assert attnlab(*line)[0] == 0
