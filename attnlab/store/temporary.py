"""A folder for multiprocessing's sockets, whose names the system limits to about a hundred bytes."""

import os
import tempfile
from multiprocessing.connection import Listener

LONGEST = 104  # bytes of the name of a socket


def shorten_socket_names() -> None:
    """Has multiprocessing put the sockets of this process into /tmp where TMPDIR would make their names too
    long.
    """
    name = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    if len(os.fsencode(name)) < LONGEST or not os.access("/tmp", os.W_OK):
        return
    before = tempfile.tempdir
    tempfile.tempdir = "/tmp"
    try:
        Listener(family="AF_UNIX").close()  # the folder is made for the first socket, and kept for all others
    finally:
        tempfile.tempdir = before
