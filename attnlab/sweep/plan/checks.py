"""Checks of composed configs, in one warm child process, so that the process that plans never imports torch.

The child is forked from the server that later forks the runs: what it waits for, the first run finds ready.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from attnlab.errors import Refused
from attnlab.store import temporary
from attnlab.store.guards import inputs
from attnlab.store.schema import Estimate, reading
from attnlab.sweep.plan import kept
from attnlab.sweep.plan.trainer import trainer


class Context(Protocol):
    """What is asked of a `multiprocessing` context: processes, and a pipe to one."""

    def Process(  # noqa: N802 - multiprocessing's name
        self, *, target: Callable[..., object], args: tuple[Any, ...]
    ) -> BaseProcess: ...

    def Pipe(self) -> tuple[Connection, Connection]: ...  # noqa: N802

    def get_start_method(self) -> str | None: ...


def warm(module: str, threads: int = 1, also: Sequence[str] = ()) -> Context:
    """A process context whose children find `module` (and torch with it) imported already.

    The server that they are forked from is started by the first of them, so that who needs none pays for no
    imports; and once: what a later call asks for beside that, its children import themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = _Warm(threads)
    context.set_forkserver_preload([module, "attnlab.sweep.execute.worker", *also])
    return context


_STARTING = threading.Lock()  # the environment is one for all threads


class _Warm(BaseContext):
    _name: Literal["forkserver"] = "forkserver"

    def __init__(self, threads: int) -> None:
        self._threads = str(threads)

    def Process(  # noqa: N802 - multiprocessing's name
        self, *, target: Callable[..., object], args: tuple[Any, ...]
    ) -> BaseProcess:
        told = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), self._threads)  # read when loaded
        with _STARTING:
            temporary.shorten_socket_names()
            before = {name: os.environ.get(name) for name in told}
            os.environ.update(told)
            resource_tracker.ensure_running()  # apart: it lets SIGINT through again once it runs
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C meanwhile is ours
            try:
                forkserver.ensure_running()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                for name, value in before.items():
                    os.environ.pop(name) if value is None else os.environ.update({name: value})
        return multiprocessing.get_context(self._name).Process(target=target, args=args)


def find_server() -> int:
    """The number of the fork server's process; 0 where there is none."""
    server: Any = getattr(forkserver, "_forkserver")  # noqa: B009 - without a public way to its process
    return server._forkserver_pid or 0


def end_server() -> None:
    """Ends the server at once, also in the midst of its imports; its children live on without it."""
    with suppress(ProcessLookupError):
        if server := find_server():
            os.kill(server, signal.SIGKILL)
            getattr(forkserver, "_forkserver")._stop()  # noqa: B009


class Checker:
    """`check(config)` of the trainer, at arm's length: an estimate, or Refused with one line."""

    def __init__(self, context: Context, module: str) -> None:
        self.module = module
        self._context = context
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None  # started by the first question: until then the server imports

    def check(self, config: Mapping[str, Any]) -> Estimate:
        """The trainer's answer, asked once per config, code, device and data: see `kept`."""
        inputs.check(config)
        answer = kept.remembered(config, self.module, lambda: self._answer(self.module, "check", config))
        try:
            return Estimate.model_validate(answer)
        except ValidationError as error:
            raise reading(error, f"{self.module}.check") from error

    def broken_laws(self, config: Mapping[str, Any]) -> list[str]:
        """What `verify(config)` of the trainer finds to have failed."""
        broken: list[str] = self._answer(self.module, "verify", config)
        return broken

    def _answer(self, module: str, question: str, config: Mapping[str, Any]) -> Any:
        kind, answer = self._ask((module, question, dict(config)))
        if kind == "refused":
            raise Refused(answer)
        if kind == "bug":
            raise RuntimeError(f"{module}.{question} failed:\n{answer}")
        return answer

    def _ask(self, question: Any) -> tuple[str, Any]:
        if self._pipe is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=serve, args=(theirs,))
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(question)
            answer: tuple[str, Any] = self._pipe.recv()
            return answer
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the process that checks configs died ({self.module})") from error

    def close(self) -> None:
        if self._pipe is None:
            return
        with suppress(OSError):
            self._pipe.close()
        if self._process is None or self._process.pid is None:  # interrupted before it was there
            return
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(pipe: Connection) -> None:
    """Answer (module, question, config) with ("found", ...), ("refused", line) or ("bug", traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asker ends us by closing the pipe
    with suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(_answer(*pipe.recv()))


def _elsewhere(config: Mapping[str, Any]) -> dict[str, str]:
    """Where the runs will train on another kind of device than the one that is here."""
    kind = (config.get("sweep") or {}).get("device")
    return {"device_kind": kind, "device": kind} if kind else {}


def _answer(module: str, question: str, config: dict[str, Any]) -> tuple[str, Any]:
    try:
        asked = trainer(module)
        if question == "check":
            return "found", {"device_kind": "cpu", **asked.check(config), **_elsewhere(config)}
        outcomes = asked.verify(config)
        return "found", [
            f"{outcome.law}: {outcome.detail}" for outcome in outcomes if outcome.status == "failed"
        ]
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        text = str(error.__cause__ or error) if isinstance(error, HydraException) else str(error)
        return "refused", " ".join(text.split())
    except Exception:
        return "bug", traceback.format_exc()
