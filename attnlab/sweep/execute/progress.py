"""Progress of a command: one live region on a terminal, elsewhere a line per event.

The live region has the counts of the whole command, one bar with the time left, and the running runs. A
terminal has room for one such region, so `watch_runs` gives every launcher the display of its command.
"""

import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from attnlab.errors import escape_unprintable
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult
from attnlab.sweep import slow_notice
from attnlab.sweep.execute.time_estimate import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_REDRAWS_PER_SECOND = 4
_COUNT_INTERVAL = 5.0  # seconds between two counts of the work left while no run ends
_COUNT_SHARE = 0.05  # largest proportion of the time that counting takes
_STARTUP_TOLERANCE = 1.0  # seconds between a run's first step and the first look at it
_FIGURES_WIDTH = 32  # columns of a run's slot, step and loss
_LONG_RUN = 120.0  # seconds; of a longer run, every quarter is an event
_MAX_SILENCE = 600.0  # seconds without a line, after which one shows the running runs


@dataclass(frozen=True)
class WorkLeft:
    """Counts of a command's runs and estimates of the time left.

    - `stage`: the earliest stage with unfinished runs, as in "interim analysis 1 of 6"; empty without claims
    - `n_ended`, `n_required`: of the runs that are certain to be needed by now; `n_failed` of the ended ones
    - `n_possible`: further runs of the comparison at most, if its claims stay undecided
    - `n_possible_tuning`: further runs at most that the search for learning rates may add to the plan
    - `seconds`, `max_seconds`: wall time of the certain runs, and with the possible ones; None if unknown
    - `slot_seconds`: sum of the certain runs' times
    """

    stage: str
    n_ended: int
    n_failed: int
    n_required: int
    n_possible: int = 0
    n_possible_tuning: int = 0
    seconds: float | None = None
    max_seconds: float | None = None
    slot_seconds: float | None = None
    n_slots: int = 1

    @property
    def n_left(self) -> int:
        return self.n_required - self.n_ended

    @property
    def may_grow(self) -> bool:
        """Whether further runs may become necessary."""
        return bool(self.n_possible or self.n_possible_tuning)

    def describe(self) -> str:
        """Format the counts as in `8/16 runs (interim analysis 1 of 6); up to 96 more`."""
        text = f"{self.n_ended}/{self.n_required} runs"
        text += f", {self.n_failed} failed" if self.n_failed else ""
        text += f" ({self.stage})" if self.stage else ""
        n_more = self.n_possible + self.n_possible_tuning
        return f"{text}; up to {n_more} more" if n_more else text

    def describe_with_time(self) -> str:
        """Format the counts and the time left."""
        return "; ".join(filter(None, (self.describe(), self.describe_time())))

    def describe_time(self, elapsed: float = 0.0) -> str:
        """Format the time left as in `about 1 min left, 5 min with them`, the possible runs.

        Args:
            elapsed: seconds since it was estimated.
        """
        if not self.n_left:
            return ""
        if self.seconds is None:
            return f"time left {UNKNOWN}"
        text = f"about {format_duration(max(1.0, self.seconds - elapsed))} left"
        if self.may_grow and self.max_seconds is not None:
            text += f", {format_duration(max(1.0, self.max_seconds - elapsed))} with them"
        return text


_command_display: "Progress | None" = None  # of the command that this process runs


