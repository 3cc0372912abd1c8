"""Subprocesses of attnlab for benchmarks, each in its own process group."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from attnlab.sweep.execute import process_control, worker_slots

EXIT_INVALID = 2  # exit status of an invalid command
GRACE_SECONDS = process_control.GRACE_SECONDS + 5  # a sweep gives its runs GRACE_SECONDS


class _CommandProcess:
    """Adapter of a subprocess for `worker_slots.stop_children`."""

    def __init__(self, command: subprocess.Popen[str]) -> None:
        self.pid = command.pid
        self._command = command

    def poll_exit_code(self) -> int | None:
        return self._command.poll()


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run attnlab and capture its output; a signal stops the command before it propagates."""
    pipe = subprocess.PIPE
    command = subprocess.Popen(
        [sys.executable, "-m", "attnlab", *arguments],
        env={**os.environ, **(environment or {})}, start_new_session=True,
        stdout=pipe, stderr=pipe, text=True,
    )  # fmt: skip
    try:
        out, errors = command.communicate()
    except BaseException:
        worker_slots.stop_children([_CommandProcess(command)], GRACE_SECONDS)
        raise
    return subprocess.CompletedProcess(command.args, command.returncode, out, errors)
