"""Build a report from runs, as a pure function: the same runs always give the same report.json.

All decisions are made here; the renderers only lay them out. A sweep without any usable run still gets a
report, with the verdict NO RESULT.
"""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from attnlab.report.schema import (
    BudgetCheck,
    ClaimResult,
    ClaimStatus,
    ExperimentSummary,
    IncomparablePair,
    Provenance,
    Report,
    RunningTextSection,
    RunRow,
    TimingResult,
    VerdictSection,
)
from attnlab.report.tables.condition_tables import build_condition_tables
from attnlab.report.tables.config_diff import NON_DESIGN_KEYS, build_config_diff, build_reproduce_section
from attnlab.report.tables.curves import build_curves, build_position_losses
from attnlab.report.tables.grid_cells import build_grid_section
from attnlab.report.tables.head_scores import build_heads_section
from attnlab.report.tables.headline import format_headline
from attnlab.report.tables.steps_to_threshold import build_threshold_tables
from attnlab.report.tables.text.samples import build_samples
from attnlab.report.tables.text.token_category_losses import build_token_categories
from attnlab.report.tables.tradeoff import build_tradeoff_panels
from attnlab.report.verdicts import comparability, leakage_check
from attnlab.report.verdicts.budget_check import build_budget_check, describe_repeated_epochs
from attnlab.report.verdicts.claim_groups import build_claim_groups
from attnlab.report.verdicts.claim_results import (
    MARGIN_OVERRIDDEN,
    build_claim_results,
    build_claim_statuses,
)
from attnlab.report.verdicts.effects import build_effects, list_metrics
from attnlab.report.verdicts.environment import describe_broken_files, describe_mixed_environments
from attnlab.report.verdicts.failures import build_failures, describe_lost_runs, find_deviations
from attnlab.report.verdicts.results import Run, SweepContext, SweepResults, get_resource
from attnlab.report.verdicts.training_equivalence import build_calibration_section, format_margin
from attnlab.report.verdicts.tuning_summary import list_tuning_warnings
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import flatten_config
from attnlab.store.run_schema import Budget


def build_report(
    context: SweepContext, runs: list[Run], timing: TimingResult | None, provenance: Provenance
) -> Report:
    """Build the report of a sweep: numbers, decisions and warnings."""
    sweep = SweepResults(context, runs, timing)
    deviations = find_deviations(sweep)
    budget_check = build_budget_check(sweep)
    claims = build_claim_results(sweep, budget_check, exploratory=bool(deviations))
    effects = build_effects(sweep, claims, budget_check)
    incomparable = comparability.find_incomparable_arms(sweep, budget_check, context.experiment.metric)
    finished = sum(run.is_done for run in sweep.planned_runs)
    report = Report(
        experiment=summarize_experiment(sweep),
        verdict=VerdictSection(
            headline=format_headline(claims, context.not_preregistered),
            exploratory=bool(deviations),
            not_preregistered=context.not_preregistered,
            deviations=deviations,
            not_comparable=_list_incomparable_pairs(sweep, budget_check, claims),
            run_warnings=[
                *_describe_unfinished_runs(sweep),
                *describe_lost_runs(sweep),
                *describe_broken_files(sweep),
                *describe_mixed_environments(sweep),
                *describe_repeated_epochs(sweep),
            ],
            claims=claims,
            finished=finished,
            planned=len(sweep.planned_runs),
        ),
        replication=context.replication,
        corpora=None,  # filled in once every corpus has its report
        budget=budget_check,
        leakage=leakage_check.build_leakage_section(sweep),
        compute_calibration=build_calibration_section(sweep),
        effects=effects,
        tradeoff=build_tradeoff_panels(sweep, effects),
        curves=build_curves(sweep, incomparable),
        positions=build_position_losses(sweep),
        length=build_condition_tables(sweep),
        steps_to_threshold=build_threshold_tables(sweep, budget_check),
        heads=build_heads_section(sweep),
        text=RunningTextSection(
            token_categories=build_token_categories(sweep, incomparable), samples=build_samples(sweep)
        ),
        failures=build_failures(sweep),
        config=build_config_diff(sweep),
        axes={run.arm: dict(run.axes) for run in sweep.planned_runs},
        reproduce=build_reproduce_section(sweep, provenance),
        timing=timing,
        runs=[build_run_row(run, sweep) for run in sweep.planned_runs],
        warnings=collect_warnings(sweep, budget_check, deviations),
        preregistration=None,
        grid=build_grid_section(sweep, budget_check),
        claim_groups=build_claim_groups(sweep, budget_check, claims),
    )
    rounded = Report.model_validate(to_plain_json(report.to_dict()))
    # the preregistration keeps every digit, because its hash covers them
    return rounded.model_copy(update={"preregistration": context.preregistration})