class Progress:
    """Display of a command, used as a context manager.

    Args:
        labels: run directory -> name, of the first runs to watch.
        out: output stream, sys.stdout by default.
        count_work: counts the work left, given the ids of the runs that were launched and have not ended;
            by default it counts the watched runs.
    """

    def __init__(
        self,
        labels: Mapping[Path, str] | None = None,
        out: TextIO | None = None,
        count_work: Callable[[Sequence[str]], WorkLeft] | None = None,
    ) -> None:
        self.labels = dict(labels or {})
        self.out = out or sys.stdout
        self.activity = ""
        self.count_work = count_work or self._count_watched_runs
        self.work: WorkLeft | None = None
        self.running: list[tuple[int, str, Mapping[str, Any]]] = []  # slot, label, progress.json
        self._unfinished = dict.fromkeys(self.labels)
        self._outcomes = list[bool]()
        self._is_outdated = False  # whether a run has ended since the last count
        self._first_seen: dict[Path, float] = {}
        self._quarters: dict[Path, int] = {}
        self._live: Any = None
        self._console: Any = None
        self._counted_at = self._count_due_at = self._last_refresh = 0.0
        self._started_at = self._last_line_at = time.monotonic()

    def __enter__(self) -> "Progress":
        if self.labels:
            self.count()
        self._start_live()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def serve_command(self) -> Iterator["Progress"]:
        """Be the display of this process's command within the block: of its launchers and of slow steps."""
        global _command_display
        with self:
            _command_display, previous = self, _command_display
            show_notice = self._show_activity if self._live is not None else None
            try:
                with slow_notice.show_notices_with(show_notice):
                    yield self
            finally:
                _command_display = previous

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Remove the live region within the block, in which other processes write to the terminal."""
        was_live = self._live is not None
        self.close()
        try:
            yield
        finally:
            if was_live:
                self._start_live()

    def _start_live(self) -> None:
        from rich.console import Console

        if not self.out.isatty() or not (console := Console(file=self.out, soft_wrap=True)).is_interactive:
            return  # a pipe, or TERM=dumb
        from rich.live import Live

        self._console = console
        self._live = Live(
            get_renderable=self._build_region,
            console=console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # prints of this process go above the region
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start(refresh=True)
        console.show_cursor(True)  # so that a killed command leaves no terminal without a cursor

    def close(self) -> None:
        """Remove the live region for good; an interrupt meanwhile waits, so that no half of it is left."""
        live, self._live = self._live, None
        if live is None:
            return
        is_main_thread = threading.current_thread() is threading.main_thread()
        numbers = {signal.SIGINT, signal.SIGTERM} if is_main_thread else set[signal.Signals]()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            live.stop()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _build_region(self) -> "Group":
        """Build the live region: counts, bar and running runs. Reads no file, since a thread calls it."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = max(1, self._console.width - 1)  # the last column wraps on some terminals
        now = time.monotonic()
        work, running = self.work, self.running
        headline = ": ".join(filter(None, (self.activity, work.describe() if work else ""))) or "planning"
        times = [f"{format_duration(now - self._started_at)} elapsed"]
        total: float | None = None  # of an unknown number of runs, while the command plans
        done = 0.0
        if work and work.n_required:
            total = work.n_required
            done = min(total, work.n_ended + sum(compute_fraction_done(progress) for *_, progress in running))
            times += filter(None, [work.describe_time(now - self._counted_at)])
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total, done, width=max(1, min(40, width - 40)), pulse=total is None),
            Text(", ".join(times), no_wrap=True, overflow="ellipsis"),
        )
        words = Text("\n".join(textwrap.wrap(headline, width)), no_wrap=True, overflow="ellipsis")
        table = [_build_run_table(running, width, max(1, self._console.height - 8))] if running else []
        return Group(words, bar, *table)

    def _show_activity(self, activity: str) -> None:
        self.activity = activity

    def print_line(self, line: str) -> None:
        """Print a permanent line, above the live region if there is one."""
        self._last_line_at = time.monotonic()
        line = escape_unprintable(line)
        if self._live is not None:
            self._console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self.out, flush=True)

    def print_event(self, line: str) -> None:
        """Print a line about an event that a live region shows anyway."""
        if self._live is None:
            self.print_line(line)

    def start_stage(self, count_work: Callable[[Sequence[str]], WorkLeft], folders: Sequence[Path]) -> None:
        """Count the work left, in which these runs are to be launched, and announce its stage."""
        self.count_work = count_work
        self._unfinished = dict.fromkeys(folders)
        self.print_event(self.count().describe_with_time())
        if self._live is not None:
            self._live.refresh()  # a loaded machine may not redraw before the first run ends

    def add_runs(self, labels: Mapping[Path, str]) -> None:
        """Add launched runs to the display."""
        self.labels |= labels
        self._unfinished |= dict.fromkeys(labels)
        self.count()

    def remove_runs(self) -> None:
        """Forget launched runs that have not ended: their launcher has returned."""
        self._unfinished.clear()
        self.running = []

    def count(self) -> WorkLeft:
        """Count the work left."""
        started_at = time.monotonic()
        self.work = self.count_work([folder.name for folder in self._unfinished])
        self._is_outdated = False
        self._counted_at = time.monotonic()
        self._count_due_at = self._counted_at + (self._counted_at - started_at) / _COUNT_SHARE
        return self.work

    def _count_watched_runs(self, _unfinished: Sequence[str]) -> WorkLeft:
        n_failed = self._outcomes.count(False)
        return WorkLeft("", len(self._outcomes), n_failed, len(self._outcomes) + len(self._unfinished))

    def finish_run(self, folder: Path, record: RunResult | None, note: str | None = None) -> None:
        """Count an ended run and print its line.

        Args:
            folder: its run directory.
            record: its result, if it left one.
            note: replaces the outcome of a run that left no result without having failed.
        """
        work = self.work or self.count()
        self._unfinished.pop(folder, None)
        self._outcomes.append(note is not None or (record is not None and record.is_done))
        for seen in (self._first_seen, self._quarters):
            seen.pop(folder, None)
        n_ended, n_failed = work.n_ended + 1, work.n_failed + (not self._outcomes[-1])
        n_required = max(n_ended, work.n_required)
        work = self.work = replace(work, n_ended=n_ended, n_failed=n_failed, n_required=n_required)
        self._is_outdated = True
        name = self.labels.get(folder, folder.name)
        ending = note or describe_ending(record)
        self.print_line(f"[{work.n_ended}/{work.n_required}] {name}  {ending}  {folder}")

    def refresh(self, running: Sequence[tuple[Path, int]]) -> None:
        """Show the steps of the running runs: in the live region, or as a line per quarter of a long run.

        Args:
            running: run directory and slot number of each running run.
        """
        now = time.monotonic()
        if self.running and now - self._last_refresh < 1 / _REDRAWS_PER_SECOND:
            return
        self._last_refresh = now
        states = [(slot, folder, self._read_progress(folder)) for folder, slot in running]
        self.running = [
            (slot, escape_unprintable(self.labels.get(folder, folder.name)), progress)
            for slot, folder, progress in sorted(states, key=lambda state: state[0])
        ]
        if self._live is not None:
            interval = 0.0 if self._is_outdated else _COUNT_INTERVAL
            if now >= max(self._count_due_at, self._counted_at + interval):
                self.count()
            return
        for _, folder, progress in states:
            self._print_quarter(folder, progress)
        if self.running and now - self._last_line_at > _MAX_SILENCE:
            steps = "; ".join(f"{label} {_format_step(progress)}" for _, label, progress in self.running)
            self.print_line(f"{self.count().describe_with_time()}; running: {steps}")

    def _read_progress(self, folder: Path) -> Mapping[str, Any]:
        """Read a running run's progress.json; empty while the file is of an earlier, interrupted attempt."""
        first_seen = self._first_seen.setdefault(folder, time.time())
        progress = run_directories.read_progress(folder)
        is_stale = progress.get("time", first_seen) < first_seen - _STARTUP_TOLERANCE
        return {} if is_stale else progress

    def _print_quarter(self, folder: Path, progress: Mapping[str, Any]) -> None:
        """Print a line if a run that takes minutes has passed another quarter of its steps."""
        quarter = int(4 * compute_fraction_done(progress))
        is_first = folder not in self._quarters  # a resumed run starts in a later quarter
        previous = self._quarters.setdefault(folder, quarter)
        self._quarters[folder] = max(previous, quarter)
        if (quarter <= previous and not (is_first and quarter)) or quarter > 3:
            return
        steps, seconds = (progress.get(key) or 0 for key in ("timed_steps", "timed_seconds"))
        if steps and seconds / steps * progress["max_steps"] >= _LONG_RUN:
            work = self.work or self.count()
            name = self.labels.get(folder, folder.name)
            self.print_line(f"[{work.n_ended}/{work.n_required}] {name}  {_format_step(progress)}")


