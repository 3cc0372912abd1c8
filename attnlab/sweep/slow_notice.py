"""A notice on the terminal while a step takes longer than a second."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NOTICE_DELAY = 1.0  # seconds


@contextmanager
def notify_if_slow(message: str) -> Iterator[None]:
    """Print `message` on stderr once the block, or the decorated function, takes longer than NOTICE_DELAY.

    Nothing is printed if stderr is a pipe or a file, because nobody is waiting there.
    """
    timer = threading.Timer(NOTICE_DELAY, _print_notice, [message])
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_notice(message: str) -> None:
    """Print the notice, ignoring a closed stderr: the main thread reports that, not this timer's thread."""
    with suppress(OSError):
        print(f"{message} ...", file=sys.stderr, flush=True)
