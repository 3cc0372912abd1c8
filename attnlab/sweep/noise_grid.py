"""Noise of an experiment: its arms trained on a grid of initialization seeds and data-order seeds.

`python -m attnlab noise` trains the arms that the claims about the experiment's metric compare, on seeds that
its comparison, tuning and calibration do not use. The runs are stored like any other.
"""

import importlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.errors import InvalidConfig
from attnlab.report.noise_schema import DetectableEffect, DifferenceNoise, NoiseReport, NoiseSources
from attnlab.report.number_format import format_difference
from attnlab.store import fingerprint, run_directories
from attnlab.store.atomic_files import read_json_object, write_json
from attnlab.store.experiment_schema import Claim, Experiment, format_sides, resolve_resource_alias
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.sweep.execute import process_control, worker_slots
from attnlab.sweep.plan.arms import link_parents
from attnlab.sweep.plan.compute_calibration.compute_calibration import compute_slope
from attnlab.sweep.plan.fork_server import Context
from attnlab.sweep.plan.overrides import get_leaf
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status import interim_status

MEASURE_MODULE = "attnlab.measure.window_scores"
INITIALIZATION_KEY, DATA_ORDER_KEY = "model.seed", "data.seed"
FIRST_SEED = 9000
MAX_LEVELS = 100
SEED_COUNTS = (2, 4, 8, 16, 22, 32)  # of the table of detectable effects
POWER, ALPHA = 0.8, 0.05
SCORE_BY_METRIC = {"val/loss": "loss", "val/accuracy": "correct"}  # metrics with a score per window


def plan_grid(plan: Plan, levels: int) -> Plan:
    """Plan the runs of an experiment's noise: every arm of its differences at each cell of the grid.

    Raises:
        InvalidConfig: There is no experiment, an arm has no learning rate yet or trains nothing, or the
            experiment uses a seed of the grid.
    """
    experiment = plan.experiment
    if experiment is None:
        raise InvalidConfig("noise needs an experiment, as in python -m attnlab noise +experiment=NAME")
    weights = list_differences(experiment)
    arms = [arm for arm in plan.arms if any(arm in each for each in weights)]
    if untuned := sorted({*arms} & {*plan.untuned_arms}):
        raise InvalidConfig(
            f"noise of {plan.title}: no learning rate is tuned yet for {', '.join(untuned)}: run the "
            "experiment first, or set tune=null"
        )
    parents = {plan.arms[arm].config(FIRST_SEED).get("parent") for arm in arms}
    arms += [arm for arm in plan.arms if arm in parents and arm not in arms]
    for arm in arms:
        _validate_arm(plan, arm)
    calibration = plan.compute_calibration.runs if plan.compute_calibration else []
    used = {*experiment.seeds, *(run.seed for run in (*calibration, *plan.tuning_runs))}
    cells = list_cells(levels)
    if shared := used & {seed for cell in cells for seed in cell}:
        raise InvalidConfig(
            f"seed {min(shared)} of {experiment.name} is one of attnlab noise (from {FIRST_SEED}): use others"
        )
    runs = [_make_cell_run(plan, arm, *cell) for arm in arms for cell in cells]
    return Plan(None, link_parents(runs, {*arms}))


def list_cells(levels: int) -> list[tuple[int, int, int]]:
    """List initialization seed, data-order seed and the run's own seed (dropout) of each cell.

    A cell has the same seeds in a grid of any size, so a larger grid keeps the runs of a smaller one.
    """
    return [
        (FIRST_SEED + row, FIRST_SEED + column, FIRST_SEED + MAX_LEVELS * row + column)
        for row in range(levels)
        for column in range(levels)
    ]


def list_differences(experiment: Experiment) -> list[dict[str, float]]:
    """List the weights of each difference that claims about the experiment's metric are about.

    Without such a claim: every arm minus the baseline.
    """
    weights = [experiment.get_claim_weights(claim) for claim in _select_claims(experiment)]
    weights = weights or [{arm: 1.0, experiment.baseline: -1.0} for arm in experiment.arms]
    distinct = [each for i, each in enumerate(weights) if len(each) > 1 and each not in weights[:i]]
    return [each for each in distinct if {*each} <= {*experiment.arms}]


def _select_claims(experiment: Experiment) -> list[Claim]:
    metric = resolve_resource_alias(experiment.metric)
    return [
        claim
        for claim in experiment.claims
        if experiment.get_claim_metric(claim) == metric
        and claim.compare == "difference"
        and not claim.identity
    ]