def _build_run_table(
    running: Sequence[tuple[int, str, Mapping[str, Any]]], width: int, max_rows: int
) -> "Table":
    """Build a table with a row per running run: slot, name, step and loss; a long name is cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("slot", "run", "step", "loss"):
        if heading == "run":
            table.add_column(heading, no_wrap=True, max_width=max(8, width - _FIGURES_WIDTH))
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for slot, label, progress in running[:max_rows]:
        has_steps = "step" in progress and "max_steps" in progress
        step = f"{progress['step']}/{progress['max_steps']}" if has_steps else "starting"
        table.add_row(str(slot), Text(label), step, _format_loss(progress.get("loss")))
    if len(running) > max_rows:
        table.add_row("", f"and {len(running) - max_rows} more", "", "")
    return table


@contextmanager
def suspend_live_region() -> Iterator[None]:
    """Remove the command's live region within the block, in which other processes write to the terminal."""
    with _command_display.suspend() if _command_display else nullcontext():
        yield


@contextmanager
def watch_runs(folders: Sequence[Path]) -> Iterator[Progress]:
    """Yield the display of this process's command, or a new one, which shows these stored runs too."""
    specs = {folder: run_directories.load_run_config(folder) for folder in folders}
    labels = {folder: f"{spec.arm} seed={spec.seed}" for folder, spec in specs.items()}
    if _command_display is None:
        with Progress(labels) as display:
            yield display
        return
    _command_display.add_runs(labels)
    try:
        yield _command_display
    finally:
        _command_display.remove_runs()


