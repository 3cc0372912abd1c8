"""How a command ends that cannot go on: interrupted, its reader gone, no space left. One line at most.

Surprising: where nothing is lost by it, Ctrl-C ends the process at once. A KeyboardInterrupt that is raised
while modules are imported may be swallowed, or shown with its traceback, by whoever happens to run then.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130
UNREAD = 141  # what a shell says of a command that SIGINT or SIGPIPE has ended


@contextmanager
def nothing_to_lose() -> Iterator[None]:
    """While modules are imported: Ctrl-C ends the process without a word. Who ignores it still does."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not ours or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def unread(error: BaseException) -> bool:
    """Whether an exception only says that nobody reads the output any more, as behind `| head`."""
    if isinstance(error, SystemExit):  # rich's, which has closed the output already
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, BrokenPipeError) and any(map(_has_no_reader, (sys.stdout, sys.stderr)))


def silence() -> None:
    """What is still to be written goes nowhere: Python would complain of it as it ends."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _has_no_reader(stream: object) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # type: ignore[attr-defined]
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False
