"""Processes that find torch already imported: children of `multiprocessing`'s fork server.

The one module that uses `multiprocessing.forkserver` and `multiprocessing.resource_tracker`. The public API
can neither start the server ahead of its first child, with an environment and a signal mask of its own, nor
return its process id. Waiting for the first child instead would block Ctrl-C for seconds of imports.
"""

import errno
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Protocol

from attnlab.store import socket_names

MIN_OPEN_FILES = 64


class Process(Protocol):
    """A child process, with the interface of `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...


class Context(Protocol):
    """The part of a `multiprocessing` context that a sweep uses: processes, and pipes to them."""

    def Process(  # noqa: N802 - multiprocessing's name
        self, *, target: Callable[..., object], args: tuple[Any, ...]
    ) -> Process: ...

    def Pipe(self) -> tuple[Connection, Connection]: ...  # noqa: N802

    def get_start_method(self) -> str | None: ...


def make_warm_context(module: str, threads: int = 1, extra_modules: Sequence[str] = ()) -> Context:
    """Return a process context whose children find `module` (and torch with it) already imported.

    The first child starts the server that all children are forked from, so a command without children pays no
    imports. There is only one server: children import the modules that a later call adds themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        [module, "attnlab.sweep.execute.worker", *extra_modules]
    )
    return _WarmContext(threads)


_SERVER_LOCK = threading.Lock()  # all threads share one environment


class _WarmContext:
    """The "forkserver" context, whose server is started with a given number of threads."""

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
    """Start the server unless it runs; its children inherit the environment that it was started with."""
    if (
        resource.getrlimit(resource.RLIMIT_NOFILE)[0] < MIN_OPEN_FILES
    ):  # with fewer, the server may never answer
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)  # read when torch is loaded
    with _SERVER_LOCK:
        socket_names.shorten_socket_names()
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        resource_tracker.ensure_running()  # separately, since it unblocks SIGINT once it runs
        mask = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT}
        )  # a Ctrl-C meanwhile reaches this process only
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def find_server_pid() -> int:
    """Return the process id of the fork server, or 0 if none was started."""
    server: Any = forkserver._forkserver
    return server._forkserver_pid or 0


def kill_server() -> None:
    """Kill the server at once, even during its imports; its children live on without it."""
    with suppress(ProcessLookupError, ChildProcessError):
        if server := find_server_pid():
            os.kill(server, signal.SIGKILL)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # `forkserver` itself reaps it
