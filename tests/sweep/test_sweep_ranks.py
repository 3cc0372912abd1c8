"""A run on several devices is lost with any of its processes that a signal ends."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnlab.errors import ProcessLost
from attnlab.sweep.execute import ranks
from attnlab.sweep.execute.process import RANK_LOST
from attnlab.sweep.execute.worker import classify

TWO = {"trainer": {"devices": 2}}


@pytest.fixture
def started(monkeypatch):
    """The processes of the other ranks: each waits until it is ended, or exits where `script` lets it."""
    processes, popen = [], subprocess.Popen
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that it is put back

    def start(_command, env):
        processes.append(popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE))
        return processes[-1]

    monkeypatch.setattr(ranks.subprocess, "Popen", start)
    yield processes
    for process in processes:
        process.stdin.close()


def test_a_run_that_fails_since_a_signal_ended_another_rank_is_lost_and_did_not_crash(started):
    def train():
        os.kill(started[0].pid, signal.SIGKILL)
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(ProcessLost, match="SIGKILL") as found, ranks.others(Path("run"), TWO):
        train()
    assert classify(found.value) == "killed"
    assert isinstance(found.value.__cause__, RuntimeError)


def test_a_run_that_fails_by_itself_crashed(started):
    with pytest.raises(RuntimeError, match="shapes differ") as found, ranks.others(Path("run"), TWO):
        raise RuntimeError("shapes differ")
    assert classify(found.value) == "crashed"
    assert started[0].wait() == -signal.SIGKILL, "the other rank does not stay behind"


@pytest.mark.parametrize(("code", "status"), [(-signal.SIGKILL, RANK_LOST), (3, 1)])
def test_rank_0_ends_where_it_would_wait_for_a_rank_for_ever(monkeypatch, code, status):
    ended = []
    monkeypatch.setattr(ranks.os, "_exit", ended.append)
    process, over = SimpleNamespace(wait=lambda: code), threading.Event()
    monkeypatch.setattr(over, "wait", lambda _seconds: False)
    ranks._watch(1, process, over)
    assert ended == [status]