def describe_ending(record: RunResult | None) -> str:
    """Summarize a run's outcome in one line: status, loss, seconds and leakage."""
    if record is None:
        return "missing"
    if not record.is_done:
        return f"{record.status}: {record.failure.message if record.failure else ''}"
    loss = record.metrics.get("val/loss")
    duration = f"  {record.seconds:.1f} s" if record.seconds is not None else ""
    return (
        (f"done  val/loss {loss:.4f}" if loss is not None else "done") + duration + _describe_leakage(record)
    )


def _describe_leakage(record: RunResult) -> str:
    """Describe future leakage of a next-token model; empty if it was not measured."""
    leakage = record.leakage
    if not leakage.get("next_token"):
        return ""
    if leakage.get("sees_future"):
        return "  SEES FUTURE TOKENS"
    if leakage.get("sees_rows"):
        return "  SEES OTHER ROWS"
    prefix = leakage.get("prefix") or 0
    return f"  bidirectional over its first {prefix} tokens" if prefix > 1 else "  no future tokens seen"


def compute_fraction_done(progress: Mapping[str, Any]) -> float:
    """Compute the fraction of a run's steps that its progress.json reports as done, 0 to 1."""
    step = progress.get("step")
    max_steps = progress.get("max_steps")
    if isinstance(step, int) and isinstance(max_steps, int) and max_steps > 0:
        return min(1.0, step / max_steps)
    return 0.0


def _format_step(progress: Mapping[str, Any]) -> str:
    if "step" not in progress:
        return "starting"
    return (
        f"step {progress['step']}/{progress.get('max_steps', '?')} loss {_format_loss(progress.get('loss'))}"
    )


def _format_loss(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def format_duration(seconds: float) -> str:
    """Format seconds as in `45 s`, `3 min` or `2 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"
