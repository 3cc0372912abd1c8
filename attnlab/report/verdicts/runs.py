"""What the report is made from: the runs of one sweep, found or missing, and how to look up their figures."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from attnlab.errors import Refused
from attnlab.report.schema import ExchangeFound, Pair, Place, Timing, TuningFound
from attnlab.store import runs as store
from attnlab.store.declarations import Experiment
from attnlab.store.guards import digests
from attnlab.store.guards.declared import Declared
from attnlab.store.schema import Metric, RunRecord, refuse_other_version


@dataclass(frozen=True)
class Run:
    """One planned run. `record` is its run.json, or None where it never ended; it counts all the same.
    `broken`: file -> what is wrong with it, of those that are not as the run wrote them. `axes`: what was
    chosen of each group. `ancestor_tokens`: those that its parent, and the parent's, were trained on; None
    where one is missing.
    """

    arm: str
    seed: int
    id: str
    record: RunRecord | None = None
    curves: pa.Table | None = None
    maps: dict[str, NDArray[Any]] | None = None
    broken: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    ancestor_tokens: int | None = 0

    @property
    def status(self) -> str:
        return "missing" if self.record is None else self.record.status

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def lost(self) -> bool:
        """Whether its infrastructure failed, so that it is missing and no outcome of its arm."""
        return self.record is not None and self.record.lost

    @property
    def head_scores(self) -> dict[str, list[list[float | None]]]:
        """The scores that a finished run has, each [layer][head]."""
        scores = self.record.head_scores if self.record and self.done else {}
        return {name: table for name, table in scores.items() if isinstance(table, list)}

    @property
    def chance(self) -> dict[str, float]:
        """What uniform attention would score on this run's text."""
        return (self.record.head_scores.get("chance") if self.record else None) or {}


