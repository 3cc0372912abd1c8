"""The manners of every process that a sweep starts, its group, log and end; and how SIGTERM ends a sweep."""

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

from attnlab.errors import no_space
from attnlab.store import temporary

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM  # exit statuses
FULL = 74  # the exit status of a worker that could not even record that there is no space left
NOT_RECORDED = 78  # a worker's exit status: what failed is not the run's own
RANK_LOST = 79  # a worker's exit status: a signal ended another rank of its run
NO_STATUS = 256  # in place of a worker's exit status (at most 255): its fork server ended before it did
GRACE = 20.0  # seconds to end a step and save a checkpoint in


def enter(module: str, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
    """A forked child's first words: a process group of its own, its device, its log; then the module."""
    os.setsid()
    os.environ.update(environment)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        sys.exit(FULL if no_space(error) else str(error))
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.exit(guarded(importlib.import_module(module).main, arguments))


def guarded(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """`main(arguments)`, ended by SIGTERM and by its parent's end. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit_threads()
    temporary.shorten_socket_names()
    return main(arguments)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)  # training unwinds, and may save a checkpoint on its way


def _end_with_parent() -> None:
    """A forked child's system parent is the fork server, which outlives the sweep: ask for the real one."""
    sweep = multiprocessing.parent_process()
    parent = os.getppid()
    while sweep.is_alive() if sweep else os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(TERMINATED)


def _limit_threads() -> None:
    """A forked child inherits a torch that has read OMP_NUM_THREADS already; a new interpreter reads it."""
    torch = sys.modules.get("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdigit():
        torch.set_num_threads(int(threads))


class Terminated(SystemExit):
    """SIGTERM, on its way up like a KeyboardInterrupt; where nothing was started, the exit status itself."""


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """SIGTERM comes up as Terminated."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
