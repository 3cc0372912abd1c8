"""Process group, log, exit codes and signal handling of every process that a sweep starts."""

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from attnlab.errors import describe_disk_full
from attnlab.store import socket_names

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM  # exit statuses
DISK_FULL = 74  # a worker's exit status: no space left, not even to record that
NOT_RECORDED = 78  # a worker's exit status: the failure does not belong to the run
RANK_LOST = 79  # a worker's exit status: a signal ended another rank of its run
NOT_TAKEN = 80  # a worker's exit status under --no-wait: another process holds the run, or has ended it
NO_STATUS = 256  # replaces a worker's exit status (at most 255) if its fork server ended first
GRACE_SECONDS = 80.0  # to end a step and save a checkpoint; below the 90 s of `hydra.launcher.signal_delay`
REPEAT_SECONDS = 1.0  # until a further signal counts: srun forwards signals that its task gets anyway


def run_forked_child(module: str, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
    """Set up a forked child (own process group, environment, log), run the module's `main` and exit."""
    os.setsid()
    os.environ.update(environment)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        sys.exit(DISK_FULL if describe_disk_full(error) else str(error))
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.exit(run_guarded(importlib.import_module(module).main, arguments))


def run_guarded(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Run `main(arguments)`; SIGTERM and the parent's end stop it, and Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _handle_sigterm)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _limit_torch_threads()
    socket_names.shorten_socket_names()
    return main(arguments)


def _handle_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)  # training unwinds and may save a checkpoint


def _exit_with_parent() -> None:
    """End this process once the sweep has ended.

    The system parent of a forked child is the fork server, which outlives the sweep; multiprocessing knows
    the sweep's process.
    """
    sweep = multiprocessing.parent_process()
    parent = os.getppid()
    while sweep.is_alive() if sweep else os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(TERMINATED)


def _limit_torch_threads() -> None:
    """Apply OMP_NUM_THREADS to a torch that the fork server imported before the variable was set."""
    torch = sys.modules.get("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdigit():
        torch.set_num_threads(int(threads))


class RunTimer:
    """Timer of a run, for a loop that waits for it.

    A pause of the machine or a step of its clock adds at most a second.
    """

    def __init__(self) -> None:
        self._seconds, self._last = 0.0, time.monotonic()

    def count_seconds(self) -> float:
        """Return the seconds so far; to be called in every turn of the loop."""
        now = time.monotonic()
        self._seconds += min(now - self._last, 1.0)
        self._last = now
        return self._seconds


class SigtermExit(SystemExit):
    """Raised on SIGTERM, like KeyboardInterrupt on SIGINT; uncaught, it sets the exit status."""


_unhandled_signals: list[BaseException] = []


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT and SigtermExit on SIGTERM within the block.

    Surprising: a library in whose code a signal arrives may turn its exception into another one (pydantic
    does while it builds a validator); leaving the block, this becomes the exception of the signal again. An
    ignored SIGINT stays ignored.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        error = KeyboardInterrupt() if number == signal.SIGINT else SigtermExit(TERMINATED)
        _unhandled_signals[:] = [error]
        raise error

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    previous_handlers = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    except Exception as error:
        reraise_signal(error)
        raise
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)
        _unhandled_signals.clear()


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM within the block, so that a second Ctrl-C leaves no orphan.

    In a thread other than the main one, which cannot set handlers, the block changes nothing.

    Yields:
        The numbers of the signals so far, without those of the first REPEAT_SECONDS.
    """
    started_at = time.monotonic()
    received = list[int]()

    def handler(number: int, _frame: FrameType | None) -> None:
        if time.monotonic() - started_at >= REPEAT_SECONDS:
            received.append(number)

    is_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main_thread else ()
    previous_handlers = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield received
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)


def reraise_signal(error: Exception) -> None:
    """Raise the exception of a signal that a library has turned into `error`; else do nothing."""
    if _unhandled_signals:
        raise _unhandled_signals.pop() from error


def mark_signal_handled() -> None:
    """Note that the exception of a signal was caught, so that later errors are no consequence of it."""
    _unhandled_signals.clear()
