"""What a sweep leaves and runs, watched from outside: its store's records, its processes and their ends."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(holds: Callable[[], Any], seconds: float = 20.0) -> None:
    """Returns once it holds; AssertionError where it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int | str) -> bool:
    """Whether a process still runs: one that ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The processes that a process started and that are there still; none once it is gone itself."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def parent(pid: int | str) -> int:
    """The process that started a process; of a forked worker, the fork server."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Id -> record, for every run that the store below `folder` has a record of."""
    found = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/run.json")]
    return {record["id"]: record for record in found}


def records_by_act(folder: Path) -> dict[str, dict[str, Any]]:
    """Act -> record, for the toy experiment that tries every end."""
    return {record["config"]["model"]["act"]: record for record in records(folder).values()}
