"""Whoever waits at a terminal for longer than a second is told for what."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PATIENCE = 1.0  # seconds


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says `what` on stderr once this block (or a function that it decorates) takes longer than it should;
    in a pipe or a file nobody waits.
    """
    note = threading.Timer(PATIENCE, _say, [what])
    note.daemon = True
    if sys.stderr.isatty():
        note.start()
    try:
        yield
    finally:
        note.cancel()


def _say(what: str) -> None:
    """To a reader who may have gone; the command itself ends over that, and not a thread of its."""
    with suppress(OSError):
        print(f"{what} ...", file=sys.stderr, flush=True)
