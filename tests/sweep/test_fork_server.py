"""The fork server needs private parts of `multiprocessing`: a Python that changes them fails these tests."""

import os
import subprocess
import sys
from multiprocessing import get_all_start_methods
from pathlib import Path

import pytest
from processes import alive, parent

from attnlab.sweep.plan import fork_server

needs_fork_server = pytest.mark.skipif(
    "forkserver" not in get_all_start_methods(), reason="needs a fork server"
)


def write_environment(path):
    Path(path).write_text(os.environ["OMP_NUM_THREADS"])


@needs_fork_server
def test_children_have_the_server_as_parent_and_the_environment_that_it_was_started_with(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    fork_server.end_server()
    context = fork_server.warm("json", threads=3)
    child = context.Process(target=write_environment, args=(str(tmp_path / "threads"),))
    assert os.environ["OMP_NUM_THREADS"] == "5"
    child.start()
    assert parent(child.pid) == fork_server.find_server()
    child.join()
    assert (tmp_path / "threads").read_text() == "3"


@needs_fork_server
def test_a_server_that_was_ended_is_started_again(tmp_path):
    path = str(tmp_path / "threads")
    fork_server.warm("json").Process(target=write_environment, args=(path,))
    ended = fork_server.find_server()
    fork_server.end_server()
    assert not alive(ended)
    child = fork_server.warm("json").Process(target=write_environment, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert fork_server.find_server() != ended


SHORT = """
from multiprocessing.connection import Listener

from attnlab.store import temporary

temporary.shorten_socket_names()
print(Listener(family="AF_UNIX").address)
"""


def test_sockets_are_put_where_their_names_are_short_enough(tmp_path):
    place = tmp_path / ("long" * 25)
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}
    found = subprocess.run(
        [sys.executable, "-c", SHORT], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("/tmp/pymp-")
