"""One attempt at one run on a cluster node, as submitted by the launchers `ray` and `slurm`.

The attempt starts the same worker as the pool and records failures that the worker could not. The launcher
records only the loss of the attempt itself. Attempts are pickled, so they hold plain values and no secrets.
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

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.atomic_files import write_json
from attnlab.store.guards import digests
from attnlab.store.guards.trust import DECLARED_VARIABLE
from attnlab.store.run_schema import Status
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.exit_records import record_exit, record_lost_run, record_timeout
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.execute.process_control import GRACE_SECONDS, TERMINATED, RunTimer
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.execute.ranks import count_devices

NODE_FILE = "node.json"  # in a run directory: where and when its last attempt began
_FORWARDED_VARIABLES = ("PYTHONPATH", "ATTNLAB_COMMAND", DECLARED_VARIABLE, "HF_HUB_OFFLINE")
_LOCK_PATIENCE = GRACE_SECONDS + 40.0  # seconds; a lease held longer belongs to another process
_WARNING_SIGNALS = {signal.SIGUSR1, signal.SIGUSR2}  # meant for the attempt; they would end a worker


@dataclass
class Attempt:
    """Callable that trains one run on the node where it is called; paths are absolute."""

    folder: str
    working_dir: str  # the command's working directory, base of the run's relative paths
    threads: int
    cpu_only: bool  # planned for a CPU: all GPUs are hidden
    max_time: float | None
    environment: dict[str, str]
    _worker: worker_slots.ChildProcess | None = field(default=None, init=False, repr=False)

    def __call__(self, should_stop: Callable[[], bool] = lambda: False, node: str | None = None) -> int:
        """Run the worker and return its exit status.

        Args:
            should_stop: polled twice a second, for engines that cannot send a signal.
            node: the engine's name of this node; None for that of SLURM.

        Raises:
            RuntimeError: this node does not see the run directory or the working directory.
        """
        if should_stop():
            return TERMINATED
        folder = self._set_up_environment()
        started_at = time.time()
        node = node or os.environ.get("SLURMD_NODENAME", platform.node())
        with suppress(OSError):  # the worker reports a full disk
            write_json(folder / NODE_FILE, {"node": node, "time": started_at})
        oom_kills = worker_slots.count_oom_kills()
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WARNING_SIGNALS)  # a worker inherits it
        slot = worker_slots.WorkerSlot(0, "" if self.cpu_only else None, self.threads)
        try:
            self._worker = worker_slots.start_child(slot, None, WORKER, [self.folder], folder / "log.txt")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        timer = RunTimer()
        try:
            while (code := self._worker.poll_exit_code()) is None:
                seconds = timer.count_seconds()
                if self.max_time is not None and seconds > self.max_time:
                    worker_slots.stop_children([self._worker], grace_seconds=3.0)
                    record_timeout(folder, self.max_time, started_at)
                    return TERMINATED
                time.sleep(0.1 if seconds < 1 else 0.5)
                if should_stop():
                    self.stop()
        except BaseException:
            self.stop()
            raise
        record_exit(folder, code, worker_slots.count_oom_kills() > oom_kills, started_at)
        return code

    def stop(self) -> None:
        """End the worker, which saves a checkpoint first. Safe to call from a signal handler.

        A handler may interrupt `poll_exit_code()`, which cannot be reentered, so it asks the system instead.
        """
        if self._worker is None:
            return
        stop_child(self._worker.pid)

    def _set_up_environment(self) -> Path:
        folder = Path(self.folder)
        host = platform.node()
        if not (folder / "spec.json").is_file():
            raise RuntimeError(
                f"{host} cannot access {folder}: put paths.runs on a disk that all nodes share"
            )
        try:
            os.chdir(self.working_dir)
        except OSError as error:
            raise RuntimeError(
                f"{host} cannot access {self.working_dir}, the working directory of the command: "
                "start the command on a disk that all nodes share"
            ) from error
        os.environ.update(self.environment)
        return folder


def stop_child(pid: int) -> None:
    """End a child by SIGTERM, or SIGKILL after a grace period, and then its process group.

    Safe in a signal handler: it reaps no process.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
        while not worker_slots.has_process_ended(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if worker_slots.has_process_ended(pid):
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # the rest of its group, such as data workers


def create_attempts(folders: Sequence[Path], settings: Mapping[str, Any], threads: int) -> list[Attempt]:
    """Create an attempt per stored run.

    Earlier failures are deleted and results with broken files set aside, so that any result means an end.
    """
    max_time: float | None = settings.get("max_time")
    environment = collect_forwarded_variables()
    attempts = []
    for folder in folders:
        kind = run_directories.load_run_config(folder).estimate.device_kind
        record = run_directories.load_run_result(folder)
        if record is not None and not record.is_done:
            (folder / "run.json").unlink(missing_ok=True)
        if record is not None and record.is_done and digests.find_broken_files(folder, record):
            run_directories.set_aside_result(folder)
        path = str(folder.absolute())
        working_dir = os.getcwd()
        attempts.append(Attempt(path, working_dir, threads, kind == "cpu", max_time, environment))
    return attempts


def collect_forwarded_variables() -> dict[str, str]:
    """Return the environment variables that travel to the nodes; secrets do not."""
    forwarded = [name for name in os.environ if name in _FORWARDED_VARIABLES or name.startswith("WANDB_")]
    return {name: os.environ[name] for name in forwarded if name != "WANDB_API_KEY"}


def list_started_runs(folders: Iterable[Path], started_at: float) -> list[tuple[Path, int]]:
    """List the runs that have started since `started_at`, with their index, for `Progress.refresh`."""
    return [
        (folder, i)
        for i, folder in enumerate(folders)
        if run_directories.read_progress(folder).get("time", 0) >= started_at
    ]


def record_lost_attempt(
    folder: Path, status: Status, message: str, started_at: float, progress: Progress
) -> None:
    """Record the failure of a run whose attempt was lost, once its lease is free.

    The worker may still be saving a last checkpoint. After _LOCK_PATIENCE seconds nothing is recorded.
    """
    deadline = time.monotonic() + _LOCK_PATIENCE
    while run_directories.load_run_result(folder) is None and not record_lost_run(
        folder, status, message, started_at, lock_timeout=GRACE_SECONDS + 5
    ):
        if time.monotonic() > deadline:
            progress.print_line(f"{folder}: {message}; not recorded, because a process still locks the run")
            return


def count_gpus_per_run(folders: Sequence[Path], requested: float | None, key: str) -> float:
    """Return the number of GPUs per run: `requested`, else `trainer.devices` of runs planned for a GPU.

    Raises:
        InvalidConfig: GPUs are requested for runs that were planned for a CPU.
    """
    specs = [run_directories.load_run_config(folder) for folder in folders]
    kinds = {spec.estimate.device_kind for spec in specs}
    if requested and "cpu" in kinds:
        raise InvalidConfig(
            f"{key}={requested:g}, but the runs were planned for this machine's CPU: set sweep.device to the "
            f"GPU's name (as nvidia-smi has it), or {key}=0"
        )
    if requested is not None or kinds == {"cpu"}:
        return requested or 0
    return max(count_devices(spec.config) for spec in specs)


def import_library(module: str, launcher: str) -> ModuleType:
    """Import the launcher's library late, because Hydra imports every plugin at each start."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidConfig(
            f"hydra/launcher={launcher} needs: pip install 'attnlab[{launcher}]' ({error})"
        ) from error
