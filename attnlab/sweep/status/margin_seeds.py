"""How many seeds the margin asks for, by the spread of the finished pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.store import answers, fingerprint
from attnlab.store.schema import RunRecord
from attnlab.store.source import sources
from attnlab.sweep.plan.exchange.told import slope
from attnlab.sweep.plan.plan import Plan

_POWER = "attnlab.stats.power"


def describe_margin_seeds(plan: Plan, records: Mapping[str, RunRecord]) -> list[str]:
    """A line per arm: the spread of its finished pairs of seeds, and the seeds that the margin asks for."""
    assert plan.experiment is not None
    experiment = plan.experiment
    metric = experiment.metric
    base = experiment.baseline
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
        differences = [
            values[arm, seed] - values[base, seed]
            for seed in experiment.seeds
            if (arm, seed) in values and (base, seed) in values
        ]
        known = len(differences) > 1
        planned = _planning(differences, margin, plan.runs[0].config) if known else None
        if planned is None:
            lines.append(f"{arm} - {base}: {len(differences)} finished pairs, so the spread is not known yet")
            continue
        sd, wanted = planned
        lines.append(
            f"{arm} - {base}: {len(differences)} finished pairs, sd {sd:.3g}; margin {margin:g} asks for "
            f"{wanted or 'more than 10,000'} seeds ({len(experiment.seeds)} planned)"
        )
    return lines


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
