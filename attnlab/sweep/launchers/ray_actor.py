"""`hydra.launcher.wait=false` on Ray: a detached actor runs the command, which waits there, and ends with it.

The actor is on the node of the command that creates it, so that both see the same GPUs, files and packages.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store.lease import HOST
from attnlab.sweep.execute.chain import compute_command_digest
from attnlab.sweep.execute.submission import Submitted
from attnlab.sweep.launchers.attempt import collect_forwarded_variables, import_library
from attnlab.sweep.launchers.ray import connect_cluster, get_required_resources, import_ray, require_resources
from attnlab.sweep.launchers.repeated_command import (
    RepeatedCommand,
    format_status_command,
    repeat_this_command,
)

NAMESPACE = "attnlab"
_START_SECONDS = 60.0  # to start an actor
_WAIT_KEY = "hydra.launcher.wait="


class CommandActor:
    """Actor that starts the command and ends with it."""

    def __init__(self, command: RepeatedCommand) -> None:
        self.process = command.start()

    def run(self) -> None:
        """Wait for the end of the command, and end the actor."""
        ray: Any = import_library("ray", "ray")
        while self.process.poll() is None:
            time.sleep(0.5)
        ray.actor.exit_actor()

    def describe(self) -> str:
        """Return the host and process id of the command."""
        return f"{HOST}, pid {self.process.pid}"


def submit_to_ray(folders: Sequence[Path], settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Start an actor that runs the command, unless there is one already.

    Args:
        folders: run directories, on a disk that all nodes share.
        settings: the config group `sweep`.
        options: the fields of RayLauncherConf.

    Raises:
        InvalidConfig: an option is invalid, the cluster is unreachable, no node has the resources, or the
            actor does not start.
        Submitted: otherwise.
    """
    required_resources = get_required_resources(folders, options)
    name = f"attnlab-{compute_command_digest()}"
    log = folders[0].parent.absolute() / "ray" / f"{name}.log"
    ray = import_ray(options["address"])
    with connect_cluster(ray, options["address"], options["init"] or {}):
        require_resources(ray, required_resources)
        try:
            actor, text = (
                ray.get_actor(name, namespace=NAMESPACE),
                "nothing submitted: this command runs already",
            )
        except ValueError:  # there is none
            log.parent.mkdir(parents=True, exist_ok=True)
            actor, text = _create_actor(ray, name, log), f"submitted {len(folders)} runs: this command runs"
        try:
            process = ray.get(actor.describe.remote(), timeout=_START_SECONDS)
        except ray.exceptions.RayError as error:
            raise InvalidConfig(
                f"hydra.launcher.wait=false: the actor {name} does not answer ({type(error).__name__}): "
                "repeat the command, or remove hydra.launcher.wait"
            ) from error
    raise Submitted(
        f"{text} as the Ray actor {name} on {process}\n"
        f"log: {log}\nstatus: {format_status_command()}\nstop: kill {process.rpartition(' ')[2]}"
    )


def _create_actor(ray: Any, name: str, log: Path) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    variables = collect_forwarded_variables()
    variables |= {key: os.environ[key] for key in ("CUDA_VISIBLE_DEVICES",) if key in os.environ}
    command = repeat_this_command(variables, cpu_only=False, log=log)
    words = [word for word in command.arguments if not word.lstrip("+").startswith(_WAIT_KEY)]
    node = ray.get_runtime_context().get_node_id()
    actor_class = ray.remote(num_cpus=0, max_concurrency=2)(CommandActor).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    actor = actor_class.remote(replace(command, arguments=[*words, f"{_WAIT_KEY}true"]))
    actor.run.remote()
    return actor
