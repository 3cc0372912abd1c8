"""Folder of the multiprocessing sockets, whose names the system limits to about a hundred bytes."""

import os
import tempfile
from multiprocessing.connection import Listener

MAX_SOCKET_NAME_BYTES = 104  # portable limit of a socket name


def shorten_socket_names() -> None:
    """Let multiprocessing put this process's sockets into /tmp if TMPDIR would make their names too long."""
    name = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    if len(os.fsencode(name)) < MAX_SOCKET_NAME_BYTES or not os.access("/tmp", os.W_OK):
        return
    previous_folder = tempfile.tempdir
    tempfile.tempdir = "/tmp"
    try:
        Listener(family="AF_UNIX").close()  # the first socket fixes the folder of all others
    finally:
        tempfile.tempdir = previous_folder