def summarize_experiment(sweep: SweepResults) -> ExperimentSummary:
    """Summarize the experiment for the top of a report, with its margin in the metric's unit."""
    settings = sweep.experiment.to_dict()
    if sweep.is_overridden("margin") and not sweep.is_overridden("margin_reason"):
        settings["margin_reason"] = MARGIN_OVERRIDDEN
    return ExperimentSummary(
        **{key: settings[key] for key in Experiment.list_summary_keys()}
        | {"margin": sweep.margin, "margin_text": format_margin(sweep)}
    )


def compute_claim_statuses(context: SweepContext, runs: list[Run]) -> list[ClaimStatus]:
    """Compute each claim's verdict, interim analyses and required seeds from the runs so far."""
    sweep = SweepResults(context, runs)
    return build_claim_statuses(sweep, build_budget_check(sweep))


def _describe_unfinished_runs(sweep: SweepResults) -> list[str]:
    """Describe the runs still to come, if the report is written before they finish."""
    work_left = sweep.context.work_left
    return (
        [f"Preliminary report, verdicts may change. {work_left[0].upper()}{work_left[1:]}."]
        if work_left
        else []
    )


def _list_incomparable_pairs(
    sweep: SweepResults, budget_check: BudgetCheck, claims: list[ClaimResult]
) -> list[IncomparablePair]:
    """List the pairs that are not compared in a metric, from tables and claims, with reasons."""
    comparisons = [
        (arm, sweep.baseline, metric) for metric in list_metrics(sweep) for arm in sweep.treatment_arms
    ]
    comparisons += [(*pair, claim.metric) for claim in claims for pair in combinations(claim.arms, 2)]
    pairs = []
    for arm, against, metric in dict.fromkeys(comparisons):
        if reasons := comparability.list_incomparability_reasons(sweep, budget_check, arm, against, metric):
            texts = [reason.text for reason in reasons]
            pairs.append(IncomparablePair(arm=arm, against=against, metric=metric, reasons=texts))
    return pairs


def build_run_row(run: Run, sweep: SweepResults | None = None) -> RunRow:
    """Build the row of a run with its grouped figures; losses leave out the excluded targets."""
    result = run.result
    figures: dict[str, float | None] = dict(result.metrics) if result else {}
    if result and run.is_done and sweep is not None and sweep.excluded_targets:
        figures |= {name: sweep.get_value(run.arm, run.seed, name) for name in result.by_position}
    return RunRow(
        arm=run.arm,
        seed=run.seed,
        id=run.id,
        status=run.status,
        seconds=result.seconds if result else None,
        started=result.started if result else None,
        metrics=figures,
        budget=Budget(**{key: get_resource(result, key) for key in result.estimate.get_budget()})
        if result
        else Budget(),
        memory=result.memory if result else {},
        speed=result.speed if result else {},
        head_scores={name: _round_scores(table) for name, table in run.head_scores.items()},
    )


def _round_scores(table: list[list[float | None]]) -> list[list[float | None]]:
    """Four digits, far below the noise between runs: these scores are most of a stored report."""
    return [[None if score is None else round(score, 4) for score in layer] for layer in table]


def collect_warnings(sweep: SweepResults, budget_check: BudgetCheck, deviations: list[str]) -> list[str]:
    """Collect, a sentence each, the warnings to read before the numbers."""
    warnings = []
    if sweep.context.overrides and not deviations:
        warnings.append(
            f"The command changed the experiment: {', '.join(sweep.context.overrides)}. It was preregistered "
            "before any of its results, so this is another test of the claims."
        )
    n_seeds = min(len(sweep.get_runs(arm)) for arm in sweep.arms)
    if n_seeds < 6:
        floor = 2.0 ** (1 - n_seeds)
        warnings.append(
            f"With {n_seeds} seed{'s' * (n_seeds != 1)} the exact sign-flip test has no p-value below "
            f"{floor:.3g}: use the interval instead."
        )
    for row in budget_check.rows:
        if row.controlled and row.mark == "unknown":
            warnings.append(f"{row.label}: controlled, but no finished run has a value.")
    for arm in sweep.treatment_arms:
        if reasons := comparability.list_incomparability_reasons(
            sweep, budget_check, arm, sweep.baseline, sweep.experiment.metric
        ):
            warnings.append(f"{arm}: {'; '.join(reason.text for reason in reasons)}.")
    warnings += [*describe_confounds(sweep), *describe_shared_seeds(sweep)]
    warnings += list_tuning_warnings(sweep)
    for run in sweep.planned_runs:
        parts = run.result.split if run.result else 1
        if parts > 1:
            warnings.append(
                f"{run.arm}, seed {run.seed}: each batch was split into {parts} micro-batches to fit in "
                "memory; the effective batch size is unchanged, but speed and peak memory are not."
            )
    warnings += [sentence for run in sweep.planned_runs if (sentence := describe_resumption(run))]
    for run in sweep.planned_runs:
        memory = run.result.memory if run.result else {}
        formula = memory.get("kv_bytes_per_token_formula")
        live = memory.get("kv_bytes_per_token_live")
        if formula is not None and live is not None and formula != live:
            warnings.append(
                f"{run.arm}, seed {run.seed}: the live cache holds {live} B per token, but the formula gives "
                f"{formula} B."
            )
    return warnings


