"""How a sweep is doing: a live panel on a terminal; elsewhere a line per run, and one every 15 s."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TextIO

from attnlab.errors import printable
from attnlab.store import runs
from attnlab.store.schema import RunRecord

_EVERY = 15.0  # seconds between two lines where there is no terminal
_REDRAW = 0.25


class Progress:
    """Told what runs and what ended. `labels` names the runs by their folder, `works` has the FLOPs of those
    that are not alike; use as a context manager.
    """

    def __init__(
        self, labels: Mapping[Path, str], out: TextIO | None = None, works: Mapping[Path, float] | None = None
    ) -> None:
        self.labels, self.out = labels, out or sys.stdout
        self.total, self.ended, self.failed = len(labels), 0, 0
        self.last = time.monotonic()
        self._works = {folder: max(1.0, (works or {}).get(folder, 1.0)) for folder in labels}  # of open runs
        self._took: dict[float, list[float]] = {}  # seconds of the runs that ended, by their work
        self._seen: dict[Path, tuple[float, float]] = {}  # when each was first seen, and how much was done
        self._live: Any = None

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Progress":
        """Of stored runs, under the names that people read."""
        specs = {folder: runs.spec(folder) for folder in folders}
        named = {folder: f"{spec.arm} seed={spec.seed}" for folder, spec in specs.items()}
        return cls(named, works={folder: spec.estimate.training_flops for folder, spec in specs.items()})

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
        work = self._works.pop(folder, 1.0)
        if record is not None and record.done and record.seconds is not None:
            self._took.setdefault(work, []).append(record.seconds)
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
        running = {folder: fraction(at) for folder, _, at in states}
        return f"{text}, {len(states)} running{_left(self._seconds_left(running))}"

    def _seconds_left(self, running: Mapping[Path, float]) -> float | None:
        """As long as runs of the same work took or are taking; those of another work by their FLOPs.

        `running` has how much of each is done; None where nothing tells yet.
        """
        now, took = time.monotonic(), {work: [*seconds] for work, seconds in self._took.items()}
        for folder, done in running.items():
            since, before = self._seen.setdefault(folder, (now, done))
            if done - before > 0.05 and folder in self._works:
                took.setdefault(self._works[folder], []).append((now - since) / (done - before))
        if not took:
            return None
        left = 0.0
        for folder, work in self._works.items():
            like = min(took, key=lambda known: abs(math.log(known / work)))
            left += (1 - running.get(folder, 0.0)) * mean(took[like]) * work / like
        return left / max(1, len(running))

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
