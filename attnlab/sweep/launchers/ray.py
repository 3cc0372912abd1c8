"""The launcher `ray`: runs as tasks of a Ray cluster, this machine's own or one that is there already.

Each task starts the one worker; what became of it is read from the store. Ray restarts nothing: a run that
lost its node is a recorded failure. Surprising: `ray.init` takes SIGTERM for itself, and what a handler
raises is lost within Ray's calls; so SIGTERM is noted here, and acted on between them.

The one module that uses Ray's `internal_kv`: attempts read there whether they are to stop. The public ways
cost runs: `ray.cancel` can abort the process that calls it (2.60), and a task that waits for an actor's
answer (`ray.get`) gives its CPU back meanwhile, in which Ray starts another run.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.schema import Status
from attnlab.sweep.execute.process import GRACE
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.launchers.attempt import Attempt, attempts, gpus, library, lost, started

_LOCAL = "local"
_LOOK = 10.0  # seconds between two looks at the nodes
_PATIENCE = 60.0  # seconds for a node with what a run needs to come back


def launch(folders: Sequence[Path], settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Train the stored runs on a cluster. `options`: the fields of RayLauncherConf."""
    cpus = options["num_cpus"]
    if cpus <= 0:
        raise Refused(f"hydra.launcher.num_cpus={cpus:g}: a run takes more than none")
    need = {
        "CPU": cpus,
        "GPU": gpus(folders, options["num_gpus"], "hydra.launcher.num_gpus"),
        **(options["resources"] or {}),
    }
    _find_token(options["address"])
    ray = library("ray", "ray")
    with _cluster(ray, options["address"], options["init"] or {}) as act_on_signals:
        if lack := _lacking(ray, need):
            raise Refused(lack)
        work = attempts(folders, settings, threads=max(1, int(cpus)))
        with Progress.of(folders) as progress:
            _Tasks(ray, need, settings, progress).run(folders, work, act_on_signals)


def _find_token(address: str) -> None:
    """Clusters since Ray 2.59 ask for a token, which the library sends only where it is told to."""
    places = [os.environ.get("RAY_AUTH_TOKEN_PATH"), "~/.ray/auth_token"]
    here = any(Path(place).expanduser().is_file() for place in places if place)
    if address != _LOCAL and (here or os.environ.get("RAY_AUTH_TOKEN")):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _cluster(ray: Any, address: str, more: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
    paths = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    given: dict[str, Any] = {
        "address": address, "log_to_driver": False, "logging_level": "ERROR",
        "runtime_env": {"env_vars": {"PYTHONPATH": paths}},  # a checkout is found as it is found here
    }  # fmt: skip
    if address == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        given |= {"include_dashboard": False, "object_store_memory": 100_000_000}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**{**given, **more})
        except (ConnectionError, RuntimeError, ValueError, TypeError, ray.exceptions.RayError) as error:
            raise Refused(
                f"hydra.launcher.address={address}: {_line(error)} (a cluster with tokens wants "
                f"RAY_AUTH_MODE=token and its token in ~/.ray/auth_token)"
            ) from error
        noted: list[Any] = []
        signal.signal(signal.SIGTERM, lambda *arguments: noted.append(arguments))
        yield lambda: handler(*noted.pop()) if noted and callable(handler) else None
    finally:
        with suppress(Exception):
            ray.shutdown()
        signal.signal(signal.SIGTERM, handler)


def _lacking(ray: Any, need: Mapping[str, float]) -> str | None:
    """Why no node can ever take a run; Ray itself would wait for one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= much for name, much in need.items()) for node in nodes):
        return None
    wanted = ", ".join(f"{much:g} {name}" for name, much in need.items() if much)
    most = ", ".join(f"{max((n.get(name, 0) for n in nodes), default=0):g} {name}" for name in need)
    return f"a run needs {wanted}, and no node of the Ray cluster has that (at most: {most})"


class _Tasks:
    def __init__(
        self, ray: Any, need: Mapping[str, float], settings: Mapping[str, Any], progress: Progress
    ) -> None:
        self.ray = ray
        self.need = need
        self.progress = progress
        self.fail_fast, self.most = bool(settings.get("fail_fast")), settings.get("slots")
        self.key = f"attnlab-stop-{os.getpid()}-{time.time_ns()}"
        own = {name: much for name, much in need.items() if name not in ("CPU", "GPU")}
        wanted = {"num_cpus": need["CPU"], "num_gpus": need["GPU"], "resources": own}
        self.task = ray.remote(**wanted, max_retries=0)(_attempt)
        self.began = self.looked = self.served = time.time()

    def run(
        self, folders: Sequence[Path], work: Sequence[Attempt], act_on_signals: Callable[[], None]
    ) -> None:
        waiting = list(zip(folders, work, strict=True))[::-1]
        running: dict[Any, Path] = {}
        try:
            while waiting or running:
                while waiting and len(running) < (self.most or len(folders)):
                    folder, attempt = waiting.pop()
                    running[self.task.remote(attempt, self.key)] = folder
                ended, _ = self.ray.wait(list(running), timeout=0.2)
                act_on_signals()
                self.progress.tick(started(running.values(), self.began))
                for reference in ended:
                    folder = running.pop(reference)
                    self._lost(reference, folder)
                    record = runs.record(folder)
                    self.progress.finished(folder, record)
                    if self.fail_fast and (record is None or not record.done):
                        return
                if lack := self._hopeless(running.values()):
                    self.progress.say(f"{lack}: the runs that are left were not started")
                    return
        finally:
            self._cancel(list(running))

    def _lost(self, reference: Any, folder: Path) -> None:
        """Where the attempt was lost, record that."""
        errors = self.ray.exceptions
        status: Status
        try:
            self.ray.get(reference)
            return
        except errors.OutOfMemoryError:
            status = "host_out_of_memory"
            message = "its node ran out of memory, and Ray ended the worker"
        except errors.RayTaskError as error:  # of the attempt: the worker records what the run itself raises
            status = "killed"
            message = f"the attempt failed: {_line(error.cause or error)}"
        except errors.RayError as error:
            status = "killed"
            message = f"Ray lost the worker or its node: {_line(error)}"
        lost(folder, status, message, self.began, self.progress)

    def _hopeless(self, folders: Any) -> str | None:
        """Nothing of ours runs, and for a while there has been no node where it could."""
        now = time.time()
        if now - self.looked < _LOOK:
            return None
        self.looked = now
        lack = _lacking(self.ray, self.need)
        if lack is None:
            self.served = now
        return lack if now - self.served > _PATIENCE else None

    def _cancel(self, references: list[Any]) -> None:
        if not references:
            return
        before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            self.ray.experimental.internal_kv._internal_kv_put(self.key, "stop")
            self.ray.wait(references, num_returns=len(references), timeout=GRACE + 5)
        finally:
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
                signal.signal(number, handler)


def _attempt(attempt: Attempt, key: str) -> int:
    from ray.experimental.internal_kv import _internal_kv_exists

    return attempt(lambda: _internal_kv_exists(key))


def _line(error: BaseException) -> str:
    return " ".join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
