"""How a sweep is doing: a live panel on a terminal; elsewhere a line per run, and one every 15 s."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from attnlab.errors import printable
from attnlab.store import runs
from attnlab.store.schema import RunRecord

_EVERY = 15.0  # seconds between two lines where there is no terminal
_REDRAW = 0.25


def labels(folders: Sequence[Path]) -> dict[Path, str]:
    """What the runs are called where people read of them."""
    specs = {folder: runs.spec(folder) for folder in folders}
    return {folder: f"{spec.arm} seed={spec.seed}" for folder, spec in specs.items()}


class Progress:
    """Told what runs and what ended. `labels` names the runs by their folder; use as a context manager."""

    def __init__(self, labels: Mapping[Path, str], out: TextIO | None = None) -> None:
        self.labels, self.out = labels, out or sys.stdout
        self.total, self.ended, self.failed = len(labels), 0, 0
        self.began = self.last = time.monotonic()
        self._live: Any = None

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
        return f"{text}, {len(states)} running{_left(self._seconds_left([at for *_, at in states]))}"

    def _seconds_left(self, states: Sequence[Mapping[str, Any]]) -> float | None:
        worked = self.ended + sum(fraction(at) for at in states)
        if worked < 0.05:
            return None
        return (self.total - worked) * (time.monotonic() - self.began) / worked

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
    return (f"done  val/loss {loss:.4f}" if loss is not None else "done") + took


def fraction(at: Mapping[str, Any]) -> float:
    """How much of a run is done, by what it last said."""
    step, most = at.get("step"), at.get("max_steps")
    return min(1.0, step / most) if isinstance(step, int) and isinstance(most, int) and most > 0 else 0.0


def _state(at: Mapping[str, Any]) -> str:
    if "step" not in at:
        return "starting"
    return f"step {at['step']}/{at.get('max_steps', '?')} loss {_number(at.get('loss'))}"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"
