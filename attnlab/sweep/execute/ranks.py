"""Processes of a run on several devices: one per device, with the worker as rank 0.

Lightning's own launcher would start the command line again, which is the whole sweep; with LOCAL_RANK set it
starts no processes. Only rank 0 writes the run's result.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnlab.errors import HelperProcessKilled, InvalidConfig
from attnlab.sweep.execute.process_control import RANK_LOST

RANK_EXIT_TIMEOUT = 30.0  # seconds for the other ranks to end after rank 0
EXIT_STATUS_TIMEOUT = 1.0  # seconds between the last connection of a process and its end


def count_devices(config: Mapping[str, Any]) -> int:
    """Return the number of devices of one run, `trainer.devices`.

    Raises:
        InvalidConfig: it is no positive integer.
    """
    n_devices = (config.get("trainer") or {}).get("devices", 1)
    if type(n_devices) is not int or n_devices < 1:
        raise InvalidConfig(f"trainer.devices={n_devices}: must be at least 1, the number of devices per run")
    return n_devices


@contextmanager
def run_other_ranks(folder: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Run ranks 1 and up while the body runs; a rank that dies ends the run instead of blocking it.

    Raises:
        HelperProcessKilled: the body failed because a signal had ended another rank.
    """
    world_size = count_devices(config)
    if world_size == 1:
        yield
        return
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_find_free_port()),
        "WORLD_SIZE": str(world_size),
    }
    shared["NODE_RANK"] = "0"
    command = [sys.executable, "-m", "attnlab.sweep.execute.worker", "--rank"]
    processes = []
    for rank in range(1, world_size):
        environment = {**os.environ, **shared, "LOCAL_RANK": str(rank)}
        processes.append(subprocess.Popen([*command, str(rank), str(folder)], env=environment))
    os.environ |= {**shared, "LOCAL_RANK": "0"}
    has_ended = threading.Event()
    for rank, process in enumerate(processes, 1):
        threading.Thread(target=_watch_rank, args=(rank, process, has_ended), daemon=True).start()
    try:
        yield
    except BaseException as error:
        signals = _collect_signals(processes) if isinstance(error, Exception) else []
        for process in processes:  # they may wait for this rank forever
            process.kill()
        if signals:
            raise HelperProcessKilled(
                f"a signal killed another rank: {signal.Signals(signals[0]).name}"
            ) from error
        raise
    finally:
        has_ended.set()
        for process in processes:
            try:
                process.wait(RANK_EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def _collect_signals(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Return the signals that ended processes, after a short wait for their exit statuses.

    A dying rank closes its connections, so that other ranks fail, a moment before it has an exit status.
    """
    deadline = time.monotonic() + EXIT_STATUS_TIMEOUT
    codes = list[int]()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            codes.append(process.wait(max(0.0, deadline - time.monotonic())))
    return [-code for code in codes if code < 0]


def _watch_rank(rank: int, process: subprocess.Popen[bytes], has_ended: threading.Event) -> None:
    """Exit rank 0 if another rank fails: in a collective with that rank no exception would ever reach it."""
    code = process.wait()
    if code and not has_ended.wait(5.0):
        print(f"rank {rank} exited with status {code} and ended the run", file=sys.stderr, flush=True)
        os._exit(RANK_LOST if code < 0 else 1)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
