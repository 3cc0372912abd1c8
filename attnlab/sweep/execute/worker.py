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

from attnlab.errors import is_out_of_memory
from attnlab.store import fingerprint, runs
from attnlab.store.lease import owning
from attnlab.store.schema import RunRecord, Status
from attnlab.sweep.execute import node, process, ranks
from attnlab.sweep.plan.trainer import trainer, trainer_of


def main(arguments: list[str]) -> int:
    """Own the run, train it, leave a record. Returns the exit status: 0 done, 1 failed, 2 misused."""
    if arguments[:1] == ["--rank"] and len(arguments) == 3:
        return assist(Path(arguments[2]))
    if len(arguments) != 1:
        print("usage: python -m attnlab.sweep.execute.worker RUN_FOLDER", file=sys.stderr)
        return 2
    return train(Path(arguments[0]))


def train(folder: Path) -> int:
    """Train the run of `folder` under its lock, unless it is done; 0 where it is done now, else 1, or
    `process.NOT_RECORDED`.
    """
    with owning(folder):  # waits where another sweep trains this very run
        started, record = time.time(), runs.record(folder)
        if record is not None and record.done:
            return _measure_again(folder, record)
        if record is not None and _since_asked(folder):
            return 1
        (folder / "run.json").unlink(missing_ok=True)  # a failed attempt that was asked for again
        try:
            spec = runs.spec(folder)
            module = trainer(trainer_of(spec.config))
            node.alone()
            node.refuse_other_device(module, spec)
            with ranks.others(folder, spec.config):
                module.run(folder)
        except Exception as error:
            traceback.print_exc()
            if key := fingerprint.outside(_message(error)):
                print(f"not recorded: {key} is no part of what the run is", file=sys.stderr)
                _flush()
                return process.NOT_RECORDED
            _flush()
            step = getattr(error, "step", None)
            runs.write_failure(folder, classify(error), _message(error), started, step)
            return 1
        _flush()
        if not runs.is_done(folder):
            message = f"training ended without a valid record: {runs.fault(folder)}"
            runs.write_failure(folder, "crashed", message, started)
            return 1
    return 0


def assist(folder: Path) -> int:
    """Another rank of a run on several devices: it trains beside rank 0, and records nothing."""
    trainer(trainer_of(runs.spec(folder).config)).run(folder)
    return 0


def _measure_again(folder: Path, record: RunRecord) -> int:
    """A finished run is not trained again; what other code has measured in it is measured anew."""
    spec = runs.spec(folder)
    if not record.outdated(spec.estimate):
        return 0
    try:
        trainer(trainer_of(spec.config)).measure_again(folder)
    except Exception:  # the run stays as it was, and its page says what is old in it
        traceback.print_exc()
        _flush()
        return 1
    return 0


def _since_asked(folder: Path) -> bool:
    """Whether a failure was recorded after the run was asked for: another sweep's, not repeated."""
    return (folder / "run.json").stat().st_mtime_ns > (folder / "spec.json").stat().st_mtime_ns


def classify(error: BaseException) -> Status:
    """The recorded state that an exception stands for."""
    if isinstance(error, FloatingPointError):
        return "diverged"
    return "out_of_memory" if is_out_of_memory(error) else "crashed"


def _message(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    sys.exit(process.guarded(main, sys.argv[1:]))
