"""Fork server: it uses private parts of `multiprocessing`; a Python that changes them fails these tests."""

import os
import subprocess
import sys
from multiprocessing import get_all_start_methods
from pathlib import Path

import pytest
from processes import get_parent, is_alive

from attnlab.sweep.plan import fork_server

needs_fork_server = pytest.mark.skipif(
    "forkserver" not in get_all_start_methods(), reason="needs a fork server"
)


def write_environment(path):
    Path(path).write_text(os.environ["OMP_NUM_THREADS"])


@needs_fork_server
def test_children_inherit_parent_and_environment_of_server(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    fork_server.kill_server()
    context = fork_server.make_warm_context("json", threads=3)
    child = context.Process(target=write_environment, args=(str(tmp_path / "threads"),))
    assert os.environ["OMP_NUM_THREADS"] == "5"
    child.start()
    assert get_parent(child.pid) == fork_server.find_server_pid()
    child.join()
    assert (tmp_path / "threads").read_text() == "3"


@needs_fork_server
def test_killed_server_restarts(tmp_path):
    path = str(tmp_path / "threads")
    fork_server.make_warm_context("json").Process(target=write_environment, args=(path,))
    killed_pid = fork_server.find_server_pid()
    fork_server.kill_server()
    assert not is_alive(killed_pid)
    child = fork_server.make_warm_context("json").Process(target=write_environment, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert fork_server.find_server_pid() != killed_pid


SOCKET_SCRIPT = """
from multiprocessing.connection import Listener

from attnlab.store import socket_names

socket_names.shorten_socket_names()
print(Listener(family="AF_UNIX").address)
"""


def test_socket_names_are_shortened_for_long_tmpdir(tmp_path):
    long_dir = tmp_path / ("long" * 25)
    long_dir.mkdir()
    environment = {**os.environ, "TMPDIR": str(long_dir)}
    result = subprocess.run(
        [sys.executable, "-c", SOCKET_SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("/tmp/pymp-")
