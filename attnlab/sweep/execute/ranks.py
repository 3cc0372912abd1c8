"""A run on several devices: a process for each, the worker itself being rank 0.

Lightning's own launcher would start the command line again, which is the whole sweep; with LOCAL_RANK set it
leaves the processes to us. The other ranks record nothing: what rank 0 writes is the run.
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

from attnlab.errors import ProcessLost, Refused
from attnlab.sweep.execute.process import RANK_LOST

LEAVE = 30.0  # seconds for the other ranks to end once rank 0 has
CLOSE = 1.0  # seconds between the last connection of a process and its end


def devices(config: Mapping[str, Any]) -> int:
    """How many devices a run asks for. Refused where that is no number."""
    wanted = (config.get("trainer") or {}).get("devices", 1)
    if type(wanted) is not int or wanted < 1:
        raise Refused(f"trainer.devices={wanted}: give the number of devices of one run, at least 1")
    return wanted


@contextmanager
def others(folder: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Ranks 1 and up run while the body does. One that dies takes the run with it, instead of a hang.

    Raises:
        ProcessLost: the body failed since a signal had ended a rank.
    """
    world = devices(config)
    if world == 1:
        yield
        return
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world)}
    shared["NODE_RANK"] = "0"
    command = [sys.executable, "-m", "attnlab.sweep.execute.worker", "--rank"]
    started = []
    for rank in range(1, world):
        environment = {**os.environ, **shared, "LOCAL_RANK": str(rank)}
        started.append(subprocess.Popen([*command, str(rank), str(folder)], env=environment))
    os.environ |= {**shared, "LOCAL_RANK": "0"}
    over = threading.Event()
    for rank, process in enumerate(started, 1):
        threading.Thread(target=_watch, args=(rank, process, over), daemon=True).start()
    try:
        yield
    except BaseException as error:
        killed = _signals(started) if isinstance(error, Exception) else []
        for process in started:  # they may wait for us for ever
            process.kill()
        if killed:
            raise ProcessLost(f"a signal ended another rank: {signal.Signals(killed[0]).name}") from error
        raise
    finally:
        over.set()
        for process in started:
            try:
                process.wait(LEAVE)
            except subprocess.TimeoutExpired:
                process.kill()


def _signals(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """The signals that ended processes. A rank closes its connections, which fails the others, a moment
    before it has an exit status.
    """
    deadline = time.monotonic() + CLOSE
    codes = list[int]()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            codes.append(process.wait(max(0.0, deadline - time.monotonic())))
    return [-code for code in codes if code < 0]


def _watch(rank: int, process: subprocess.Popen[bytes], over: threading.Event) -> None:
    """Rank 0 may be waiting for this one in a collective: no exception would ever reach it there."""
    code = process.wait()
    if code and not over.wait(5.0):
        print(f"rank {rank} ended with status {code}, and the run with it", file=sys.stderr, flush=True)
        os._exit(RANK_LOST if code < 0 else 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