def _validate_arm(plan: Plan, arm: str) -> None:
    """Check that an arm trains, and that its two seeds can be set apart.

    Raises:
        InvalidConfig: It does not, or they cannot.
    """
    config = plan.arms[arm].config(FIRST_SEED)
    if config.get("measurement"):
        raise InvalidConfig(f"noise of {plan.title}: arm {arm} trains nothing: choose arms that train")
    for key in (INITIALIZATION_KEY, DATA_ORDER_KEY):
        group, _, leaf = key.partition(".")
        if leaf not in (config.get(group) or {}) or get_leaf(config, key) != FIRST_SEED:
            raise InvalidConfig(
                f"noise of {plan.title}: {key} of arm {arm} does not follow seed: set {key} to ${{seed}}"
            )


def _make_cell_run(plan: Plan, name: str, initialization: int, data_order: int, seed: int) -> RunConfig:
    arm = plan.arms[name]
    changes = {INITIALIZATION_KEY: initialization, DATA_ORDER_KEY: data_order}
    overrides = (*arm.overrides, *(f"{key}={value}" for key, value in changes.items()))
    cell = replace(arm, changes={**arm.changes, **changes}, overrides=overrides)
    return cell.make_run_configs([seed])[0]


def build_noise_report(
    plan: Plan, grid: Plan, levels: int, root: Path, context: Context | None, slots: int, command: str
) -> NoiseReport:
    """Build the report of a finished grid.

    Raises:
        InvalidConfig: A run of the grid has no value of the metric.
    """
    experiment = plan.experiment
    assert experiment is not None
    metric = resolve_resource_alias(experiment.metric)
    records = {run.id: run_directories.load_run_result(root / run.id) for run in grid.runs}
    values: dict[str, list[float]] = {}
    for run in grid.runs:
        record = records[run.id]
        value = record.get_value(metric) if record and record.is_done else None
        if value is None:
            state = record.status if record else "not trained"
            raise InvalidConfig(
                f"noise of {plan.title}: {run.arm} {run.id} has no {metric} ({state}): repeat the command, "
                "or choose an experiment whose runs all finish"
            )
        values.setdefault(run.arm, []).append(value)
    arrays = {arm: np.array(each).reshape(levels, levels) for arm, each in values.items()}
    scores = _load_window_scores(grid, metric, root, context)
    weights = list_differences(experiment)
    arms = [arm for arm in arrays if any(arm in each for each in weights)]
    margin = experiment.amount_to_nats(
        experiment.margin,
        compute_slope(plan.compute_calibration, interim_status.create_result_lookup(root)),
    )
    seconds = {
        arm: _average_seconds([records[run.id] for run in grid.runs if run.arm == arm]) for arm in arms
    }
    seed_minutes = float(np.mean([*seconds.values()])) * len(experiment.arms) / slots / 60
    family = _count_family(plan)
    first = next(record for record in records.values() if record)
    definition = first.get_metric(metric)
    return NoiseReport(
        experiment=experiment.name,
        title=plan.title,
        size=experiment.size,
        metric=metric,
        unit=definition.unit if definition else "",
        levels=levels,
        seeds=[FIRST_SEED + level for level in range(levels)],
        arms=[_summarize(arm, {arm: 1.0}, arrays, scores) for arm in arms],
        differences=[
            _describe_difference(experiment, each, arrays, scores, margin, family, seed_minutes)
            for each in weights
        ],
        margin=margin,
        margin_text=str(experiment.margin),
        power=POWER,
        alpha=ALPHA,
        family=family,
        config_digests={arm: plan.config_digests[arm] for arm in arms},
        runs=[run.id for run in grid.runs],
        seconds=seconds,
        slots=slots,
        command=command,
    )


def _average_seconds(records: Sequence[RunResult | None]) -> float:
    return float(np.mean([record.seconds or 0.0 for record in records if record]))


def _count_family(plan: Plan) -> int:
    """Count the claims that seeds decide, which share alpha; counts and times need none."""
    experiment = plan.experiment
    assert experiment is not None
    definitions = plan.runs[0].estimate.metric_definitions
    kinds = [
        definition.kind
        for claim in experiment.claims
        if not claim.identity and (definition := definitions.get(experiment.get_claim_metric(claim)))
    ]
    return max(1, sum(kind not in ("count", "time") for kind in kinds))


