"""The command itself, repeated on a node of the cluster, so that nobody waits for it.

It is pickled, so it holds plain values and no secrets.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from attnlab.sweep.plan.provenance import MULTIRUN_FLAGS

# Of the job or task in which the command is repeated; they would steer the jobs and processes that it starts.
_JOB_PREFIXES = ("SLURM_", "SUBMITIT_", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")
_CLUSTER_VARIABLES = ("SLURM_CONF",)


@dataclass
class RepeatedCommand:
    """Command line to be repeated; paths are absolute.

    Attributes:
        environment: Variables that the command gets besides those of the node.
        log: File for its output; None leaves it to the job's log.
    """

    arguments: list[str]
    working_dir: str
    environment: dict[str, str]
    log: str | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command in a process group of its own."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_JOB_PREFIXES) or name in _CLUSTER_VARIABLES
        }
        # USR1 and USR2 warn the job, and a child inherits that they are blocked
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        try:
            with nullcontext() if self.log is None else Path(self.log).open("ab") as output:
                return subprocess.Popen(
                    [sys.executable, "-u", "-m", "attnlab", *self.arguments],
                    cwd=self.working_dir, env=environment | self.environment, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def repeat_this_command(
    variables: Mapping[str, str], cpu_only: bool, log: Path | None = None
) -> RepeatedCommand:
    """Describe this process's command.

    Args:
        variables: environment variables that it needs.
        cpu_only: whether its runs were planned for a CPU; all GPUs are hidden.
        log: file for its output; None leaves it to the job's log.
    """
    environment = {**variables, **({"CUDA_VISIBLE_DEVICES": ""} if cpu_only else {})}
    return RepeatedCommand(sys.argv[1:], os.getcwd(), environment, None if log is None else str(log))


def format_status_command() -> str:
    """Return the command that shows the state of this command's runs."""
    words = [word for word in sys.argv[1:] if word not in MULTIRUN_FLAGS]
    return shlex.join(["python", "-m", "attnlab", "status", *words])
