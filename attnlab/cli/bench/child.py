"""Commands of attnlab that a bench starts and times, each in a process group of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from attnlab.sweep.execute import process, slots

REFUSED = 2  # the exit status of a line that cannot be carried out
GRACE = process.GRACE + 5  # a sweep gives its own runs that long


class _Child:
    """A command as `slots.end` sees it."""

    def __init__(self, command: subprocess.Popen[str]) -> None:
        self.pid = command.pid
        self._command = command

    def code(self) -> int | None:
        return self._command.poll()


def run_command(
    line: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run attnlab with the words of a line, capture its output; a signal meanwhile ends the command first."""
    pipe = subprocess.PIPE
    command = subprocess.Popen(
        [sys.executable, "-m", "attnlab", *line],
        env={**os.environ, **(environment or {})}, start_new_session=True,
        stdout=pipe, stderr=pipe, text=True,
    )  # fmt: skip
    try:
        out, errors = command.communicate()
    except BaseException:
        slots.end([_Child(command)], GRACE)
        raise
    return subprocess.CompletedProcess(command.args, command.returncode, out, errors)
