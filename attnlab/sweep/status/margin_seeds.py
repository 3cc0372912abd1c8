"""Number of seeds that a margin requires, by the spread of the finished pairs.

Before two pairs have finished, the expected spread is sqrt(2) times that of the baseline's finished runs, as
if the runs of a pair were independent: pairing gains little (docs/noise.md).
"""

import math
from collections.abc import Mapping
from statistics import stdev
from typing import Any

from attnlab.report.number_format import format_compute_amount
from attnlab.stats import PairedDifferences, find_seeds_for_equivalence
from attnlab.store import disk_cache, fingerprint
from attnlab.store.run_schema import RunResult
from attnlab.store.source_digests import hash_sources
from attnlab.sweep.plan.compute_calibration.compute_calibration import compute_slope
from attnlab.sweep.plan.plan import Plan

_POWER_MODULE = "attnlab.stats.power"


def describe_margin_seeds(plan: Plan, records: Mapping[str, RunResult]) -> list[str]:
    """Describe, per arm, the spread of its finished seed pairs and the seeds that the margin requires.

    Args:
        plan: a plan with an experiment.
        records: run id -> result of each finished run.
    """
    assert plan.experiment is not None
    experiment = plan.experiment
    metric = experiment.metric
    baseline = experiment.baseline
    margin = experiment.amount_to_nats(
        experiment.margin, compute_slope(plan.compute_calibration, records.get)
    )
    if margin is None:
        amount = format_compute_amount(str(experiment.margin))
        return [f"{amount}: not yet known in nats, so the required number of seeds is unknown"]
    values = {
        (run.arm, run.seed): value
        for run in plan.runs
        if run.id in records and (value := records[run.id].metrics.get(metric)) is not None
    }
    baseline_values = [values[baseline, seed] for seed in experiment.seeds if (baseline, seed) in values]
    expected_sd = math.sqrt(2) * stdev(baseline_values) if len(baseline_values) > 1 else 0.0
    lines = []
    for arm in plan.group_runs_by_arm():
        if arm == baseline:
            continue
        differences = PairedDifferences(
            [
                values[arm, seed] - values[baseline, seed]
                for seed in experiment.seeds
                if (arm, seed) in values and (baseline, seed) in values
            ]
        )
        sd, source = differences.sd, ""
        if sd is None and expected_sd:
            sd, source = expected_sd, f" expected from {len(baseline_values)} runs of {baseline}"
        if sd is None or differences.tied:
            text = "so the standard deviation is not yet known"
        else:
            required_seeds = _count_margin_seeds(sd, margin, plan.runs[0].config) or "more than 10,000"
            text = (
                f"sd {sd:.3g}{source}; margin {margin:g} requires {required_seeds} seeds "
                f"({len(experiment.seeds)} planned)"
            )
        lines.append(f"{arm} - {baseline}: {differences.n} finished pairs, {text}")
    return lines


def _count_margin_seeds(sd: float, margin: float, config: Mapping[str, Any]) -> int | None:
    """Count the seeds that the margin requires at this standard deviation; None for more than 10,000.

    The result is cached by its inputs and code: its computation imports scipy.integrate, which is slow.
    """
    key = fingerprint.compute_digest([sd, margin, hash_sources([_POWER_MODULE])])
    match disk_cache.read_cache_entry(config, "seeds", key):
        case [int() | None as seeds]:
            return seeds
    seeds = find_seeds_for_equivalence(margin / sd)
    disk_cache.write_cache_entry(config, "seeds", key, [seeds])
    return seeds