def describe_resumption(run: Run) -> str:
    """Describe how closely a resumed run reproduces the original; on a CPU it is identical."""
    result = run.result
    if result is None or not result.resumed:
        return ""
    error = max((row["off"] for row in result.resumed if row["off"] is not None), default=None)
    if not error and result.environment.get("device") == "cpu":
        return ""
    comparison = "no step was trained twice, so its deviation from an uninterrupted run is unknown"
    comparison = (
        comparison if error is None else f"the loss of a step trained twice differed by {error:.2g} nats"
    )
    return f"{run.arm}, seed {run.seed}: resumed from a checkpoint; {comparison}."


def to_plain_json(value: Any) -> Any:
    """Convert to plain JSON types: NumPy numbers become Python's, and non-finite numbers None."""
    if isinstance(value, dict):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain_json(value.item())
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else None
    return value


def describe_confounds(sweep: SweepResults) -> list[str]:
    """Describe each arm that changes both the model and its training, a sentence each.

    A learning rate tuned per arm, here or at another size, `min_lr` in proportion to it, and the key that
    matches budgets do not count as a change of training. An arm that only measures another arm's model trains
    nothing.
    """
    configs = {
        arm: next(
            (
                dict(flatten_config(run.result.config))
                for run in sweep.get_runs(arm)
                if run.result and not run.result.config.get("measurement")
            ),
            None,
        )
        for arm in sweep.arms
    }
    baseline_config = configs[sweep.baseline]
    excluded = {sweep.experiment.match_by}
    replication = sweep.context.replication
    has_tuned_rates = sweep.context.tuning or (replication and replication.rates)
    excluded |= {"optim.lr"} if has_tuned_rates else set()
    skipped = (NON_DESIGN_KEYS - {"parent"}) | {"measure", "decode"}
    sentences = []
    for arm in sweep.treatment_arms:
        if baseline_config is None or (config := configs[arm]) is None:
            continue
        differing = {
            key
            for key in config.keys() | baseline_config.keys()
            if config.get(key) != baseline_config.get(key)
        } - excluded
        if has_tuned_rates and _has_proportional_rates(config, baseline_config):
            differing.discard("optim.min_lr")
        training_keys = sorted(key for key in differing if key.partition(".")[0] not in {"model", *skipped})
        if training_keys and any(key.startswith("model.") for key in differing):
            sentences.append(
                f"{arm} changes the model and also {', '.join(training_keys)}: its difference from "
                f"{sweep.baseline} is the combined effect."
            )
    return sentences


def _has_proportional_rates(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the last learning rates of both configs are in the same proportion to the highest ones."""
    lr, min_lr, other_lr, other_min_lr = (
        float(values.get(f"optim.{key}") or 0) for values in (config, other) for key in ("lr", "min_lr")
    )
    return math.isclose(min_lr * other_lr, other_min_lr * lr)


def describe_shared_seeds(sweep: SweepResults) -> list[str]:
    """Describe each arm whose seeds share one parent run, initialization, data order or dropout.

    Its runs are less independent than their number suggests.
    """
    sentences = []
    for arm in sweep.arms:
        parents = [result.config.get("parent") for result in sweep.get_finished_results(arm)]
        if len(parents) > 1 and len({*parents}) == 1 and parents[0]:
            sentences.append(
                f"All seeds of {arm} start from one run ({parents[0]}), so the interval understates the "
                "variation."
            )
        for part in ("model", "data", "optim"):
            seeds = [result.config.get(part, {}).get("seed") for result in sweep.get_finished_results(arm)]
            distinct = {*seeds}
            if len(seeds) > 1 and len(distinct) == 1 and None not in distinct:
                shared = f"{part}.seed={distinct.pop()}"
                sentences.append(
                    f"All seeds of {arm} share {shared}, so the interval understates the variation."
                )
    return sentences
