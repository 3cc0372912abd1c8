"""Checks of composed configs, in one warm child process, so that the process that plans never imports torch.

The child is forked from the server that later forks the runs: what it waits for, the first run finds ready.
"""

import signal
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from attnlab.errors import Refused
from attnlab.store.guards import inputs
from attnlab.store.schema import Estimate, reading
from attnlab.sweep.plan import kept
from attnlab.sweep.plan.fork_server import Context, Process
from attnlab.sweep.plan.trainer import trainer


class Checker:
    """`check(config)` of the trainer, at arm's length: an estimate, or Refused with one line."""

    def __init__(self, context: Context, module: str) -> None:
        self.module = module
        self._context = context
        self._process: Process | None = None
        self._pipe: Connection | None = None  # started by the first question: until then the server imports

    def check(self, config: Mapping[str, Any]) -> Estimate:
        """The trainer's answer, asked once per config, code, device and data: see `kept`."""
        inputs.check(config)
        answer = kept.remembered(config, self.module, lambda: self._answer(self.module, "check", config))
        try:
            return Estimate.model_validate(answer)
        except ValidationError as error:
            raise reading(error, f"{self.module}.check") from error

    def count_resource(self, config: Mapping[str, Any], name: str) -> float:
        """One figure of what `check` returns, of a config that is only tried out."""
        inputs.check(config)
        return float(self._answer(self.module, "count_resource", config, name))

    def broken_laws(self, config: Mapping[str, Any]) -> list[str]:
        """What `verify(config)` of the trainer finds to have failed."""
        broken: list[str] = self._answer(self.module, "verify", config)
        return broken

    def _answer(self, module: str, question: str, config: Mapping[str, Any], *of: str) -> Any:
        kind, answer = self._ask((module, question, dict(config), *of))
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
    """Answer what `_answer` is asked with ("found", ...), ("refused", line) or ("bug", traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asker ends us by closing the pipe
    with suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(_answer(*pipe.recv()))


def _elsewhere(config: Mapping[str, Any]) -> dict[str, str]:
    """Where the runs will train on another kind of device than the one that is here."""
    kind = (config.get("sweep") or {}).get("device")
    return {"device_kind": kind, "device": kind} if kind else {}


def _answer(module: str, question: str, config: dict[str, Any], *of: str) -> tuple[str, Any]:
    try:
        asked = trainer(module)
        if question == "count_resource":
            count = getattr(asked, "count_resource", lambda config, name: asked.check(config)[name])
            return "found", count(config, *of)
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
