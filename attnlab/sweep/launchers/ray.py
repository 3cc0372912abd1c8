"""The launcher `ray`: runs as tasks of a Ray cluster, either a new one on this machine or an existing one.

Each task starts one worker, whose outcome is read from the run directory. Ray restarts nothing: a run that
lost its node is a recorded failure. Surprising: `ray.init` installs its own SIGTERM handler, and Ray's calls
swallow exceptions that a handler raises. So this module queues SIGTERM and acts on it between Ray's calls.

Only this module uses Ray's `internal_kv`, where attempts read whether to stop. The public alternatives cost
runs: `ray.cancel` can abort the process that calls it (2.60). A task that waits for an actor (`ray.get`)
releases its CPU meanwhile, and Ray starts another run on it.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.run_schema import Status
from attnlab.sweep.execute.process_control import GRACE_SECONDS, NOT_TAKEN, collect_signals
from attnlab.sweep.execute.progress import Progress, watch_runs
from attnlab.sweep.launchers.attempt import (
    Attempt,
    count_gpus_per_run,
    create_attempts,
    import_library,
    list_started_runs,
    record_lost_attempt,
)
from attnlab.sweep.launchers.node_quarantine import NodeQuarantine

_LOCAL_ADDRESS = "local"
_NODE_CHECK_INTERVAL = 10.0  # seconds between two checks of the nodes
_NODE_PATIENCE = 60.0  # seconds for a node with the required resources to return


def launch_on_ray(
    folders: Sequence[Path],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    quarantine: NodeQuarantine,
) -> None:
    """Train the stored runs on a Ray cluster.

    Args:
        folders: run directories, on a disk that all nodes share.
        settings: the config group `sweep`.
        options: the fields of RayLauncherConf.
        quarantine: nodes that get no run.

    Raises:
        InvalidConfig: an option is invalid, the cluster is unreachable, or no node has the resources.
    """
    if quarantine.is_exhausted:
        return
    required_resources = get_required_resources(folders, options)
    ray = import_ray(options["address"])
    with connect_cluster(ray, options["address"], options["init"] or {}) as act_on_signals:
        require_resources(ray, required_resources)
        attempts = create_attempts(folders, settings, threads=max(1, int(required_resources["CPU"])))
        with watch_runs(folders) as progress:
            runner = _TaskRunner(ray, required_resources, settings, progress, quarantine)
            runner.run(folders, attempts, act_on_signals)


def get_required_resources(folders: Sequence[Path], options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources per run, by Ray's name."""
    cpus = options["num_cpus"]
    if cpus <= 0:
        raise InvalidConfig(f"hydra.launcher.num_cpus={cpus:g}: must be above 0")
    gpus = count_gpus_per_run(folders, options["num_gpus"], "hydra.launcher.num_gpus")
    return {"CPU": cpus, "GPU": gpus, **(options["resources"] or {})}


def require_resources(ray: Any, required_resources: Mapping[str, float]) -> None:
    """Check that a node has the resources of a run.

    Raises:
        InvalidConfig: none has them.
    """
    if reason := _explain_missing_resources(ray, required_resources):
        raise InvalidConfig(reason)


def _enable_token_auth(address: str) -> None:
    """Set RAY_AUTH_MODE=token if a token is configured; clusters require it since Ray 2.59."""
    token_paths = [os.environ.get("RAY_AUTH_TOKEN_PATH"), "~/.ray/auth_token"]
    has_token_file = any(Path(path).expanduser().is_file() for path in token_paths if path)
    if address != _LOCAL_ADDRESS and (has_token_file or os.environ.get("RAY_AUTH_TOKEN")):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def import_ray(address: str) -> Any:
    """Import Ray, which reads how to authenticate at a cluster as soon as it is imported."""
    _enable_token_auth(address)
    return import_library("ray", "ray")


@contextmanager
def connect_cluster(ray: Any, address: str, init_options: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
    """Connect to a cluster within the block; yield a function that acts on a SIGTERM that came meanwhile.

    Raises:
        InvalidConfig: the cluster is unreachable.
    """
    paths = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    defaults: dict[str, Any] = {
        "address": address, "log_to_driver": False, "logging_level": "ERROR",
        "runtime_env": {"env_vars": {"PYTHONPATH": paths}},  # nodes import attnlab from the same checkout
    }  # fmt: skip
    if address == _LOCAL_ADDRESS:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        defaults |= {"include_dashboard": False, "object_store_memory": 100_000_000}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**{**defaults, **init_options})
        except (ConnectionError, RuntimeError, ValueError, TypeError, ray.exceptions.RayError) as error:
            raise InvalidConfig(
                f"hydra.launcher.address={address}: {_format_first_line(error)} (a cluster with "
                "tokens needs RAY_AUTH_MODE=token and its token in ~/.ray/auth_token)"
            ) from error
        pending_signals: list[Any] = []
        signal.signal(signal.SIGTERM, lambda *arguments: pending_signals.append(arguments))
        yield lambda: handler(*pending_signals.pop()) if pending_signals and callable(handler) else None
    finally:
        with suppress(Exception):
            ray.shutdown()
        signal.signal(signal.SIGTERM, handler)


