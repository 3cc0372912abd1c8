"""How a sweep is doing: a live panel on a terminal; elsewhere a line per run, and one every 15 s."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from attnlab.errors import printable
from attnlab.store import runs
from attnlab.store.schema import RunRecord
from attnlab.sweep.execute.time_estimate import UNKNOWN, TimeEstimate

_EVERY = 15.0  # seconds between two lines where there is no terminal
_REDRAW = 0.25


class Progress:
    """Shows which runs are running and which have ended. `labels` names the runs by their folder, `works` has
    the arm of each and its FLOPs; use as a context manager.
    """

    def __init__(
        self,
        labels: Mapping[Path, str],
        out: TextIO | None = None,
        works: Mapping[Path, tuple[str, float]] | None = None,
    ) -> None:
        self.labels = labels
        self.out = out or sys.stdout
        self.total = len(labels)
        self.ended = 0
        self.failed = 0
        self.last = time.monotonic()
        self._open = {folder: (works or {}).get(folder, ("", 0.0)) for folder in labels}
        self._time = TimeEstimate()
        self._live: Any = None

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Progress":
        """Of stored runs, under the names that people read."""
        specs = {folder: runs.spec(folder) for folder in folders}
        named = {folder: f"{spec.arm} seed={spec.seed}" for folder, spec in specs.items()}
        works = {folder: (spec.arm, spec.estimate.training_flops) for folder, spec in specs.items()}
        return cls(named, works=works)

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

    def say(self, line: str) -> None:
        """A line that stays, above the panel where there is one."""
        line = printable(line)
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self.out, flush=True)

    def finished(self, folder: Path, record: RunRecord | None, note: str | None = None) -> None:
        """A line for the run; `note` is what became of one that is no failure and left no record."""
        self.ended += 1
        self.failed += note is None and (record is None or not record.done)
        arm, flops = self._open.pop(folder, ("", 0.0))
        if record is not None and record.done and record.seconds is not None:
            self._time.add_finished(arm, flops, record.seconds)
        name = self.labels.get(folder, folder.name)
        self.say(f"[{self.ended}/{self.total}] {name}  {note or ending(record)}  {folder}")

    def tick(self, running: Sequence[tuple[Path, int]]) -> None:
        """Redraw where it is time to. `running` holds folders and their slots."""
        now = time.monotonic()
        if now - self.last < (_REDRAW if self._live is not None else _EVERY):
            return
        self.last = now
        states = [(folder, slot, runs.progress(folder)) for folder, slot in running]
        if self._live is not None:
            self._live.update(self._panel(states), refresh=True)
        else:
            now_running = "; ".join(
                f"{self.labels.get(folder, folder.name)} {_state(at)}" for folder, _, at in states
            )
            self.say(f"{self._summary(states)}: {now_running}")

    def _summary(self, states: Sequence[tuple[Path, int, Mapping[str, Any]]]) -> str:
        text = f"{self.ended}/{self.total} runs ended"
        if self.failed:
            text += f", {self.failed} failed"
        text += f", {len(states)} running"
        if not self._open:
            return text
        seconds = self._seconds_left(states)
        return text + (f", time left {UNKNOWN}" if seconds is None else f", about {duration(seconds)} left")

    def _seconds_left(self, states: Sequence[tuple[Path, int, Mapping[str, Any]]]) -> float | None:
        """Of all runs that have not ended, in as many slots as are busy now; None where it is unknown."""
        done = {folder: fraction(at) for folder, _, at in states}
        for folder, _, at in states:
            if folder in self._open:
                self._time.add_steps(str(folder), self._open[folder][1], at)
        left = [
            (1 - done.get(folder, 0.0)) * seconds
            for folder, (arm, flops) in self._open.items()
            if (seconds := self._time.seconds(arm, flops)) is not None
        ]
        return sum(left) * len(self._open) / len(left) / max(1, len(states)) if left else None

    def _panel(self, states: Sequence[tuple[Path, int, Mapping[str, Any]]]) -> Any:
        from rich.table import Table

        table = Table(title=self._summary(states), title_justify="left", box=None, pad_edge=False)
        for heading in ("slot", "run", "step", "loss"):
            table.add_column(heading, justify="left" if heading == "run" else "right")
        for folder, slot, at in sorted(states, key=lambda state: state[1]):
            step = f"{at['step']}/{at['max_steps']}" if "step" in at and "max_steps" in at else "starting"
            table.add_row(
                str(slot), printable(self.labels.get(folder, folder.name)), step, _number(at.get("loss"))
            )
        return table


def ending(record: RunRecord | None) -> str:
    """How a run ended, in a few words."""
    if record is None:
        return "missing"
    if not record.done:
        return f"{record.status}: {record.failure.message if record.failure else ''}"
    loss = record.metrics.get("val/loss")
    took = f"  {record.seconds:.1f} s" if record.seconds is not None else ""
    return (f"done  val/loss {loss:.4f}" if loss is not None else "done") + took + _leakage(record)


def _leakage(record: RunRecord) -> str:
    """Whether a model of next tokens was seen to use later ones; "" where that was not measured."""
    seen = record.leakage
    if not seen.get("next_token"):
        return ""
    if seen.get("sees_future"):
        return "  SEES FUTURE TOKENS"
    if seen.get("sees_rows"):
        return "  SEES OTHER ROWS"
    prefix = seen.get("prefix") or 0
    return f"  sees its first {prefix} tokens whole" if prefix > 1 else "  no future tokens seen"


def fraction(at: Mapping[str, Any]) -> float:
    """How much of a run is done, by what it last said."""
    step = at.get("step")
    most = at.get("max_steps")
    return min(1.0, step / most) if isinstance(step, int) and isinstance(most, int) and most > 0 else 0.0


def _state(at: Mapping[str, Any]) -> str:
    if "step" not in at:
        return "starting"
    return f"step {at['step']}/{at.get('max_steps', '?')} loss {_number(at.get('loss'))}"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"
