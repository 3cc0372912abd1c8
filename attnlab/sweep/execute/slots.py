"""Where runs run: one slot per visible GPU, else one per core, and one fresh process per run in its slot.

On a CPU a run is forked from a warm server (imports cost nothing); on a GPU it is an interpreter of its own,
because a CUDA context does not survive a fork.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from attnlab.errors import Refused
from attnlab.sweep.execute import process
from attnlab.sweep.plan import fork_server
from attnlab.sweep.plan.fork_server import Context
from attnlab.training.loggers.notes import COMMAND


@dataclass(frozen=True)
class Slot:
    """A device and a share of the cores. `gpu` is None on a CPU; else what CUDA_VISIBLE_DEVICES calls it."""

    number: int
    gpu: str | None
    threads: int

    def environment(self) -> dict[str, str]:
        variables = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self.gpu is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpu
        if name := os.environ.get(COMMAND):  # the fork server may be older than the command
            variables[COMMAND] = name
        return variables


def slots(kind: str, wanted: int | None = None, per_gpu: int = 1) -> list[Slot]:
    """The slots for a device kind (cpu, or a GPU's name). `wanted` is sweep.slots: their number, or None;
    `per_gpu` is sweep.slots_per_gpu: how many runs share a GPU.
    """
    cores = _cores()
    if kind != "cpu":
        gpus = visible_gpus()
        number = wanted or len(gpus) * per_gpu
        return [Slot(i, gpus[i % len(gpus)], max(1, cores // number)) for i in range(number)]
    if per_gpu > 1:
        raise Refused(f"sweep.slots_per_gpu={per_gpu}: these runs train on a CPU; use sweep.slots")
    number = wanted or cores
    return [Slot(i, None, max(1, cores // number)) for i in range(number)]


def together(taken: Sequence[Slot]) -> Slot:
    """The slots of one run on several devices, or alone on all of them, as one."""
    gpus = dict.fromkeys(slot.gpu for slot in taken if slot.gpu is not None)
    return Slot(taken[0].number, ",".join(gpus) or None, taken[0].threads)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES: what it holds where it is set (numbers or uuids), else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        gpus = [name.strip() for name in named.split(",") if name.strip()]
        return gpus[: gpus.index("-1")] if "-1" in gpus else gpus
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        if listed.stdout.split():
            return listed.stdout.split()
    return ["0"]


_SERVER_LOST = 255  # multiprocessing's exit status for a child of a fork server that ended before it


class Child(Protocol):
    """A running worker."""

    pid: int

    def code(self) -> int | None:
        """None while it runs, else its exit status; minus the signal's number where one ended it."""
        ...


class _Forked:
    """A worker that the fork server starts and waits for. Where the server ends first, the worker goes on and
    this process waits for it; only its exit status is lost.
    """

    def __init__(self, context: Context, slot: Slot, module: str, arguments: list[str], log: Path) -> None:
        self._process = context.Process(
            target=process.enter, args=(module, arguments, log, slot.environment())
        )
        self._process.start()
        self.pid, self._server = self._process.pid or 0, fork_server.find_server()

    def code(self) -> int | None:
        code: int | None = self._process.exitcode
        if code == _SERVER_LOST and self._server and has_ended(self._server):
            return None if is_running(self.pid) else process.NO_STATUS
        if code is not None:
            self._process.join()
        return code


class _Spawned:
    def __init__(self, slot: Slot, module: str, arguments: list[str], log: Path) -> None:
        environment = {**os.environ, **slot.environment(), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def code(self) -> int | None:
        return self._process.poll()


def start(slot: Slot, context: Context | None, module: str, arguments: list[str], log: Path) -> Child:
    """Run `module` in the slot: forked from the warm server where there is one, else in a new interpreter."""
    if context is not None and slot.gpu is None and context.get_start_method() in ("forkserver", "fork"):
        return _Forked(context, slot, module, arguments, log)
    return _Spawned(slot, module, arguments, log)


def end(children: Sequence[Child], grace: float = process.GRACE) -> None:
    """Ask the children to stop (a checkpoint is saved), then make them and all that they started."""
    if not children:
        return
    main = threading.current_thread() is threading.main_thread()  # elsewhere signals are not ours to set
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]  # a second Ctrl-C leaves no orphan
    try:
        for each in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each.pid, signal.SIGTERM)  # not its data workers: their death would be its failure
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(each.code() is None for each in children):
            time.sleep(0.02)
        for each in children:
            _signal(each.pid, signal.SIGKILL)  # also its group's stragglers, such as data workers
        while any(each.code() is None for each in children):
            time.sleep(0.02)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # gone already, or not yet a group of its own
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended. It stays to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # whoever waited for it has its exit status
        return True


def is_running(pid: int) -> bool:
    """Whether any process runs under a number, its parent or not. One that has ended does not, though nobody
    has waited for it yet.
    """
    try:
        os.kill(pid, 0)
        return not Path("/proc/self").exists() or _state(pid) != "Z"
    except (ProcessLookupError, PermissionError, FileNotFoundError):  # or another user's, by now
        return False


def _state(pid: int) -> str:
    """One letter, as Linux names it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def out_of_memory_kills() -> int:
    """How often the kernel has killed for want of memory; a kill -9 is told from that by the difference."""
    total = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        with suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
    return total
