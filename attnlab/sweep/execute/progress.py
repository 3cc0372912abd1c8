"""Progress of a sweep: a live panel on a terminal, elsewhere a line per run and one every 15 s."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from attnlab.errors import escape_unprintable
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult
from attnlab.sweep.execute.time_estimate import UNKNOWN, TimeEstimate

_LINE_INTERVAL = 15.0  # seconds between two lines without a terminal
_REDRAW_INTERVAL = 0.25


class Progress:
    """Display of running and ended runs, used as a context manager.

    Args:
        labels: run directory -> name of the run.
        out: output stream, sys.stdout by default.
        workloads: run directory -> arm and training FLOPs, for the time estimate.
    """

    def __init__(
        self,
        labels: Mapping[Path, str],
        out: TextIO | None = None,
        workloads: Mapping[Path, tuple[str, float]] | None = None,
    ) -> None:
        self.labels = labels
        self.out = out or sys.stdout
        self.total = len(labels)
        self.n_ended = 0
        self.n_failed = 0
        self.last_refresh = time.monotonic()
        self._unfinished = {folder: (workloads or {}).get(folder, ("", 0.0)) for folder in labels}
        self._time_estimate = TimeEstimate()
        self._live: Any = None

    @classmethod
    def from_folders(cls, folders: Sequence[Path]) -> "Progress":
        """Create the display of stored runs, labeled by arm and seed."""
        specs = {folder: run_directories.load_run_config(folder) for folder in folders}
        labels = {folder: f"{spec.arm} seed={spec.seed}" for folder, spec in specs.items()}
        workloads = {folder: (spec.arm, spec.estimate.training_flops) for folder, spec in specs.items()}
        return cls(labels, workloads=workloads)

    def __enter__(self) -> "Progress":
        if self.out.isatty() and self.total:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self.out), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print_line(self, line: str) -> None:
        """Print a permanent line, above the panel if there is one."""
        line = escape_unprintable(line)
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self.out, flush=True)

    def finish_run(self, folder: Path, record: RunResult | None, note: str | None = None) -> None:
        """Count an ended run and print its line.

        Args:
            folder: its run directory.
            record: its result, if it left one.
            note: replaces the outcome of a run that left no result without having failed.
        """
        self.n_ended += 1
        self.n_failed += note is None and (record is None or not record.is_done)
        arm, flops = self._unfinished.pop(folder, ("", 0.0))
        if record is not None and record.is_done and record.seconds is not None:
            self._time_estimate.add_finished_run(arm, flops, record.seconds)
        name = self.labels.get(folder, folder.name)
        self.print_line(f"[{self.n_ended}/{self.total}] {name}  {note or describe_ending(record)}  {folder}")

    def refresh(self, running: Sequence[tuple[Path, int]]) -> None:
        """Redraw the panel or print a line if the interval has passed.

        Args:
            running: run directory and slot number of each running run.
        """
        now = time.monotonic()
        if now - self.last_refresh < (_REDRAW_INTERVAL if self._live is not None else _LINE_INTERVAL):
            return
        self.last_refresh = now
        states = [(folder, slot, run_directories.read_progress(folder)) for folder, slot in running]
        if self._live is not None:
            self._live.update(self._build_panel(states), refresh=True)
        else:
            now_running = "; ".join(
                f"{self.labels.get(folder, folder.name)} {_format_step(progress)}"
                for folder, _, progress in states
            )
            self.print_line(f"{self._format_summary(states)}: {now_running}")

    def _format_summary(self, states: Sequence[tuple[Path, int, Mapping[str, Any]]]) -> str:
        text = f"{self.n_ended}/{self.total} runs ended"
        if self.n_failed:
            text += f", {self.n_failed} failed"
        text += f", {len(states)} running"
        if not self._unfinished:
            return text
        seconds = self._estimate_seconds_left(states)
        return text + (
            f", time left {UNKNOWN}" if seconds is None else f", about {format_duration(seconds)} left"
        )

    def _estimate_seconds_left(self, states: Sequence[tuple[Path, int, Mapping[str, Any]]]) -> float | None:
        """Estimate the time of all unfinished runs in the slots busy now; None if no run's time is known."""
        done = {folder: compute_fraction_done(progress) for folder, _, progress in states}
        for folder, _, progress in states:
            if folder in self._unfinished:
                self._time_estimate.add_timed_steps(str(folder), self._unfinished[folder][1], progress)
        seconds_left = [
            (1 - done.get(folder, 0.0)) * seconds
            for folder, (arm, flops) in self._unfinished.items()
            if (seconds := self._time_estimate.estimate_seconds(arm, flops)) is not None
        ]
        if not seconds_left:
            return None
        return sum(seconds_left) * len(self._unfinished) / len(seconds_left) / max(1, len(states))

    def _build_panel(self, states: Sequence[tuple[Path, int, Mapping[str, Any]]]) -> Any:
        from rich.table import Table

        table = Table(title=self._format_summary(states), title_justify="left", box=None, pad_edge=False)
        for heading in ("slot", "run", "step", "loss"):
            table.add_column(heading, justify="left" if heading == "run" else "right")
        for folder, slot, progress in sorted(states, key=lambda state: state[1]):
            has_steps = "step" in progress and "max_steps" in progress
            step = f"{progress['step']}/{progress['max_steps']}" if has_steps else "starting"
            table.add_row(
                str(slot),
                escape_unprintable(self.labels.get(folder, folder.name)),
                step,
                _format_loss(progress.get("loss")),
            )
        return table


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