def _summarize(
    name: str,
    weights: Mapping[str, float],
    values: Mapping[str, np.ndarray[Any, Any]],
    scores: Mapping[str, list[Mapping[str, list[float]]]],
) -> NoiseSources:
    """Summarize a weighted sum of arms.

    Raises:
        InvalidConfig: It is equal in all runs.
    """
    from attnlab import stats

    combined = sum(weight * values[arm] for arm, weight in weights.items())
    components = stats.estimate_crossed_components(np.asarray(combined))
    if components is None:
        raise InvalidConfig(f"{name} is equal in all runs, so it has no noise: choose another metric")
    low, high = components.compute_sd_interval()
    names = {"rows": "initialization", "columns": "data order"}
    return NoiseSources(
        name=name,
        weights=dict(weights),
        mean=components.mean,
        initialization=math.sqrt(components.rows),
        data_order=math.sqrt(components.columns),
        rest=math.sqrt(components.rest),
        truncated=[names[source] for source in components.truncated],
        sd=components.sd,
        low=low,
        high=high,
        df=components.df,
        evaluation=_compute_sampling_error(weights, scores) if scores else None,
    )


def _compute_sampling_error(
    weights: Mapping[str, float], scores: Mapping[str, list[Mapping[str, list[float]]]]
) -> float:
    """Compute the standard error over the windows, whose scores are averaged over the runs first."""
    from attnlab import stats

    sums = sum(
        weight * np.mean([run["score"] for run in scores[arm]], axis=0) for arm, weight in weights.items()
    )
    counts = np.array(next(iter(scores.values()))[0]["targets"])
    return stats.estimate_sampling_error(np.asarray(sums), counts)


def _describe_difference(
    experiment: Experiment,
    weights: Mapping[str, float],
    values: Mapping[str, np.ndarray[Any, Any]],
    scores: Mapping[str, list[Mapping[str, list[float]]]],
    margin: float | None,
    family: int,
    seed_minutes: float,
) -> DifferenceNoise:
    from attnlab import stats

    sources = _summarize(format_difference(*format_sides(weights)), weights, values, scores)
    claims = [claim for claim in _select_claims(experiment) if experiment.get_claim_weights(claim) == weights]
    thresholds = [
        margin if isinstance(claim.threshold, str) and claim.threshold == "margin" else claim.threshold
        for claim in claims
    ]
    return DifferenceNoise(
        **dict(sources),
        detectable=[
            DetectableEffect(
                seeds=n,
                single=stats.find_detectable_effect(n, POWER, ALPHA) * sources.sd,
                holm=stats.find_detectable_effect(n, POWER, ALPHA / family) * sources.sd,
                minutes=n * seed_minutes,
            )
            for n in SEED_COUNTS
        ],
        seeds_for_margin=stats.find_seeds_for_equivalence(margin / sources.sd, POWER, ALPHA)
        if margin
        else None,
        thresholds=[float(each) for each in thresholds if isinstance(each, int | float)],
    )


def _load_window_scores(
    grid: Plan, metric: str, root: Path, context: Context | None
) -> dict[str, list[Mapping[str, list[float]]]]:
    """Return the score and the number of targets of each window, per arm and run; {} if there are none.

    They are measured in a process of their own, and cached in a file named by the digest of the runs.
    """
    score = SCORE_BY_METRIC.get(metric)
    if score is None:
        return {}
    ids = [run.id for run in grid.runs]
    path = root / "windows" / f"{fingerprint.compute_digest(ids)}.json"
    if not read_json_object(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        slot = worker_slots.list_worker_slots(grid.runs[0].estimate.device_kind, 1)[0]
        arguments = [str(path), json.dumps([str(root / id_) for id_ in ids])]
        if worker_slots.run_child(slot, context, __name__, arguments, path.with_suffix(".log")):
            print(f"no scores of validation windows: see {path.with_suffix('.log')}", flush=True)
    scores_by_run = read_json_object(path)
    by_arm: dict[str, list[Mapping[str, list[float]]]] = {}
    for run in grid.runs if scores_by_run else []:
        window_scores = scores_by_run[run.id]
        by_arm.setdefault(run.arm, []).append(
            {"score": window_scores[score], "targets": window_scores["targets"]}
        )
    return by_arm


def main(arguments: list[str]) -> int:
    """Score the windows of finished runs in this process.

    Args:
        arguments: output file; run directories as JSON.
    """
    measure = importlib.import_module(MEASURE_MODULE).measure_window_scores
    scores = {}
    for folder in map(Path, json.loads(arguments[1])):
        scores[folder.name] = measure(folder)
    write_json(Path(arguments[0]), scores)
    return 0


if __name__ == "__main__":
    sys.exit(process_control.run_guarded(main, sys.argv[1:]))
