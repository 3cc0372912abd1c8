"""Results of runs whose worker could not write one: after a kill, a hard exit or a lost machine."""

import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from attnlab.errors import NO_SPACE, describe_disk_full
from attnlab.store import run_directories
from attnlab.store.lease import TAKEN_OVER_EXIT_CODE, hold_lease
from attnlab.store.run_schema import Status
from attnlab.sweep.execute.process_control import (
    DISK_FULL,
    NO_STATUS,
    NOT_RECORDED,
    NOT_TAKEN,
    RANK_LOST,
    TERMINATED,
)


def classify_exit_code(code: int, memory_ran_out: bool) -> tuple[Status, str]:
    """Return the run status and message for a worker's exit code; below 0 it is minus a signal number."""
    if code < 0:
        message = f"{format_signal(-code)} killed the worker process"
        if code == -signal.SIGKILL and memory_ran_out:
            return "host_out_of_memory", f"{message}: the host ran out of memory"
        return "killed", message + (" (possibly the out-of-memory killer)" if code == -signal.SIGKILL else "")
    if code == NO_STATUS:
        return "killed", "the fork server exited, and its worker process left no run result"
    if code == RANK_LOST:
        return "killed", "a signal killed another rank of the run: see log.txt"
    if code == DISK_FULL:
        return "killed", NO_SPACE
    return "crashed", f"the worker exited with status {code}"


def format_signal(number: int) -> str:
    """Format a signal as in `signal 9 (SIGKILL)`; a real-time signal has no name."""
    with suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"


# Message of a worker that native code crashed, such as a kernel. Retries tell its bug from a faulty machine.
_NATIVE_CRASHES = tuple(
    classify_exit_code(-number, False)[1]
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
)


def end_native_crash(folder: Path, n_retries: int) -> None:
    """Make a crash of native code the run's own, `crashed`, since it followed `n_retries` retries."""
    record = run_directories.load_run_result(folder)
    if record is None or record.failure is None or record.failure.message not in _NATIVE_CRASHES:
        return
    message = f"{record.failure.message}, after {n_retries} retries"
    failure = record.failure.model_copy(update={"message": message})
    crash = record.model_copy(update={"status": "crashed", "failure": failure})
    with suppress(Timeout), hold_lease(folder, timeout_seconds=1.0):
        if run_directories.load_run_result(folder) == record:
            run_directories.write_run_result(folder, crash)


def record_exit(folder: Path, code: int, memory_ran_out: bool, started_at: float) -> None:
    """Record the failure of a worker that exited without a result of its own.

    Exit codes of interrupted, taken-over and deliberately unrecorded runs are skipped.
    """
    if (
        code not in (0, TERMINATED, TAKEN_OVER_EXIT_CODE, NOT_RECORDED, NOT_TAKEN)
        and run_directories.load_run_result(folder) is None
    ):
        status, message = classify_exit_code(code, memory_ran_out)
        message += f": {folder}" if code == DISK_FULL else ""
        record_lost_run(folder, status, message, started_at)


def record_timeout(folder: Path, max_time: float, started_at: float) -> None:
    """Record that a run was stopped after `max_time` seconds."""
    record_lost_run(folder, "timed_out", f"stopped after sweep.max_time={max_time:g} seconds", started_at)


def record_lost_run(
    folder: Path, status: Status, message: str, started_at: float, lock_timeout: float = 1.0
) -> bool:
    """Record a failure unless the run is done.

    The default timeout outlasts the moment for which `status` holds the lock. Callers pass a longer one for
    a worker that lost its parent, because it saves a checkpoint first.

    Returns:
        False if another process holds the run's lease for `lock_timeout` seconds.
    """
    try:
        with hold_lease(folder, timeout_seconds=lock_timeout):
            with suppress(OSError), tempfile.TemporaryFile(dir=folder):
                pass  # changing the folder makes a network disk forget that it saw no result
            if not run_directories.is_done(folder):
                run_directories.write_failure(folder, status, message, started_at)
    except Timeout:
        return False  # the sweep that trains this run will write its result
    except OSError as error:
        if (full := describe_disk_full(error, folder)) is None:
            raise
        print(f"{folder}: {message}; the failure was not recorded: {full}", file=sys.stderr, flush=True)
    return True
