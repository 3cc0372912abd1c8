"""What a run will take, from what its like have taken, and how many seeds a margin asks for.

A prediction comes from finished runs that differ from it by their seed alone; where there is none, from the
run that is nearest in training FLOPs on the same kind of device, scaled, and marked as a guess.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from attnlab.store import answers, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.schema import Budget, RunRecord, RunSpec
from attnlab.store.source import sources
from attnlab.sweep.plan.exchange.told import slope
from attnlab.sweep.plan.plan import Plan

_POWER = "attnlab.stats.power"


@dataclass(frozen=True)
class Forecast:
    """Seconds and peak bytes, None where nothing is known; `guess` where they come from an unlike run."""

    seconds: float | None = None
    bytes: int | None = None
    guess: bool = False


class Forecaster:
    """Predictions from the finished runs of a store."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records = [record for record in records if record.seconds is not None]
        self.alike: dict[str, list[RunRecord]] = {}
        for record in self.records:
            self.alike.setdefault(_kind(record.config), []).append(record)

    def of(self, run: RunSpec) -> Forecast:
        if like := self.alike.get(_kind(run.config)):
            peaks = [peak for record in like if (peak := _peak(record))]
            return Forecast(median(record.seconds or 0.0 for record in like), max(peaks, default=None))
        wanted = _work(run.estimate)
        kind = run.estimate.device_kind
        near = [
            record
            for record in self.records
            if record.estimate.device_kind == kind and _work(record.estimate)
        ]
        if not (wanted and near):
            return Forecast()
        nearest = min(near, key=lambda record: abs(math.log(_work(record.estimate) / wanted)))
        return Forecast((nearest.seconds or 0.0) * wanted / _work(nearest.estimate), guess=True)


def _kind(config: Mapping[str, Any]) -> str:
    return fingerprint.digest(fingerprint.unseeded(config))


def _work(budget: Budget) -> float:
    return float((budget.flops_per_token or 0) * (budget.tokens or 0))


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
