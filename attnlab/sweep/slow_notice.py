"""A notice on the terminal while a step takes longer than a second, or in the live display of a command."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

NOTICE_DELAY = 1.0  # seconds
_show_notice: Callable[[str], None] | None = None  # of the live display, if there is one


@contextmanager
def show_notices_with(show: Callable[[str], None] | None) -> Iterator[None]:
    """Pass each slow step's message to `show` within the block, and "" at its end; None prints as usual."""
    global _show_notice
    _show_notice, previous = show, _show_notice
    try:
        yield
    finally:
        _show_notice = previous


@contextmanager
def notify_if_slow(message: str) -> Iterator[None]:
    """Print `message` on stderr once the block, or the decorated function, takes longer than NOTICE_DELAY.

    Nothing is printed if stderr is a pipe or a file, because nobody is waiting there. A live display shows
    the message at once instead.
    """
    if (show := _show_notice) is not None:
        show(message)
        try:
            yield
        finally:
            show("")
        return
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