def _explain_missing_resources(
    ray: Any, required_resources: Mapping[str, float], excluded: Collection[str] = ()
) -> str | None:
    """Explain why no live node can take a run; None if one can. Ray itself would wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in excluded]
    if any(all(node.get(name, 0) >= amount for name, amount in required_resources.items()) for node in nodes):
        return None
    required = ", ".join(f"{amount:g} {name}" for name, amount in required_resources.items() if amount)
    largest = ", ".join(
        f"{max((n.get(name, 0) for n in nodes), default=0):g} {name}" for name in required_resources
    )
    return (
        f"a run needs {required}, but no node of the Ray cluster has that many (largest: {largest}): "
        "reduce the resources in hydra.launcher, or add a node"
    )


class _TaskRunner:
    def __init__(
        self,
        ray: Any,
        required_resources: Mapping[str, float],
        settings: Mapping[str, Any],
        progress: Progress,
        quarantine: NodeQuarantine,
    ) -> None:
        self.ray = ray
        self.quarantine = quarantine
        self.required_resources = required_resources
        self.progress = progress
        self.fail_fast, self.max_running = bool(settings.get("fail_fast")), settings.get("slots")
        self.stop_key = f"attnlab-stop-{os.getpid()}-{time.time_ns()}"
        custom = {name: amount for name, amount in required_resources.items() if name not in ("CPU", "GPU")}
        task_options = {
            "num_cpus": required_resources["CPU"],
            "num_gpus": required_resources["GPU"],
            "resources": custom,
        }
        self.task = ray.remote(**task_options, max_retries=0)(_run_attempt)
        self._exclude_nodes()
        self.started_at = self.nodes_checked_at = self.capacity_seen_at = time.time()

    def run(
        self, folders: Sequence[Path], task_attempts: Sequence[Attempt], act_on_signals: Callable[[], None]
    ) -> None:
        pending = list(zip(folders, task_attempts, strict=True))[::-1]
        running: dict[Any, tuple[Path, Attempt]] = {}
        try:
            while pending or running:
                while pending and len(running) < (self.max_running or len(folders)):
                    folder, attempt = pending.pop()
                    running[self.task.remote(attempt, self.stop_key)] = folder, attempt
                ended, _ = self.ray.wait(list(running), timeout=0.2)
                act_on_signals()
                unfinished = [folder for folder, _ in running.values()]
                self.progress.refresh(list_started_runs(unfinished, self.started_at))
                for reference in ended:
                    folder, attempt = running.pop(reference)
                    if self._finish_attempt(reference, folder) == NOT_TAKEN:
                        pending.append((folder, attempt))
                        continue
                    record = run_directories.load_run_result(folder)
                    self.progress.finish_run(folder, record)
                    if self.quarantine.check_node(folder, folders, self.progress):
                        self._exclude_nodes()
                    if self.quarantine.is_exhausted or (
                        self.fail_fast and (record is None or not record.is_done)
                    ):
                        return
                if reason := self._detect_lost_capacity():
                    self.progress.print_line(f"{reason}: the remaining runs were not started")
                    return
        finally:
            self._stop_tasks(list(running))

    def _exclude_nodes(self) -> None:
        """Keep runs from the nodes in quarantine, also those that Ray has queued already."""
        nodes = sorted(self.quarantine.nodes)
        if not nodes:
            return
        for node in nodes:
            self.ray.experimental.internal_kv._internal_kv_put(f"{self.stop_key}-{node}", "stop")
        self.task = self.task.options(label_selector={"ray.io/node-id": f"!in({','.join(nodes)})"})
        if _explain_missing_resources(self.ray, self.required_resources, nodes):
            self.quarantine.stop_launching(self.progress)

    def _finish_attempt(self, reference: Any, folder: Path) -> int | None:
        """Return the exit status of an attempt; if Ray lost it or it raised, record the run as killed."""
        errors = self.ray.exceptions
        status: Status
        try:
            return int(self.ray.get(reference))
        except errors.OutOfMemoryError:
            status = "host_out_of_memory"
            message = "the node ran out of memory, and Ray killed the worker"
        except errors.RayTaskError as error:  # of the attempt; the worker records errors of the run
            status = "killed"
            message = f"the attempt failed: {_format_first_line(error.cause or error)}"
        except errors.RayError as error:
            status = "killed"
            message = f"Ray lost the worker or its node: {_format_first_line(error)}"
        record_lost_attempt(folder, status, message, self.started_at, self.progress)
        return None

    def _detect_lost_capacity(self) -> str | None:
        """Explain why no node has had the resources for _NODE_PATIENCE seconds; else None.

        The nodes are checked every _NODE_CHECK_INTERVAL seconds.
        """
        now = time.time()
        if now - self.nodes_checked_at < _NODE_CHECK_INTERVAL:
            return None
        self.nodes_checked_at = now
        reason = _explain_missing_resources(self.ray, self.required_resources, self.quarantine.nodes)
        if reason is None:
            self.capacity_seen_at = now
        return reason if now - self.capacity_seen_at > _NODE_PATIENCE else None

    def _stop_tasks(self, references: list[Any]) -> None:
        if not references:
            return
        with collect_signals() as signals:
            self.ray.experimental.internal_kv._internal_kv_put(self.stop_key, "stop")
            deadline = time.monotonic() + GRACE_SECONDS + 5
            while references and not signals and time.monotonic() < deadline:
                _, references = self.ray.wait(references, num_returns=len(references), timeout=0.5)


def _run_attempt(attempt: Attempt, stop_key: str) -> int:
    """Run an attempt; return NOT_TAKEN if its node has been put in quarantine meanwhile."""
    from ray import get_runtime_context
    from ray.experimental.internal_kv import _internal_kv_exists

    node = get_runtime_context().get_node_id()
    if _internal_kv_exists(f"{stop_key}-{node}"):
        return NOT_TAKEN
    return attempt(lambda: _internal_kv_exists(stop_key), node)


def _format_first_line(error: BaseException) -> str:
    return " ".join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
