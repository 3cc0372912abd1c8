"""Worker slots (one per visible GPU, else one per core) and the child processes that run in them.

On a CPU a run is forked from a warm server, so that imports cost nothing. On a GPU it is a new interpreter,
because a CUDA context does not survive a fork.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from attnlab.errors import InvalidConfig
from attnlab.store.guards.trust import DECLARED_VARIABLE
from attnlab.store.process_identity import is_process_running
from attnlab.sweep.execute import process_control
from attnlab.sweep.plan import fork_server
from attnlab.sweep.plan.fork_server import Context
from attnlab.training.loggers.logger_notes import COMMAND_VARIABLE


@dataclass(frozen=True)
class WorkerSlot:
    """A device and a number of threads; `gpu` is its name in CUDA_VISIBLE_DEVICES, None on a CPU."""

    number: int
    gpu: str | None
    threads: int

    def build_environment(self) -> dict[str, str]:
        variables = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self.gpu is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpu
        for name in (COMMAND_VARIABLE, DECLARED_VARIABLE):  # the fork server may be older than the command
            if value := os.environ.get(name):
                variables[name] = value
        return variables


def list_worker_slots(
    device_kind: str, n_slots: int | None = None, slots_per_gpu: int = 1
) -> list[WorkerSlot]:
    """List the worker slots of this machine.

    Args:
        device_kind: "cpu", or a GPU's name.
        n_slots: `sweep.slots`, the number of slots; None for one per core, or `slots_per_gpu` per GPU.
        slots_per_gpu: `sweep.slots_per_gpu`, the number of runs that share a GPU.

    Raises:
        InvalidConfig: `slots_per_gpu` is set for a CPU.
    """
    cores = _count_cores()
    if device_kind != "cpu":
        gpus = list_visible_gpus()
        number = n_slots or len(gpus) * slots_per_gpu
        return [WorkerSlot(i, gpus[i % len(gpus)], max(1, cores // number)) for i in range(number)]
    if slots_per_gpu > 1:
        raise InvalidConfig(
            f"sweep.slots_per_gpu={slots_per_gpu}: the runs train on a CPU: use sweep.slots instead"
        )
    number = n_slots or cores
    return [WorkerSlot(i, None, max(1, cores // number)) for i in range(number)]


def list_configured_slots(device_kind: str, settings: Mapping[str, Any]) -> list[WorkerSlot]:
    """List the worker slots that the config group `sweep` sets, as `list_worker_slots`."""
    return list_worker_slots(device_kind, settings.get("slots"), settings.get("slots_per_gpu", 1))


def merge_slots(run_slots: Sequence[WorkerSlot]) -> WorkerSlot:
    """Merge the slots of one run into a slot with all their devices and the threads of the first."""
    gpus = dict.fromkeys(slot.gpu for slot in run_slots if slot.gpu is not None)
    return WorkerSlot(run_slots[0].number, ",".join(gpus) or None, run_slots[0].threads)


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def list_visible_gpus() -> list[str]:
    """List GPU names for CUDA_VISIBLE_DEVICES: its entries (numbers or uuids) if it is set, else all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = [name.strip() for name in visible.split(",") if name.strip()]
        return gpus[: gpus.index("-1")] if "-1" in gpus else gpus
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        if output.split():
            return output.split()
    return ["0"]


_SERVER_LOST = 255  # multiprocessing's exit status for a child of a fork server that ended before it


class ChildProcess(Protocol):
    """A worker process."""

    pid: int

    def poll_exit_code(self) -> int | None:
        """Return None while it runs, else its exit status; minus the number of the signal that ended it."""
        ...


class _ForkedChild:
    """A worker that the fork server starts and waits for.

    If the server ends first, the worker goes on and this process waits for it; only its exit status is lost.
    """

    def __init__(
        self, context: Context, slot: WorkerSlot, module: str, arguments: list[str], log: Path
    ) -> None:
        self._process = context.Process(
            target=process_control.run_forked_child, args=(module, arguments, log, slot.build_environment())
        )
        self._process.start()
        self.pid, self._server = self._process.pid or 0, fork_server.find_server_pid()

    def poll_exit_code(self) -> int | None:
        code: int | None = self._process.exitcode
        if code == _SERVER_LOST and self._server and has_process_ended(self._server):
            return None if is_process_running(self.pid) else process_control.NO_STATUS
        if code is not None:
            self._process.join()
        return code


class _SpawnedChild:
    def __init__(self, slot: WorkerSlot, module: str, arguments: list[str], log: Path) -> None:
        environment = {**os.environ, **slot.build_environment(), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def poll_exit_code(self) -> int | None:
        return self._process.poll()


def start_child(
    slot: WorkerSlot, context: Context | None, module: str, arguments: list[str], log: Path
) -> ChildProcess:
    """Run `module` in the slot: forked from the warm server on a CPU, else in a new interpreter."""
    if context is not None and slot.gpu is None and context.get_start_method() in ("forkserver", "fork"):
        return _ForkedChild(context, slot, module, arguments, log)
    return _SpawnedChild(slot, module, arguments, log)


def run_child(slot: WorkerSlot, context: Context | None, module: str, arguments: list[str], log: Path) -> int:
    """Start a child as `start_child`, wait for it and return its exit status; an interrupt stops it."""
    process = start_child(slot, context, module, arguments, log)
    try:
        while (code := process.poll_exit_code()) is None:
            time.sleep(0.02)
    finally:
        stop_children([process] if process.poll_exit_code() is None else [])
    return code


def stop_children(children: Sequence[ChildProcess], grace_seconds: float | None = None) -> None:
    """Send SIGTERM, on which a run saves a checkpoint; kill the process groups after a grace period.

    A signal to this process ends the grace period.

    Args:
        children: the processes to stop.
        grace_seconds: None for GRACE_SECONDS.
    """
    if not children:
        return
    grace_seconds = process_control.GRACE_SECONDS if grace_seconds is None else grace_seconds
    with process_control.collect_signals() as signals:
        for each in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each.pid, signal.SIGTERM)  # not the data workers, whose death would fail the run
        deadline = time.monotonic() + grace_seconds
        while (
            time.monotonic() < deadline
            and not signals
            and any(each.poll_exit_code() is None for each in children)
        ):
            time.sleep(0.02)
        for each in children:
            _send_signal(each.pid, signal.SIGKILL)  # and the rest of its group, such as data workers
        while any(each.poll_exit_code() is None for each in children):
            time.sleep(0.02)


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # it has ended, or has no process group yet
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def has_process_ended(pid: int) -> bool:
    """Return whether a child of this process has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another caller has reaped it
        return True


def count_oom_kills() -> int:
    """Count the kernel's out-of-memory kills so far; an increase distinguishes them from a plain kill -9."""
    total = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        with suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
    return total
