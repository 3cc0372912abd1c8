"""Records of runs whose worker could not write one: a kill, a hard exit, a lost machine."""

import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from attnlab.errors import NO_SPACE, no_space
from attnlab.store import runs
from attnlab.store.lease import TAKEN_OVER, owning
from attnlab.store.schema import Status
from attnlab.sweep.execute.process import FULL, NO_STATUS, NOT_RECORDED, RANK_LOST, TERMINATED


def classify(code: int, memory_ran_out: bool) -> tuple[Status, str]:
    """Status and message for a worker's exit status: minus a signal's number, or what it exited with."""
    if code < 0:
        ended = f"the worker process was ended by {name_signal(-code)}"
        if code == -signal.SIGKILL and memory_ran_out:
            return "host_out_of_memory", f"{ended}: the host ran out of memory"
        return "killed", ended + (", as the out-of-memory killer does" if code == -signal.SIGKILL else "")
    if code == NO_STATUS:
        return "killed", "the fork server ended, and then its worker process without a record of the run"
    if code == RANK_LOST:
        return "killed", "another rank of the run was ended by a signal; log.txt names it"
    if code == FULL:
        return "crashed", NO_SPACE
    return "crashed", f"the worker exited with status {code}"


def name_signal(number: int) -> str:
    """As in `signal 9 (SIGKILL)`; a real-time signal has no name."""
    with suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"


def record_exit(folder: Path, code: int, memory_ran_out: bool, since: float) -> None:
    """Record what a worker's exit status says, where the worker itself recorded nothing."""
    if code not in (0, TERMINATED, TAKEN_OVER, NOT_RECORDED) and runs.record(folder) is None:
        status, message = classify(code, memory_ran_out)
        message += f": {folder}" if code == FULL else ""
        record_lost(folder, status, message, since)


def record_timeout(folder: Path, max_time: float, since: float) -> None:
    """Record a run that was stopped for want of time."""
    record_lost(folder, "timed_out", f"stopped after sweep.max_time={max_time:g} seconds", since)


def record_lost(folder: Path, status: Status, message: str, since: float, wait: float = 1.0) -> bool:
    """Record the failure, unless the run is done. False where a process holds the run for `wait` seconds.

    A second is longer than `status` looks at a lock; a worker that lost its parent saves a checkpoint first.
    """
    try:
        with owning(folder, patience=wait):
            with suppress(OSError), tempfile.TemporaryFile(dir=folder):
                pass  # a network disk may still remember no record: a change of the folder ends that
            if not runs.is_done(folder):
                runs.write_failure(folder, status, message, since)
    except Timeout:
        return False  # another sweep trains this run: the record is its to write
    except OSError as error:
        if (full := no_space(error, folder)) is None:
            raise
        print(f"{folder}: {message}; that could not be recorded: {full}", file=sys.stderr, flush=True)
    return True
