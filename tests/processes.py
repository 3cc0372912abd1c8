"""Run results and processes of a sweep, observed from outside."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab.store.process_identity import identify_process


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until the condition is true.

    Raises:
        AssertionError: it is still false after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int | str) -> bool:
    """Return whether a process still runs; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def list_children(pid: int) -> list[int]:
    """List the living children of a process; empty once it has ended itself."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def change_identity(**changes: str) -> str:
    """Return this process's identity with some of `boot_id`, `namespace`, `pid` and `start` replaced."""
    words = zip(("boot_id", "namespace", "pid", "start"), identify_process().split(), strict=True)
    return " ".join((dict(words) | changes).values())


def get_parent(pid: int | str) -> int:
    """Return the parent of a process; that of a forked worker is the fork server."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def load_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the run results in `folder`/runs, by run id."""
    contents = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/run.json")]
    return {record["id"]: record for record in contents}


def load_records_by_act(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the run results of the toy experiment `ends`, by `model.act`."""
    return {record["config"]["model"]["act"]: record for record in load_records(folder).values()}
