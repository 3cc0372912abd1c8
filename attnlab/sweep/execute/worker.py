"""One run in one fresh process: `python -m attnlab.sweep.execute.worker runs/<id>`. What every launcher
submits.

The lock on the run's folder is held for the process's life and falls with it. A run that ends badly is
recorded here, where the exception is known; the parent records what this one cannot (a kill, a hard exit).
An interrupted run records nothing: it is unfinished, not failed. Nor does one that fails over a key which its
id does not know of: with another value the same run would do.
"""

import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from attnlab.errors import is_host_out_of_memory, is_out_of_memory, is_process_lost, no_space
from attnlab.store import fingerprint, runs
from attnlab.store.guards import digests
from attnlab.store.lease import owning
from attnlab.store.schema import RunRecord, RunSpec, Status
from attnlab.sweep.execute import mend, node, process, ranks
from attnlab.sweep.plan.trainer import trainer, trainer_of


def main(arguments: list[str]) -> int:
    """Own the run, train it, leave a record. Returns the exit status: 0 done, 1 failed, 2 misused."""
    if arguments[:1] == ["--rank"] and len(arguments) == 3:
        return assist(Path(arguments[2]))
    if len(arguments) != 1:
        print("usage: python -m attnlab.sweep.execute.worker RUN_FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        return train(folder)
    except OSError as error:  # not even its owner could be told
        if (full := no_space(error, folder)) is None:
            raise
        with suppress(OSError):
            print(full, file=sys.stderr, flush=True)
        return process.FULL


def train(folder: Path) -> int:
    """Train the run of `folder` under its lock, unless it is done; 0 where it is done now, else 1, or
    `process.NOT_RECORDED`.
    """
    with owning(folder):  # waits where another sweep trains this very run
        started = time.time()
        record = runs.record(folder)
        reopened = None
        if record is None:
            record = reopened = mend.reopened(folder)
        if record is not None and record.done:
            if not digests.broken(folder, record):
                return _measure_again(folder, record, edited=reopened is not None)
            runs.set_aside(folder)
        if record is not None and not record.done and record.failed != runs.spec(folder).use.instead:
            return 1  # another sweep's, after this one was asked for: not repeated
        (folder / "run.json").unlink(missing_ok=True)  # a failed attempt that was asked for again
        try:
            spec = runs.spec(folder)
            _refuse_broken_parent(spec, folder.parent)
            module = trainer(trainer_of(spec.config))
            node.alone()
            node.keep_memory()
            node.refuse_other_device(module, spec)
            with ranks.others(folder, spec.config):
                module.run(folder)
        except Exception as error:
            with suppress(OSError):  # a log that takes no more
                traceback.print_exc()
            if key := fingerprint.outside(_message(error, folder)):
                print(f"not recorded: {key} is no part of what the run is", file=sys.stderr)
                _flush()
                return process.NOT_RECORDED
            _flush()
            return _failed(folder, classify(error), _message(error, folder), started, error)
        finally:
            runs.put_back(folder)
        _flush()
        if not runs.is_done(folder):
            message = f"training ended without a valid record: {runs.fault(folder)}"
            return _failed(folder, "crashed", message, started)
    return 0


def _failed(
    folder: Path, status: Status, message: str, started: float, error: BaseException | None = None
) -> int:
    """Records the failure. Where there is no space even for that, a line on stderr is all that is left."""
    try:
        runs.write_failure(folder, status, message, started, getattr(error, "step", None))
    except OSError as full:
        if no_space(full) is None:
            raise
        with suppress(OSError):
            print(f"{folder.name}: {message}; that could not be recorded", file=sys.stderr, flush=True)
        return process.FULL
    return 1


def assist(folder: Path) -> int:
    """Another rank of a run on several devices: it trains beside rank 0, and records nothing."""
    trainer(trainer_of(runs.spec(folder).config)).run(folder)
    return 0


def _refuse_broken_parent(spec: RunSpec, root: Path) -> None:
    parent = spec.config.get("parent")
    if parent and (lack := mend.unusable(root / str(parent))):
        raise ValueError(f"parent={parent}: {lack}; train it again")


def _measure_again(folder: Path, record: RunRecord, edited: bool) -> int:
    """A finished run is not trained again; what other code has measured in it is measured anew."""
    spec = runs.spec(folder)
    if not record.outdated(spec.estimate):
        return 0
    try:
        trainer(trainer_of(spec.config)).measure_again(folder)
    except Exception:  # the run stays as it was, and its page says what is old in it
        traceback.print_exc()
        _flush()
        if edited:
            mend.give_up(folder)
        return 1
    return 0


def classify(error: BaseException) -> Status:
    """The recorded state that an exception stands for."""
    if isinstance(error, FloatingPointError):
        return "diverged"
    if is_process_lost(error):
        return "killed"
    if is_host_out_of_memory(error):
        return "host_out_of_memory"
    return "out_of_memory" if is_out_of_memory(error) else "crashed"


def _message(error: BaseException, folder: Path) -> str:
    if full := no_space(error, folder / "log.txt"):  # a log is what is written without a name
        return full
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    sys.exit(process.guarded(main, sys.argv[1:]))
