"""Identity of a process that no copy has: boot id of the kernel, pid namespace, pid and start time.

Host names and process ids repeat: containers of one image may have both in common. A process thus knows only
of processes of its own kernel and container whether they run. Systems without /proc have no identities.
"""

import os
from pathlib import Path
from typing import Any, Literal

ProcessState = Literal["running", "ended", "unknown"]
_START_TIME = 19  # its place in /proc/PID/stat after the name of the program


def identify_process() -> str:
    """Return the identity of this process; empty if this system has none."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        if os.readlink("/proc/self") != str(os.getpid()):  # the /proc of another container
            return ""
        return f"{boot_id} {namespace} {os.getpid()} {_read_stat(os.getpid())[_START_TIME]}"
    except OSError:
        return ""


def get_process_state(identity: Any) -> ProcessState:
    """Return whether the process with an identity runs; unknown for one of another kernel or container."""
    own = identify_process().split()
    other = identity.split() if isinstance(identity, str) else []
    if not own or len(other) != len(own) or other[:2] != own[:2] or not other[2].isdecimal():
        return "unknown"
    pid = int(other[2])
    if not is_process_running(pid):
        return "ended"
    try:
        return "running" if _read_stat(pid)[_START_TIME] == other[3] else "ended"
    except OSError:  # it has just ended, or /proc hides the processes of other users
        return "unknown"


def is_process_running(pid: int) -> bool:
    """Whether a process of any user runs under `pid` in this container; zombies do not count."""
    try:
        os.kill(pid, 0)
        return not Path("/proc/self").exists() or _read_stat(pid)[0] != "Z"
    except PermissionError:  # another user's process
        return True
    except (ProcessLookupError, FileNotFoundError, OverflowError):
        return False


def _read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the program, which may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
