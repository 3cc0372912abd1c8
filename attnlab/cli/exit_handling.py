"""Exits of interrupted commands and of commands whose output pipe was closed.

Surprising: during imports, where no work can be lost, Ctrl-C ends the process immediately. Import machinery
and libraries may swallow a KeyboardInterrupt or print its traceback.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell reports it


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """End the process silently on Ctrl-C inside the block; an ignored SIGINT stays ignored."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    previous_handler = signal.getsignal(signal.SIGINT)
    if not is_main_thread or previous_handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the shell closed, as in `>&-`.

    Without them, print fails, and a file opened later would get the number of a standard stream.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def is_broken_pipe(error: BaseException) -> bool:
    """Whether an exception means that the reader of the output has exited, as with `| head`."""
    if isinstance(error, SystemExit):  # raised by rich, which has already closed the output
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, BrokenPipeError) and any(map(_has_no_reader, (sys.stdout, sys.stderr)))


def discard_output() -> None:
    """Redirect unwritable output to /dev/null: Python would report the failed flush at exit."""
    with suppress(OSError, ValueError, AttributeError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(null_device, stream.fileno())
        os.close(null_device)


def _has_no_reader(stream: object) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # type: ignore[attr-defined]
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False
