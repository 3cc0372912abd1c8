"""The launcher `ray`: tasks of a Ray cluster, either a new one on this machine or an existing one.

Each task runs one worker of the command. Ray places the tasks and repeats those whose node or process is
lost. Surprising: `ray.init` installs its own SIGTERM handler, and Ray's calls swallow exceptions that a
handler raises, so SIGTERM is queued and acted on between Ray's calls. `ray.cancel` can abort the process that
calls it (2.60), so a file on the shared disk ends the tasks.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from attnlab.errors import InvalidConfig
from attnlab.store.config_groups import WorkLimits
from attnlab.store.lease import HOST, describe_owner, hold_lease, is_locked
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute.process_control import GRACE_SECONDS, collect_signals
from attnlab.sweep.execute.submission import Submitted
from attnlab.sweep.execute.work_folder import WorkFolder
from attnlab.sweep.launchers.worker_command import (
    build_worker_command,
    collect_forwarded_variables,
    compute_command_digest,
    count_gpus_per_worker,
    count_slots_per_worker,
    format_status_command,
)

_LOCAL_ADDRESS = "local"
_WAIT_KEY = "hydra.launcher.wait="
_MAX_RETRIES = 3  # of a task whose node or process is lost
_NODE_CHECK_INTERVAL = 10.0  # seconds between two checks of the nodes
_NODE_PATIENCE = 60.0  # seconds for a node with the required resources to return


@contextmanager
def open_ray_workers(
    folder: WorkFolder, runs: Sequence[RunConfig], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator["RayWorkers"]:
    """Connect to the cluster within the block; the workers end with it.

    Raises:
        InvalidConfig: an option is invalid, the cluster is unreachable, or no node has the resources.
        Submitted: under `wait=false`, since a process in the background goes on.
    """
    cpus = options["num_cpus"]
    if cpus <= 0:
        raise InvalidConfig(f"hydra.launcher.num_cpus={cpus:g}: must be above 0")
    gpus = count_gpus_per_worker(runs, options["num_gpus"], "hydra.launcher.num_gpus")
    required_resources = {"CPU": cpus, "GPU": gpus, **(options["resources"] or {})}
    own_folder = folder.root.absolute() / "ray" / compute_command_digest()
    own_folder.mkdir(parents=True, exist_ok=True)
    _enable_token_auth(options["address"])
    import ray  # late: it reads how to authenticate as soon as it is imported

    with _connect_cluster(ray, options["address"], options["init"] or {}) as act_on_signals:
        if reason := _explain_missing_resources(ray, required_resources):
            raise InvalidConfig(reason)
        if not options["wait"]:
            _leave_to_background(own_folder)
        limits = WorkLimits(
            slots=count_slots_per_worker(runs, gpus, settings),
            threads=max(1, int(cpus)),
            ends_with_parent=True,
        )
        workers = RayWorkers(
            ray, required_resources, settings.get("slots"), limits, own_folder, act_on_signals
        )
        with _hold_command_lease(own_folder):
            try:
                yield workers
            finally:
                workers.stop()


@contextmanager
def _hold_command_lease(own_folder: Path) -> Iterator[None]:
    """Show other processes that this one carries out the command, unless another one does so too."""
    with ExitStack() as stack:
        with suppress(Timeout):
            stack.enter_context(hold_lease(own_folder, timeout_seconds=1.0))
        yield


def _leave_to_background(own_folder: Path) -> None:
    """Start a process that carries out the command and waits for it, unless there is one.

    Raises:
        Submitted: always.
    """
    log = own_folder / "log.txt"
    if is_locked(own_folder):
        owner, text = describe_owner(own_folder), "nothing submitted: this command runs already"
    else:
        words = [word for word in sys.argv[1:] if not word.lstrip("+").startswith(_WAIT_KEY)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "attnlab", *words, f"{_WAIT_KEY}true"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        owner, text = f"{HOST}, pid {process.pid}", "submitted: this command runs"
    raise Submitted(
        f"{text} in the background on {owner}\nlog: {log}\nstatus: {format_status_command()}\n"
        f"stop: kill {owner.rpartition(' ')[2]}"
    )


class RayWorkers:
    """The workers of a command on a Ray cluster."""

    poll_seconds = 0.5

    def __init__(
        self,
        ray: Any,
        required_resources: Mapping[str, float],
        max_workers: int | None,
        limits: WorkLimits,
        own_folder: Path,
        act_on_signals: Callable[[], None],
    ) -> None:
        self._ray = ray
        self._required_resources = required_resources
        self._max_workers = max_workers
        self._act_on_signals = act_on_signals
        self._stop_file = own_folder / f"stop-{uuid.uuid4().hex}"
        environment = collect_forwarded_variables()
        environment |= {} if required_resources["GPU"] else {"CUDA_VISIBLE_DEVICES": ""}
        self._arguments = build_worker_command(limits), os.getcwd(), environment, str(self._stop_file)
        custom = {name: amount for name, amount in required_resources.items() if name not in ("CPU", "GPU")}
        self._task = ray.remote(
            num_cpus=required_resources["CPU"],
            num_gpus=required_resources["GPU"],
            resources=custom,
            max_retries=_MAX_RETRIES,
        )(_run_worker)
        self._running: list[Any] = []
        self._nodes_checked_at = self._capacity_seen_at = time.monotonic()

    def request(self, count: int) -> None:
        """Start tasks until `count` of them run or wait for their resources."""
        self.count_alive()
        missing = min(count, self._max_workers or count) - len(self._running)
        self._running += [self._task.remote(*self._arguments) for _ in range(missing)]

    def count_alive(self) -> int:
        """Count the workers that run or will run; 0 if no node has had the resources for _NODE_PATIENCE.

        Raises:
            InvalidConfig: a node does not see the files of the command.
        """
        ended, self._running = (
            self._ray.wait(self._running, num_returns=max(1, len(self._running)), timeout=0)
            if self._running
            else ([], [])
        )
        self._act_on_signals()
        for task in ended:
            with suppress(self._ray.exceptions.RayError):  # its node or process was lost too often
                if isinstance(problem := self._ray.get(task), str):
                    raise InvalidConfig(problem)
        return 0 if self._has_lost_capacity() else len(self._running)

    def _has_lost_capacity(self) -> bool:
        now = time.monotonic()
        if now - self._nodes_checked_at >= _NODE_CHECK_INTERVAL:
            self._nodes_checked_at = now
            if _explain_missing_resources(self._ray, self._required_resources) is None:
                self._capacity_seen_at = now
        return now - self._capacity_seen_at > _NODE_PATIENCE

    def cancel_pending(self) -> None:
        """Do nothing: tasks that wait for resources end with the command."""

    def stop(self) -> None:
        """End the workers, whose runs save checkpoints, and wait for them until a further interrupt."""
        self._stop_file.touch()
        with collect_signals() as signals:
            deadline = time.monotonic() + GRACE_SECONDS + 5
            while self._running and not signals and time.monotonic() < deadline:
                _, self._running = self._ray.wait(self._running, num_returns=len(self._running), timeout=0.5)
        self._stop_file.unlink(missing_ok=True)


def _run_worker(
    arguments: list[str], working_dir: str, environment: dict[str, str], stop_file: str
) -> int | str:
    """Run a worker on the node of this task until it ends or the command does; return its exit status.

    A node that does not see the command's working directory returns a message.
    """
    for path in (os.path.dirname(stop_file), working_dir):
        if not os.path.isdir(path):
            return (
                f"{HOST} cannot access {path}: put paths.runs and the working directory on a disk that all "
                "nodes share"
            )
    if os.path.exists(stop_file):
        return 0
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=working_dir, env={**os.environ, **environment},
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while (status := process.poll()) is None:
        time.sleep(0.2)
        if os.path.exists(stop_file):
            process.terminate()
            return process.wait()
    return status


def _enable_token_auth(address: str) -> None:
    """Set RAY_AUTH_MODE=token if a token is configured; clusters require it since Ray 2.59."""
    token_paths = [os.environ.get("RAY_AUTH_TOKEN_PATH"), "~/.ray/auth_token"]
    has_token_file = any(Path(path).expanduser().is_file() for path in token_paths if path)
    if address != _LOCAL_ADDRESS and (has_token_file or os.environ.get("RAY_AUTH_TOKEN")):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _connect_cluster(ray: Any, address: str, init_options: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
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


def _explain_missing_resources(ray: Any, required_resources: Mapping[str, float]) -> str | None:
    """Explain why no live node can take a worker; None if one can. Ray itself would wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in required_resources.items()) for node in nodes):
        return None
    required = ", ".join(f"{amount:g} {name}" for name, amount in required_resources.items() if amount)
    largest = ", ".join(
        f"{max((n.get(name, 0) for n in nodes), default=0):g} {name}" for name in required_resources
    )
    return (
        f"a worker needs {required}, but no node of the Ray cluster has that many (largest: {largest}): "
        "reduce the resources in hydra.launcher, or add a node"
    )


def _format_first_line(error: BaseException) -> str:
    return " ".join((str(error).strip().splitlines() or [type(error).__name__])[0].split())
