"""What a run will take, from what its like have taken, and how many seeds a margin asks for.

A time is start-up + steps and validations at their pace. The pace is that of finished runs which differ by
their seed, or by their number of steps; else that of a trial; else that of the finished run whose steps are
nearest in FLOPs on the same kind of device, and then it is marked as a guess. Start-up is what the quickest
finished run took beside its steps, whatever it trained, so that one debug run tells it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from attnlab.store import answers, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.schema import Budget, Estimate, RunRecord, RunSpec
from attnlab.store.source import sources
from attnlab.sweep.plan.exchange.told import slope
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.trials import Trial, like

_POWER = "attnlab.stats.power"
_AT_THE_END = 500  # rows that are read once more when a run has ended: leakage, bytes, heads and memory
_SPANS = 32  # rows whose loss is taken at each of `measure.lengths`


@dataclass(frozen=True)
class Forecast:
    """Seconds and peak bytes, None where nothing is known; `guess` where they come from an unlike run."""

    seconds: float | None = None
    bytes: int | None = None
    guess: bool = False


class Forecaster:
    """Predictions from the finished runs of a store, and from `trials` by kind of run (`trials.like`)."""

    def __init__(self, records: Sequence[RunRecord], trials: Mapping[str, Trial] | None = None) -> None:
        self.records = [record for record in records if record.seconds is not None]
        self.trials = trials or {}
        self.twins: dict[tuple[str, str], list[RunRecord]] = {}
        for record in self.records:
            name = record.estimate.device_kind, _kind(record.config)
            self.twins.setdefault(name, []).append(record)

    def knows(self, run: RunSpec) -> bool:
        """Whether finished runs tell what it takes, so that no trial is asked for."""
        return bool(self._twins(run) or self._of_other_steps(run))

    def of(self, run: RunSpec) -> Forecast:
        if twins := self._twins(run):
            peaks = [peak for record in twins if (peak := _peak(record))]
            held = max(peaks, default=run.estimate.memory_bytes)
            return Forecast(median(record.seconds or 0.0 for record in twins), held)
        others, start = self._of_other_steps(run), self._start(run.estimate.device_kind)
        held = max((peak for record in others if (peak := _peak(record))), default=run.estimate.memory_bytes)
        trial = _pace(others, start or 0.0) if others else self.trials.get(like(run.config))
        if trial and run.estimate.steps:
            first = trial["start"] if start is None else start
            rows = _rows(run.config, run.estimate)
            return Forecast(first + run.estimate.steps * trial["step"] + rows * trial["row"], held)
        if (seconds := self._scaled(run, start or 0.0)) is not None:
            return Forecast(seconds, held, guess=True)
        return Forecast(bytes=held)

    def _twins(self, run: RunSpec) -> list[RunRecord]:
        """Finished runs on such a device that differ by their seed alone."""
        return self.twins.get((run.estimate.device_kind, _kind(run.config)), [])

    def _of_other_steps(self, run: RunSpec) -> list[RunRecord]:
        """Those that differ by their number of steps and their rate too, and have not far fewer steps."""
        least = (run.estimate.steps or math.inf) / 10
        found = self._alike.get((run.estimate.device_kind, like(run.config)), [])
        return [record for record in found if (record.estimate.steps or 0) >= least]

    @cached_property
    def _alike(self) -> dict[tuple[str, str], list[RunRecord]]:
        alike: dict[tuple[str, str], list[RunRecord]] = {}
        for record in self.records:
            alike.setdefault((record.estimate.device_kind, like(record.config)), []).append(record)
        return alike

    def _start(self, kind: str) -> float | None:
        """Seconds of the quickest finished run beside its steps; None where none on such a device tells."""
        beside = [
            max(0.0, (record.seconds or 0.0) - busy)
            for record in self.records
            if record.estimate.device_kind == kind and (busy := _busy(record))
        ]
        return min(beside, default=None)

    def _scaled(self, run: RunSpec, start: float) -> float | None:
        """By the FLOPs of the run whose steps are nearest in them."""
        wanted, kind = run.estimate.training_flops, run.estimate.device_kind
        near = [
            record
            for record in self.records
            if record.estimate.device_kind == kind and record.estimate.training_flops
        ]
        if not (wanted and near):
            return None
        step = _step_work(run.estimate)
        nearest = min(near, key=lambda record: abs(math.log(_step_work(record.estimate) / step)))
        took = max(0.0, (nearest.seconds or 0.0) - start)
        return start + took * wanted / nearest.estimate.training_flops


def _pace(records: Sequence[RunRecord], start: float) -> Trial:
    """What a step and a row took in finished runs, as a trial has it."""
    steps, rows = [], []
    for record in records:
        left = max(0.0, (record.seconds or 0.0) - start)
        busy = min(_busy(record) or left, left)
        steps.append(busy / (record.estimate.steps or 1))
        rows.append((left - busy) / _rows(record.config, record.estimate))
    return {"start": start, "step": median(steps), "row": median(rows)}


def _rows(config: Mapping[str, Any], estimate: Estimate) -> float:
    """Rows that are read beside the training: by validations and by what is measured at the end."""
    measured, data, steps = config.get("measure") or {}, config.get("data") or {}, estimate.steps or 0
    lengths = measured.get("lengths") or []
    validations = -(-steps // min(measured.get("every") or steps, steps)) if steps else 0
    return float(
        validations * (estimate.data.get("val_windows") or 0)
        + _AT_THE_END
        + (data.get("batch_size") or 0)
        + _SPANS * len(lengths) * max(lengths, default=0)
    )


def _kind(config: Mapping[str, Any]) -> str:
    return fingerprint.digest(fingerprint.unseeded(config))


def _step_work(budget: Budget) -> float:
    return budget.training_flops / (budget.steps or 1)


def _busy(record: RunRecord) -> float | None:
    """Seconds of its steps alone."""
    pace = record.speed.get("train_tokens_per_s")
    return (record.estimate.tokens or 0) / pace if pace else None


def _peak(record: RunRecord) -> int | None:
    peak = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
    return int(peak) if peak else None


def seeds_asked(plan: Plan, records: Mapping[str, RunRecord]) -> list[str]:
    """A line per arm: how the finished pairs of seeds spread, and what the margin asks for then."""
    assert plan.experiment is not None
    experiment = plan.experiment
    metric, base = experiment.metric, experiment.baseline
    margin = experiment.nats(experiment.margin, slope(plan.exchange, records.get))
    if margin is None:
        return [f"{experiment.margin}: not known in nats yet, and so not the seeds that it asks for"]
    values = {
        (run.arm, run.seed): value
        for run in plan.runs
        if run.id in records and (value := records[run.id].metrics.get(metric)) is not None
    }
    lines = []
    for arm in plan.arms():
        if arm == base:
            continue
        pairs = finished_pairs(experiment, values, arm, base)
        differences = [ours - theirs for ours, theirs in pairs]
        planned = _planning(differences, margin, plan.runs[0].config) if len(pairs) > 1 else None
        if planned is None:
            lines.append(f"{arm} - {base}: {len(pairs)} finished pairs, so the spread is not known yet")
            continue
        sd, wanted = planned
        lines.append(
            f"{arm} - {base}: {len(pairs)} finished pairs, sd {sd:.3g}; margin {margin:g} asks for "
            f"{wanted or 'more than 10,000'} seeds ({len(experiment.seeds)} planned)"
        )
    return lines


def finished_pairs(
    experiment: Experiment, values: Mapping[tuple[str, int], float], arm: str, against: str
) -> list[tuple[float, float]]:
    """The values of two arms, seed by seed where both have one; `values` are by arm and seed."""
    return [
        (values[arm, seed], values[against, seed])
        for seed in experiment.seeds
        if (arm, seed) in values and (against, seed) in values
    ]


def _planning(
    differences: Sequence[float], margin: float, config: Mapping[str, Any]
) -> tuple[float, int | None] | None:
    """The differences' sd, and the seeds that the margin asks for (None: too many); None where all are equal.

    Kept in the cache by what they are made of: to import scipy takes longer than all the rest of a plan.
    """
    key = fingerprint.digest([list(differences), margin, sources([_POWER])])
    match answers.kept(config, "seeds", key):
        case [float(sd), int() | None as seeds]:
            return sd, seeds
    from attnlab.stats import planning

    planned = planning(differences, margin)
    if planned is None:
        return None
    answers.keep(config, "seeds", key, [planned.sd, planned.seeds_for_margin])
    return planned.sd, planned.seeds_for_margin
