"""Checks of composed configs in one warm child process, so that the planning process never imports torch.

The child is forked from the server that later forks the runs, so the first run finds torch imported.
"""

import io
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from attnlab.errors import InvalidConfig, describe_exit, escape_unprintable
from attnlab.store.guards import inputs
from attnlab.store.run_schema import RunEstimate, convert_validation_error
from attnlab.sweep.plan import check_cache
from attnlab.sweep.plan.fork_server import Context, Process
from attnlab.sweep.plan.trainer import load_trainer


class Checker:
    """Client of the process that runs a trainer's checks; the context manager ends that process."""

    def __init__(self, context: Context, module: str) -> None:
        self.module = module
        self._context = context
        self._process: Process | None = None
        self._pipe: Connection | None = None  # opened by the first request: until then the server imports

    def check(self, config: Mapping[str, Any]) -> RunEstimate:
        """Return the trainer's estimate, cached per config, code, device and data (see `check_cache`)."""
        inputs.validate_inputs(config)
        inputs.require_data_files(config)  # before the server has imported the trainer
        answer = check_cache.load_or_run_check(
            config, self.module, lambda: self._query_child(self.module, "check", config)
        )
        try:
            return RunEstimate.model_validate(answer)
        except ValidationError as error:
            raise convert_validation_error(error, f"{self.module}.check") from error

    def count_resource(self, config: Mapping[str, Any], name: str) -> float:
        """Return one entry of the trainer's estimate, for a config that is only a trial."""
        inputs.validate_inputs(config)
        return float(self._query_child(self.module, "count_resource", config, name))

    def find_broken_invariants(self, config: Mapping[str, Any]) -> list[str]:
        """Return a line per invariant that fails in the trainer's `verify(config)`."""
        broken: list[str] = self._query_child(self.module, "verify", config)
        return broken

    def _query_child(self, module: str, function: str, config: Mapping[str, Any], *of: str) -> Any:
        kind, answer = self._send_request((module, function, dict(config), *of))
        if kind == "refused":
            raise InvalidConfig(answer)
        if kind == "bug":
            raise RuntimeError(f"{module}.{function} failed:\n{answer}")
        return answer

    def _send_request(self, request: Any) -> tuple[str, Any]:
        if self._pipe is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=serve_requests, args=(theirs,))
            try:
                self._process.start()
            except EOFError as error:
                raise InvalidConfig(
                    f"the process that imports {self.module} ended, with the error above: check environment "
                    "variables that torch reads, such as TORCH_LOGS"
                ) from error
            theirs.close()
        try:
            self._pipe.send(request)
            answer: tuple[str, Any] = self._pipe.recv()
            while answer[0] == "printed":  # by this process: the command's display may be on the terminal
                print(escape_unprintable(answer[1]), file=sys.stderr, flush=True)
                answer = self._pipe.recv()
            return answer
        except (EOFError, OSError) as error:
            raise InvalidConfig(
                f"the process that checks configs for {self.module} ended{self._describe_exit()}: a part of "
                "the config ends it, or memory ran out"
            ) from error

    def _describe_exit(self) -> str:
        assert self._process is not None
        self._process.join(2)
        code = self._process.exitcode
        return f" by signal {-code}" if code and code < 0 else f" with status {code}"

    def close(self) -> None:
        """End the child process, by force if it does not stop within two seconds."""
        if self._pipe is None:
            return
        with suppress(OSError):
            self._pipe.close()
        if self._process is None or self._process.pid is None:  # interrupted before it started
            return
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_requests(pipe: Connection) -> None:
    """Answer requests in the child until the pipe closes.

    Each answer is ("found", value), ("refused", line) or ("bug", traceback). Before it come the lines that
    the request printed, each as ("printed", line).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process by closing the pipe
    output = _SentOutput(pipe)
    with suppress(EOFError, BrokenPipeError), redirect_stdout(output), redirect_stderr(output):
        while True:
            answer = _handle_request(*pipe.recv())
            with output.lock:
                pipe.send(answer)


class _SentOutput(io.TextIOBase):
    """Text stream whose complete lines are sent through the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self.lock = threading.RLock()
        self._pipe = pipe
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self.lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._pipe.send(("printed", line))
        return len(text)


def _get_device_override(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the device fields of the estimate if `sweep.device` names the kind that runs will train on."""
    kind = (config.get("sweep") or {}).get("device")
    return {"device_kind": kind, "device": kind} if kind else {}


def _handle_request(module: str, function: str, config: dict[str, Any], *of: str) -> tuple[str, Any]:
    try:
        trainer = load_trainer(module)
        if function == "count_resource":
            count = getattr(trainer, "count_resource", lambda config, name: trainer.check(config)[name])
            return "found", count(config, *of)
        if function == "check":
            return "found", {"device_kind": "cpu", **trainer.check(config), **_get_device_override(config)}
        outcomes = trainer.verify(config)
        return "found", [
            f"{outcome.invariant}: {outcome.detail}" for outcome in outcomes if outcome.status == "failed"
        ]
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        text = str(error.__cause__ or error) if isinstance(error, HydraException) else str(error)
        return "refused", " ".join(text.split())
    except (SystemExit, KeyboardInterrupt) as error:  # Ctrl-C is ignored here
        return "refused", describe_exit(error)
    except BaseException:
        return "bug", traceback.format_exc()
