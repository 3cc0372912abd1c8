"""Number of seeds that a margin requires, by the spread of the finished pairs.

Before two pairs have finished, the standard deviation is that of `attnlab noise`, if it was measured.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.report.noise_schema import load_noise_reports
from attnlab.report.number_format import format_compute_amount
from attnlab.stats import PairedDifferences, find_seeds_for_equivalence
from attnlab.store import disk_cache, fingerprint
from attnlab.store.experiment_schema import resolve_resource_alias
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
        if differences.sd is not None and not differences.tied:
            required_seeds = _count_margin_seeds(differences.sd, margin, plan.runs[0].config)
            requirement = _describe_requirement(differences.sd, required_seeds, margin, len(experiment.seeds))
            text = f", {requirement}"
        elif measured := _describe_measured_noise(plan, arm, margin):
            text = f"; {measured}"
        else:
            text = ", so the standard deviation is not yet known"
        lines.append(f"{arm} - {baseline}: {differences.n} finished pairs{text}")
    return lines


def _describe_requirement(sd: float, required_seeds: int | None, margin: float, n_planned: int) -> str:
    return (
        f"sd {sd:.3g}; margin {margin:g} requires {required_seeds or 'more than 10,000'} seeds "
        f"({n_planned} planned)"
    )


def _describe_measured_noise(plan: Plan, arm: str, margin: float) -> str | None:
    """Describe the seeds required at the standard deviation that `attnlab noise` measured; None without one.

    It applies if both arms have the configs that it was measured with.
    """
    assert plan.experiment is not None
    weights = {arm: 1.0, plan.experiment.baseline: -1.0}
    digests = {name: plan.config_digests.get(name) for name in weights}
    folder = Path((plan.runs[0].config.get("paths") or {}).get("reports") or "reports")
    for path, report in load_noise_reports(folder).items():
        if report.metric != resolve_resource_alias(plan.experiment.metric) or any(
            report.config_digests.get(name) != digest for name, digest in digests.items()
        ):
            continue
        for difference in report.differences:
            if difference.weights == weights:
                required_seeds = _count_margin_seeds(difference.sd, margin, plan.runs[0].config)
                requirement = _describe_requirement(
                    difference.sd, required_seeds, margin, len(plan.experiment.seeds)
                )
                return f"{requirement}, by {path}"
    return None


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
