"""One attempt at one run on a machine of a cluster: what the launchers `ray` and `slurm` submit.

It starts the worker that the pool starts, and records what that could not. What is left to the launcher is
the loss of the attempt itself. It travels as a pickle, so it holds plain values, and no secrets.
"""

import importlib
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.guards import digests
from attnlab.store.schema import Status
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.exits import record_exit, record_lost, record_timeout
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.execute.process import GRACE, TERMINATED
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.execute.ranks import devices

_CARRIED = ("PYTHONPATH", "ATTNLAB_COMMAND", "HF_HUB_OFFLINE")
_LOSS = 60.0  # seconds after which a run that is held still is somebody else's
_WARNINGS = {signal.SIGUSR1, signal.SIGUSR2}  # for the attempt; they would end a worker


@dataclass
class Attempt:
    """Called on the machine that trains, it returns the worker's exit status. Paths are absolute."""

    folder: str
    home: str  # the working directory of the command, where the run's relative paths begin
    threads: int
    cpu: bool  # planned for a CPU: no GPU is shown to it
    max_time: float | None
    environment: dict[str, str]
    _worker: slots.Child | None = field(default=None, init=False, repr=False)

    def __call__(self, unwanted: Callable[[], bool] = lambda: False) -> int:
        """`unwanted`: asked twice a second whether to stop, for engines that cannot send a signal."""
        if unwanted():
            return TERMINATED
        folder = self._enter()
        since = time.time()
        kills = slots.out_of_memory_kills()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WARNINGS)  # a worker inherits it
        slot = slots.Slot(0, "" if self.cpu else None, self.threads)
        try:
            self._worker = slots.start(slot, None, WORKER, [self.folder], folder / "log.txt")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            while (code := self._worker.code()) is None:
                if self.max_time is not None and time.time() - since > self.max_time:
                    slots.end([self._worker], grace=3.0)
                    record_timeout(folder, self.max_time, since)
                    return TERMINATED
                time.sleep(0.1 if time.time() - since < 1 else 0.5)
                if unwanted():
                    self.stop()
        except BaseException:
            self.stop()
            raise
        record_exit(folder, code, slots.out_of_memory_kills() > kills, since)
        return code

    def stop(self) -> None:
        """End the worker, which saves a checkpoint on its way. Also from a signal's handler.

        There `code()` may be in the midst of itself, and would not answer: the system is asked instead.
        """
        if self._worker is None:
            return
        pid = self._worker.pid
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            deadline = time.monotonic() + seconds
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
            while not slots.has_ended(pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            if slots.has_ended(pid):
                break
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its group's stragglers, such as data workers

    def _enter(self) -> Path:
        folder = Path(self.folder)
        host = platform.node()
        if not (folder / "spec.json").is_file():
            raise RuntimeError(f"{host} does not see {folder}: paths.runs must be on a disk that all share")
        try:
            os.chdir(self.home)
        except OSError as error:
            raise RuntimeError(f"{host} does not see {self.home}, where the command was given") from error
        os.environ.update(self.environment)
        return folder


def attempts(folders: Sequence[Path], settings: Mapping[str, Any], threads: int) -> list[Attempt]:
    """An attempt per stored run. An earlier failure is forgotten, so that a record means an end."""
    max_time: float | None = settings.get("max_time")
    carried = [name for name in os.environ if name in _CARRIED or name.startswith("WANDB_")]
    environment = {name: os.environ[name] for name in carried if name != "WANDB_API_KEY"}  # no secret travels
    work = []
    for folder in folders:
        kind = runs.spec(folder).estimate.device_kind
        record = runs.record(folder)
        if record is not None and not record.done:
            (folder / "run.json").unlink(missing_ok=True)
        if record is not None and record.done and digests.broken(folder, record):
            runs.set_aside(folder)
        path = str(folder.absolute())
        home = os.getcwd()
        work.append(Attempt(path, home, threads, kind == "cpu", max_time, environment))
    return work


def started(folders: Iterable[Path], since: float) -> list[tuple[Path, int]]:
    """Those of the submitted runs that have begun since then, numbered, as `Progress.tick` wants them."""
    return [(folder, i) for i, folder in enumerate(folders) if runs.progress(folder).get("time", 0) >= since]


def lost(folder: Path, status: Status, message: str, since: float, progress: Progress) -> None:
    """Record the end of a run whose attempt was lost. Its worker may live on to save a last checkpoint."""
    deadline = time.monotonic() + _LOSS
    while runs.record(folder) is None and not record_lost(folder, status, message, since, wait=GRACE + 5):
        if time.monotonic() > deadline:
            progress.say(f"{folder}: {message}; a process still holds the run, so nothing is recorded")
            return


def gpus(folders: Sequence[Path], wanted: float | None, key: str) -> float:
    """How many GPUs a run takes: as many as it trains on. Refused where it was planned for a CPU."""
    specs = [runs.spec(folder) for folder in folders]
    kinds = {spec.estimate.device_kind for spec in specs}
    if wanted and "cpu" in kinds:
        raise Refused(
            f"{key}={wanted:g}, but the runs were planned for this machine's CPU: set sweep.device to the "
            f"GPU's name (as nvidia-smi has it), or {key}=0"
        )
    if wanted is not None or kinds == {"cpu"}:
        return wanted or 0
    return max(devices(spec.config) for spec in specs)


def library(module: str, launcher: str) -> ModuleType:
    """The launcher's library, imported late: Hydra looks into every plugin at each start."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Refused(
            f"hydra/launcher={launcher} needs: pip install 'attnlab[{launcher}]' ({error})"
        ) from error
