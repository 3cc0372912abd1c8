"""Processes that find torch imported already: children of `multiprocessing`'s fork server.

The one module that uses `multiprocessing.forkserver` and `multiprocessing.resource_tracker`: the public API
can neither start the server ahead of its first child, with an environment and a signal mask of its own, nor
tell its process id. Waiting for the first child instead would block Ctrl-C for seconds of imports.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Protocol

from attnlab.store import temporary


class Process(Protocol):
    """A child process, as `multiprocessing.Process` is one."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...


class Context(Protocol):
    """The part of a `multiprocessing` context that a sweep uses: processes, and a pipe to one."""

    def Process(  # noqa: N802 - multiprocessing's name
        self, *, target: Callable[..., object], args: tuple[Any, ...]
    ) -> Process: ...

    def Pipe(self) -> tuple[Connection, Connection]: ...  # noqa: N802

    def get_start_method(self) -> str | None: ...


def warm(module: str, threads: int = 1, also: Sequence[str] = ()) -> Context:
    """A process context whose children find `module` (and torch with it) imported already.

    The first child starts the server that all are forked from, so that a command without children pays for no
    imports. There is one server: modules that a later call adds are imported by its children themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        [module, "attnlab.sweep.execute.worker", *also]
    )
    return _Warm(threads)


_STARTING = threading.Lock()  # the environment is one for all threads


class _Warm:
    """The context "forkserver", whose server is started with this number of threads."""

    def __init__(self, threads: int) -> None:
        self._threads = str(threads)
        self._context = multiprocessing.get_context("forkserver")

    def Process(  # noqa: N802 - multiprocessing's name
        self, *, target: Callable[..., object], args: tuple[Any, ...]
    ) -> Process:
        _start_server(self._threads)
        return self._context.Process(target=target, args=args)

    def Pipe(self) -> tuple[Connection, Connection]:  # noqa: N802
        return self._context.Pipe()

    def get_start_method(self) -> str | None:
        return self._context.get_start_method()


def _start_server(threads: str) -> None:
    """Starts the server, unless it runs; its children have the environment that it was started with."""
    own = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)  # read when torch is loaded
    with _STARTING:
        temporary.shorten_socket_names()
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        resource_tracker.ensure_running()  # apart: it lets SIGINT through again once it runs
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C meanwhile is ours
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def find_server() -> int:
    """The number of the fork server's process; 0 where none was started."""
    server: Any = forkserver._forkserver
    return server._forkserver_pid or 0


def end_server() -> None:
    """Ends the server at once, also in the midst of its imports; its children live on without it."""
    with suppress(ProcessLookupError, ChildProcessError):
        if server := find_server():
            os.kill(server, signal.SIGKILL)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # `forkserver` itself reaps it
