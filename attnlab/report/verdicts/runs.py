"""What the report is made from: the runs of one sweep, found or missing, and how to look up their figures."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Run:
    """One planned run. `record` is its run.json, or None where it never ended; it counts all the same."""

    arm: str
    seed: int
    id: str
    record: dict[str, Any] | None = None
    curves: pa.Table | None = None
    maps: dict[str, np.ndarray] | None = None

    @property
    def status(self) -> str:
        return "missing" if self.record is None else self.record["status"]

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def head_scores(self) -> dict[str, list[list[float | None]]]:
        """The scores that a finished run has, each [layer][head]."""
        found = (self.record or {}).get("head_scores") or {} if self.done else {}
        return {name: table for name, table in found.items() if isinstance(table, list)}


def read_run(folder: Path, arm: str, seed: int) -> Run:
    """The run in `folder` of the store; what is absent is None. ValueError for what is there and broken."""
    return Run(
        arm,
        seed,
        folder.name,
        record=_read(folder / "run.json", lambda path: json.loads(path.read_text("utf-8"))),
        curves=_read(folder / "curves.parquet", pq.read_table),
        maps=_read(folder / "attention.npz", lambda path: dict(np.load(path))),
    )


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    if not path.exists():
        return None
    try:
        return read(path)
    except (ValueError, OSError, EOFError, BadZipFile) as error:  # ArrowInvalid is a ValueError
        raise ValueError(f"{path}: cut short or broken; delete it and run the command again") from error


def figure(record: dict[str, Any], name: str) -> float | None:
    """A number of a finished run by its name: a metric, a budget row, a memory or a speed figure."""
    for group in ("metrics", "budget", "memory", "speed"):
        value = (record.get(group) or {}).get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
            return float(value)
    return None


@dataclass(frozen=True)
class Sweep:
    """All planned runs of an experiment, each under its arm and seed."""

    experiment: dict[str, Any]
    runs: list[Run]
    timing: dict[str, Any] | None = None
    at: dict[tuple[str, int], Run] = field(init=False)

    def __post_init__(self) -> None:
        at: dict[tuple[str, int], Run] = {
            (arm, seed): Run(arm, seed, "") for arm in self.arms for seed in self.seeds
        }
        at.update({(run.arm, run.seed): run for run in self.runs})
        object.__setattr__(self, "at", at)

    @property
    def arms(self) -> list[str]:
        return list(self.experiment["arms"])

    @property
    def seeds(self) -> list[int]:
        return list(self.experiment["seeds"])

    @property
    def baseline(self) -> str:
        return self.experiment["baseline"]

    @property
    def others(self) -> list[str]:
        return [arm for arm in self.arms if arm != self.baseline]

    @property
    def planned(self) -> list[Run]:
        """Every arm and seed in the declared order, the missing ones too."""
        return [self.at[arm, seed] for arm in self.arms for seed in self.seeds]

    def of(self, arm: str) -> list[Run]:
        return [self.at[arm, seed] for seed in self.seeds]

    def done(self, arm: str) -> list[Run]:
        return [run for run in self.of(arm) if run.done]

    @cached_property
    def budgets(self) -> dict[str, float]:
        """The budget of every censored metric; all runs of a sweep have the same."""
        return {
            metric: found["budget"]
            for run in self.planned
            for metric, found in ((run.record or {}).get("censored") or {}).items()
        }

    def reached(self, arm: str, seed: int, metric: str) -> float | None:
        """The steps at which a run reached a censored metric's mark; None where it did not."""
        found = ((self.at[arm, seed].record or {}).get("censored") or {}).get(metric) or {}
        return found.get("value") if self.at[arm, seed].done else None

    def value(self, arm: str, seed: int, metric: str) -> float | None:
        """A finished run's figure. Of a censored metric min(steps, budget); a diverged run has the budget."""
        run = self.at[arm, seed]
        budget = self.budgets.get(metric)
        if budget is not None:
            measured = run.done and run.record and metric in (run.record.get("censored") or {})
            reached = self.reached(arm, seed, metric)
            known = measured or run.status == "diverged"
            return min(budget, budget if reached is None else reached) if known else None
        return figure(run.record, metric) if run.done and run.record else None

    def values(self, arm: str, metric: str) -> list[float]:
        return [v for seed in self.seeds if (v := self.value(arm, seed, metric)) is not None]

    def has(self, arm: str, metric: str) -> bool:
        """Whether the arm's runs measure it: none of them has ended well, or one that has knows it."""
        return bool(self.values(arm, metric)) or not self.done(arm)

    def pairs(self, arm: str, against: str, metric: str) -> list[dict[str, Any]]:
        """The seeds that both arms finished: seed, value, against, difference."""
        rows = []
        for seed in self.seeds:
            ours, theirs = self.value(arm, seed, metric), self.value(against, seed, metric)
            if ours is not None and theirs is not None:
                rows.append({"seed": seed, "value": ours, "against": theirs, "difference": ours - theirs})
        return rows


def common(values: Iterable[Any]) -> Any:
    """The one value that all share; None where there is none or they differ."""
    seen = list(values)
    return seen[0] if seen and all(value == seen[0] for value in seen) else None
