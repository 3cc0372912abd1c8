"""Worker process of one run, `python -m attnlab.sweep.execute.worker runs/<id>`, started by every launcher.

The worker holds the run's lease, which ends with the process. It records a failure itself, because it knows
the exception; the parent process records kills and hard exits. An interrupted run records nothing: it is
unfinished, not failed. Neither does a run that fails because of a config key outside its id, since the same
run may succeed with another value.
"""

import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from attnlab.errors import (
    InvalidConfig,
    describe_disk_full,
    is_disk_failure,
    is_helper_process_killed,
    is_host_out_of_memory,
    is_out_of_memory,
)
from attnlab.store import fingerprint, run_directories
from attnlab.store.guards import digests, trust
from attnlab.store.lease import hold_lease
from attnlab.store.run_schema import RunConfig, RunResult, Status
from attnlab.sweep.execute import node_setup, process_control, ranks, repair
from attnlab.sweep.plan.trainer import get_trainer_name, load_trainer

NO_WAIT = "--no-wait"
LEASE_SECONDS = 1.0  # outlasts the moment for which an observer holds the lock


def main(arguments: list[str]) -> int:
    """Train a run under its lease and record the outcome.

    Args:
        arguments: the run directory; before it `--no-wait` to exit at once if another process holds the run;
            or `--rank N` and the run directory, for another rank of a run.

    Returns:
        The exit status: 0 done, 1 failed, 2 wrong usage, or one of the constants of `process_control`.
    """
    if arguments[:1] == ["--rank"] and len(arguments) == 3:
        return train_other_rank(Path(arguments[2]))
    waits = arguments[:1] != [NO_WAIT]
    if len(arguments) != 1 + (not waits):
        print(f"usage: python -m attnlab.sweep.execute.worker [{NO_WAIT}] RUN_FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[-1])
    try:
        return train_run(folder, waits)
    except Timeout:
        return process_control.NOT_TAKEN
    except OSError as error:  # not even the lease could be written
        if (full := describe_disk_full(error, folder)) is None:
            raise
        with suppress(OSError):
            print(full, file=sys.stderr, flush=True)
        return process_control.DISK_FULL


def train_run(folder: Path, waits: bool = True) -> int:
    """Train or remeasure the run in `folder` under its lease, unless it is done.

    Args:
        folder: the run directory.
        waits: whether to wait while another process trains this run.

    Returns:
        0 if the run is done now, else 1 or `process_control.NOT_RECORDED`; without `waits`,
        `process_control.NOT_TAKEN` if another process has ended the run.

    Raises:
        Timeout: without `waits`, if another process holds the run.
    """
    with hold_lease(folder, float("inf") if waits else LEASE_SECONDS):
        started_at = time.time()
        try:
            spec = trust.load_trusted_run(folder)
        except InvalidConfig as error:  # not the planned run, which therefore has no outcome
            print(error, file=sys.stderr, flush=True)
            return process_control.NOT_RECORDED
        record = run_directories.load_run_result(folder)
        reopened = None
        if record is None:
            record = reopened = repair.reopen_for_remeasurement(folder)
        if record is not None and record.is_done:
            if not digests.find_broken_files(folder, record):
                if not (waits or record.list_outdated_parts(spec.estimate)):
                    return process_control.NOT_TAKEN
                return _remeasure(spec, folder, record, is_edited=reopened is not None)
            run_directories.set_aside_result(folder)
        if record is not None and not record.is_done and record.failure_digest != spec.use.retried_failure:
            # another sweep has retried this run since it was submitted
            return 1 if waits else process_control.NOT_TAKEN
        (folder / "run.json").unlink(missing_ok=True)  # the failure that this attempt retries
        try:
            _validate_parent(spec, folder.parent)
            module = load_trainer(get_trainer_name(spec.config))
            node_setup.hide_slurm_environment()
            node_setup.retain_freed_memory()
            node_setup.validate_device_kind(module, spec)
            with ranks.run_other_ranks(folder, spec.config):
                module.run(folder)
        except Exception as error:
            with suppress(OSError):  # the log cannot be written
                traceback.print_exc()
            if key := fingerprint.find_unhashed_key(_format_error(error, folder)):
                print(
                    (f"not recorded: {key} is not part of the run id, so the same run may succeed elsewhere"),
                    file=sys.stderr,
                )
                _flush_streams()
                return process_control.NOT_RECORDED
            _flush_streams()
            return _record_failure(
                folder, classify_exception(error), _format_error(error, folder), started_at, error
            )
        finally:
            run_directories.restore_result(folder)
        _flush_streams()
        if not run_directories.is_done(folder):
            message = (
                f"training ended without a valid result: {run_directories.describe_result_fault(folder)}"
            )
            return _record_failure(folder, "crashed", message, started_at)
    return 0


def _record_failure(
    folder: Path, status: Status, message: str, started_at: float, error: BaseException | None = None
) -> int:
    """Write the failed result and return the exit status; on a full disk, print a line on stderr instead."""
    try:
        run_directories.write_failure(folder, status, message, started_at, getattr(error, "step", None))
    except OSError as disk_error:
        if describe_disk_full(disk_error) is None:
            raise
        with suppress(OSError):
            print(f"{folder.name}: {message}; the failure was not recorded", file=sys.stderr, flush=True)
        return process_control.DISK_FULL
    return 1


def train_other_rank(folder: Path) -> int:
    """Train as another rank of a multi-device run; only rank 0 records the result."""
    load_trainer(get_trainer_name(trust.load_trusted_run(folder).config)).run(folder)
    return 0


def _validate_parent(spec: RunConfig, root: Path) -> None:
    parent = spec.config.get("parent")
    if parent and (reason := repair.explain_unusable_weights(root / str(parent))):
        raise ValueError(f"parent={parent}: {reason}; train the parent again")


def _remeasure(spec: RunConfig, folder: Path, record: RunResult, is_edited: bool) -> int:
    """Remeasure the outdated parts of a finished run without training it; return the exit status."""
    if not record.list_outdated_parts(spec.estimate):
        return 0
    try:
        load_trainer(get_trainer_name(spec.config)).measure_again(folder)
    except Exception:  # the run stays as it was, and its report lists the outdated parts
        traceback.print_exc()
        _flush_streams()
        if is_edited:
            repair.restore_edited_result(folder)
        return 1
    return 0


def classify_exception(error: BaseException) -> Status:
    """Return the run status that an exception stands for."""
    if isinstance(error, FloatingPointError):
        return "diverged"
    if is_helper_process_killed(error) or is_disk_failure(error) or isinstance(error, node_setup.WrongDevice):
        return "killed"
    if is_host_out_of_memory(error):
        return "host_out_of_memory"
    return "out_of_memory" if is_out_of_memory(error) else "crashed"


def _format_error(error: BaseException, folder: Path) -> str:
    if full := describe_disk_full(
        error, folder / "log.txt"
    ):  # errors without a file name come from writing the log
        return full
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    sys.exit(process_control.run_guarded(main, sys.argv[1:]))
