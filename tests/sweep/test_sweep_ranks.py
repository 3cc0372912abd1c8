"""A multi-device run counts as killed if a signal ends any of its processes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnlab.errors import HelperProcessKilled
from attnlab.sweep.execute import ranks
from attnlab.sweep.execute.process_control import RANK_LOST
from attnlab.sweep.execute.worker import classify_exception

TWO = {"trainer": {"devices": 2}}


@pytest.fixture
def rank_processes(monkeypatch):
    """Replace the other ranks by processes that wait on stdin; return the list of those started."""
    processes, popen = [], subprocess.Popen
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that it is restored

    def start(_command, env):
        processes.append(popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE))
        return processes[-1]

    monkeypatch.setattr(ranks.subprocess, "Popen", start)
    yield processes
    for process in processes:
        process.stdin.close()


def test_run_that_fails_after_a_signal_ended_another_rank_is_killed(rank_processes):
    def train():
        os.kill(rank_processes[0].pid, signal.SIGKILL)
        raise RuntimeError("Connection closed by peer")

    with (
        pytest.raises(HelperProcessKilled, match="SIGKILL") as error,
        ranks.run_other_ranks(Path("run"), TWO),
    ):
        train()
    assert classify_exception(error.value) == "killed"
    assert isinstance(error.value.__cause__, RuntimeError)


def test_run_that_fails_by_itself_is_crashed(rank_processes):
    with pytest.raises(RuntimeError, match="shapes differ") as error, ranks.run_other_ranks(Path("run"), TWO):
        raise RuntimeError("shapes differ")
    assert classify_exception(error.value) == "crashed"
    assert rank_processes[0].wait() == -signal.SIGKILL, "the other rank does not stay behind"


@pytest.mark.parametrize(("code", "status"), [(-signal.SIGKILL, RANK_LOST), (3, 1)])
def test_rank_0_exits_instead_of_waiting_for_a_dead_rank(monkeypatch, code, status):
    exit_codes = []
    monkeypatch.setattr(ranks.os, "_exit", exit_codes.append)
    process, has_ended = SimpleNamespace(wait=lambda: code), threading.Event()
    monkeypatch.setattr(has_ended, "wait", lambda _seconds: False)
    ranks._watch_rank(1, process, has_ended)
    assert exit_codes == [status]