def read_run(folder: Path, arm: str, seed: int, axes: Mapping[str, str] | None = None) -> Run:
    """The run in `folder` of the store; what is absent is None, and what is broken is None and named.
    ValueError for a broken record.
    """
    record = _record(folder / "run.json")
    broken = digests.broken(folder, record, most=digests.LARGE) if record else {}

    def read(name: str, reader: Callable[[Path], Any]) -> Any:
        if name in broken or not (folder / name).exists():
            return None
        try:
            return reader(folder / name)
        except Exception:  # parquet, zip, zlib and numpy have their own
            broken[name] = "cannot be read"
            return None

    curves = read(digests.CURVES, pq.read_table)
    maps = read(digests.MAPS, read_arrays)
    return Run(
        arm, seed, folder.name, record, curves, maps, broken, axes or {}, _ancestor_tokens(folder, record)
    )


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an npz file. ValueError for pickles, which are never run."""
    with np.load(path, allow_pickle=False) as loaded:
        return dict(loaded)


def _ancestor_tokens(folder: Path, record: RunRecord | None) -> int | None:
    """Tokens that the ancestors of a run in the same store were trained on; None where one is missing."""
    tokens = 0
    seen = {folder.name}
    while record is not None and (parent := record.config.get("parent")) and parent not in seen:
        seen.add(parent)
        record = store.record(folder.with_name(str(parent)))  # None of one that cannot be trusted
        if record is None:
            return None
        tokens += record.estimate.tokens or 0
    return tokens


def _record(path: Path) -> RunRecord | None:
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
        refuse_other_version(document, path)
        if changed := digests.edited(document):
            raise Refused(f"{path}: {', '.join(changed)} edited after the run; run the command again")
        return RunRecord.model_validate(document)
    except Refused:
        raise
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: cut short or broken; delete it and run the command again") from error


@dataclass(frozen=True)
class Reason:
    """Why two arms cannot be compared: what differs, and the sentence that says so."""

    label: str
    text: str


@dataclass(frozen=True)
class Asked:
    """An experiment as it was carried out, and what its file declares of it (None: nobody knows).

    `overrides` are the command line's, `unchecked` the laws that the sweep was told to go on without, and
    `tuning` how the learning rates were tuned: what was declared, and per arm what was found.
    `wanted` says how many seeds of an arm its claims have needed, where not all. `outdated` counts, per part
    of a record, the runs in which other code than today's has measured it.
    `on_record` is the declaration in the store's log, None where there is none. `exchange` is what the
    baseline at half and at twice its steps tells, as `sweep.plan.exchange` has it. `place`: on which text, or
    at which rung, the experiment is asked here. `under_way`: runs may still be trained.
    `undeclared`: there is no experiment, and so no margin; a command compared what it swept.
    """

    experiment: Experiment
    overrides: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    tuning: TuningFound | None = None
    declared: dict[str, Any] | None = None
    wanted: Mapping[str, int] = field(default_factory=dict)
    outdated: Mapping[str, int] = field(default_factory=dict)
    on_record: Declared | None = None
    exchange: ExchangeFound | None = None
    place: Place | None = None
    under_way: bool = False
    undeclared: bool = False


@dataclass(frozen=True)
class Sweep:
    """All planned runs of an experiment, each under its arm and seed."""

    asked: Asked
    runs: list[Run]
    timing: Timing | None = None
    at: dict[tuple[str, int], Run] = field(init=False)

    def __post_init__(self) -> None:
        at: dict[tuple[str, int], Run] = {
            (arm, seed): Run(arm, seed, "") for arm in self.arms for seed in self.seeds
        }
        at.update({(run.arm, run.seed): run for run in self.runs})
        object.__setattr__(self, "at", at)

    @property
    def experiment(self) -> Experiment:
        return self.asked.experiment

    @property
    def slope(self) -> float | None:
        """Nats per doubling of training; None where nothing tells."""
        told = self.asked.exchange
        return told.slope.mean if told is not None and told.slope is not None and not told.why else None

    @property
    def margin(self) -> float | None:
        """In the metric's unit; None where there is none, or it is in training and nobody knows of it."""
        return None if self.asked.undeclared else self.experiment.nats(self.experiment.margin, self.slope)

    @property
    def arms(self) -> list[str]:
        return self.experiment.arms

    @property
    def seeds(self) -> list[int]:
        return self.experiment.seeds

    @property
    def baseline(self) -> str:
        return self.experiment.baseline

    @property
    def others(self) -> list[str]:
        return [arm for arm in self.arms if arm != self.baseline]

    @property
    def planned(self) -> list[Run]:
        """Every arm and seed in the declared order, the missing ones too."""
        return [run for arm in self.arms for run in self.of(arm)]

    def of(self, arm: str) -> list[Run]:
        """Those that the looks have come to."""
        return [self.at[arm, seed] for seed in self.seeds[: self.asked.wanted.get(arm)]]

    def done(self, arm: str) -> list[Run]:
        return [run for run in self.of(arm) if run.done]

    @cached_property
    def records(self) -> list[RunRecord]:
        """Of every run that left one, done or failed."""
        return [run.record for run in self.planned if run.record]

    @cached_property
    def times(self) -> dict[str, Metric]:
        """What was timed after the training, in a process that had the machine to itself."""
        return self.timing.declared if self.timing else {}

    @cached_property
    def _declared(self) -> dict[str, Metric]:
        metrics: dict[str, Metric] = {}
        said = [{**record.estimate.declared, **record.declared} for record in self.records]
        for name, metric in (item for table in [*said, self.times] for item in table.items()):
            mute = name in metrics and not (
                metrics[name].label or metrics[name].unit or metrics[name].direction
            )
            if name not in metrics or mute:
                metrics[name] = metric
        return metrics

    def metric(self, name: str) -> Metric:
        """What a metric is, as the first run declares it that has words for it; else its name alone."""
        return self._declared.get(name) or Metric(name)

    def having(self, metric: str, arms: Iterable[str]) -> list[RunRecord]:
        """The finished runs of these arms that have a figure."""
        records = [run.record for arm in arms for run in self.done(arm) if run.record]
        return [record for record in records if record.figure(metric) is not None]

    def counted(self, metric: str, arms: Sequence[str]) -> bool:
        """Whether it was counted in every run of these arms, or of all where these have none."""
        records = self.having(metric, arms) or self.having(metric, self.arms)
        return bool(records) and all(kind(record, metric) == "count" for record in records)

    @cached_property
    def budgets(self) -> dict[str, float]:
        """The budget of every censored metric; all runs of a sweep have the same."""
        return {
            metric: float(steps.budget)
            for record in self.records
            for metric, steps in record.censored.items()
        }

    def reached(self, arm: str, seed: int, metric: str) -> float | None:
        """The steps at which a run reached a censored metric's mark; None where it did not."""
        run = self.at[arm, seed]
        steps = run.record.censored.get(metric) if run.record and run.done else None
        return None if steps is None else steps.value

    def value(self, arm: str, seed: int, metric: str) -> float | None:
        """A finished run's figure. Of a censored metric min(steps, budget); a diverged run has the budget."""
        run = self.at[arm, seed]
        budget = self.budgets.get(metric)
        if budget is not None:
            measured = run.done and run.record and metric in run.record.censored
            reached = self.reached(arm, seed, metric)
            known = measured or run.status == "diverged"
            return min(budget, budget if reached is None else reached) if known else None
        if not (run.done and run.record):
            return None
        if self.left_out and metric in run.record.by_position and run.record.targets_by_position:
            return _mean_beyond(run.record, metric, self.left_out)
        return run.record.figure(metric)

    def prefix(self, arm: str) -> int:
        """How many first tokens of a window an arm sees whole; 0 for a causal one."""
        return max(
            (int(run.record.leakage.get("prefix") or 0) for run in self.done(arm) if run.record), default=0
        )

    @cached_property
    def left_out(self) -> int:
        """How many first targets of a window count in no arm: they lie in the longest prefix of any arm."""
        return max(0, *(self.prefix(arm) - 1 for arm in self.arms))

    def values(self, arm: str, metric: str) -> list[float]:
        """Of the seeds that the looks have come to: others may lie in the store for another experiment."""
        return [v for run in self.of(arm) if (v := self.value(arm, run.seed, metric)) is not None]

    def has(self, arm: str, metric: str) -> bool:
        """Whether the arm's runs measure it: none of them has ended well, or one that has knows it."""
        return bool(self.values(arm, metric)) or not self.done(arm)

    def tried(self, arms: Iterable[str], seeds: Sequence[int]) -> bool:
        """Whether all of these runs have an outcome, good or bad. A lost run has none: it is trained again,
        and a decision without it could rest on a biased subset.
        """
        return all((run := self.at[arm, seed]).record and not run.lost for arm in arms for seed in seeds)

    def outcomes(
        self, arm: str, against: str, metric: str, seeds: Sequence[int], direction: str | None
    ) -> list[float]:
        """The paired differences, where an arm that diverged has the worst outcome there is: infinity on the
        side that is worse, and NaN where both did, or nobody says which side that is.
        """
        out = []
        for seed in seeds:
            ours = self.value(arm, seed, metric)
            theirs = self.value(against, seed, metric)
            lost = [self.at[name, seed].status == "diverged" for name in (arm, against)]
            if ours is not None and theirs is not None:
                out.append(ours - theirs)
            elif all(value is not None or gone for value, gone in zip((ours, theirs), lost, strict=True)):
                worse = {"lower": math.inf, "higher": -math.inf}.get(direction or "", math.nan)
                out.append(math.nan if all(lost) else worse if lost[0] else -worse)
        return out

    def pairs(self, arm: str, against: str, metric: str, seeds: Sequence[int] | None = None) -> list[Pair]:
        """The seeds that both arms finished: seed, value, against, difference."""
        rows = []
        for seed in self.seeds if seeds is None else seeds:
            ours = self.value(arm, seed, metric)
            theirs = self.value(against, seed, metric)
            if ours is not None and theirs is not None:
                rows.append(Pair(seed=seed, value=ours, against=theirs, difference=ours - theirs))
        return rows


def _mean_beyond(record: RunRecord, metric: str, left_out: int) -> float | None:
    """The mean over validation targets without the first ones of each window; None where none remain."""
    counts = record.targets_by_position[left_out:]
    losses = record.by_position[metric][left_out:]
    scored = [(loss, count) for loss, count in zip(losses, counts, strict=True) if loss is not None and count]
    total = sum(count for _, count in scored)
    return sum(loss * count for loss, count in scored) / total if total else None


def kind(record: RunRecord, name: str) -> str:
    """The kind of a run's figure. What is known before a run starts is counted, whoever adds it."""
    said = record.metric(name)
    known_before = record.estimate.get(name) is not None and name not in record.metrics
    return said.kind if said else "count" if known_before else "seeds"


def common(values: Iterable[Any]) -> Any:
    """The one value that all share; None where there is none or they differ."""
    seen = list(values)
    return seen[0] if seen and all(value == seen[0] for value in seen) else None
