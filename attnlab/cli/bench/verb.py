"""`python -m attnlab bench NAME [threads=N] [rounds=N] [overrides] [--json]`: the rows of one subject.

Exit status: 0 measured; 1 a part failed, 130 and 143 interrupted: the rows so far are printed all the same; 2
nothing was measured.
"""

import argparse
import importlib
import json
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType

from attnlab.cli import ending
from attnlab.cli.bench import Bench
from attnlab.cli.bench.table import table
from attnlab.cli.commands import SUBJECTS
from attnlab.cli.words import split
from attnlab.errors import Refused, nearest, no_space, printable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """A signal asks to end. A SystemExit: Lightning turns a KeyboardInterrupt into exit status 1."""


def main(options: argparse.Namespace) -> int:
    """Measures, then prints: progress goes to stderr, the rows alone to stdout."""
    names, overrides = split(options.words)
    if len(names) != 1 or names[0] not in SUBJECTS:
        given = names[0] if names else "nothing"
        raise Refused(f"bench {given}: name one of {', '.join(SUBJECTS)}{nearest(given, SUBJECTS)}")
    with ending.nothing_to_lose():
        subject = importlib.import_module(f"attnlab.cli.bench.subjects.{names[0]}")
    prepared = subject.prepare(overrides, options.given.get("threads"))
    bench = Bench(names[0])
    say = partial(print, file=sys.stderr, flush=True)
    status = 0
    try:
        with _raise_on_signals():
            subject.measure(prepared, bench, say, options.given.get("rounds") or subject.ROUNDS)
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 1
        bench.failure = f"ended by {signal.Signals(status - 128).name}" if status > 128 else "ended"
    except Refused:
        raise  # the words cannot be measured: nothing was
    except Exception as error:
        if ending.unread(error):
            raise
        status = 1
        bench.failure = _describe(error)
    print(json.dumps(asdict(bench)) if options.json else table(bench))
    if bench.failure is not None:
        what = f"{len(bench.rows)} rows were measured before"
        print(f"attnlab: bench {bench.subject}: {printable(bench.failure)}; {what}", file=sys.stderr)
    return status


@contextmanager
def _raise_on_signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise Stopped, the second one kills; an ignored signal stays ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number in SIGNALS if before[number] != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        ours = []

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(128 + number)

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _describe(error: Exception) -> str:
    """The failure and its place, on one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = no_space(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{said} ({Path(place.filename).name}:{place.lineno})"
