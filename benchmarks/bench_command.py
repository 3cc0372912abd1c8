"""`python -m attnlab bench NAME [threads=N] [rounds=N] [overrides] [--json]`: the rows of one subject.

Exit status: 0 measured; 1 a part failed; 2 nothing was measured; 130 and 143 interrupted. After a failure or
an interrupt, the rows so far are printed.
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

from attnlab.cli import exit_handling
from attnlab.cli.commands import BENCH_SUBJECTS
from attnlab.cli.kv_args import split_words
from attnlab.cli.own_options import list_search_path
from attnlab.errors import InvalidConfig, describe_disk_full, escape_unprintable, format_suggestions
from benchmarks import BenchResult
from benchmarks.bench_table import format_bench

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalExit(SystemExit):
    """Exit on a signal; no KeyboardInterrupt, because Lightning turns that into exit status 1."""


def main(options: argparse.Namespace) -> int:
    """Measure and print the rows on stdout, with progress on stderr; return the exit status."""
    names, overrides = split_words(options.words)
    if len(names) != 1 or names[0] not in BENCH_SUBJECTS:
        name = names[0] if names else "nothing"
        raise InvalidConfig(
            f"bench {name}: unknown subject; use one of {', '.join(BENCH_SUBJECTS)}"
            f"{format_suggestions(name, BENCH_SUBJECTS)}"
        )
    with exit_handling.exit_on_interrupt():
        from attnlab.sweep.plan.overrides import parse_overrides, reject_duplicate_keys

        subject = importlib.import_module(f"benchmarks.subjects.{names[0]}")
    reject_duplicate_keys(parse_overrides(overrides), can_sweep=False)
    overrides = [*list_search_path(options.config_dir), *overrides]
    setup = subject.prepare(overrides, options.key_values.get("threads"))
    bench = BenchResult(names[0])
    log = partial(print, file=sys.stderr, flush=True)
    status = 0
    try:
        with _raise_on_signals():
            subject.measure(setup, bench, log, options.key_values.get("rounds") or subject.ROUNDS)
    except SystemExit as exit_error:
        status = exit_error.code if isinstance(exit_error.code, int) else 1
        bench.failure = f"stopped by {signal.Signals(status - 128).name}" if status > 128 else "ended"
    except InvalidConfig:
        raise  # invalid arguments: nothing was measured
    except Exception as error:
        if exit_handling.is_broken_pipe(error):
            raise
        status = 1
        bench.failure = _describe_failure(error)
    print(json.dumps(asdict(bench)) if options.json else format_bench(bench))
    if bench.failure is not None:
        row_count = f"{len(bench.rows)} rows measured before it"
        print(
            f"attnlab: bench {bench.subject}: {escape_unprintable(bench.failure)}; {row_count}",
            file=sys.stderr,
        )
    return status


@contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Raise SignalExit on SIGINT and SIGTERM; a second signal kills, and ignored signals stay ignored."""
    previous_handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number in SIGNALS if previous_handlers[number] != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        handled = []

    def raise_signal_exit(number: int, _frame: FrameType | None) -> None:
        for handled_signal in handled:
            signal.signal(handled_signal, signal.SIG_DFL)
        raise SignalExit(128 + number)

    for number in handled:
        signal.signal(number, raise_signal_exit)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, previous_handlers[number])


def _describe_failure(error: Exception) -> str:
    """Format the failure and its place as one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = describe_disk_full(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{message} ({Path(place.filename).name}:{place.lineno})"
