"""Comparability of two arms in a metric: like with like, or NOT COMPARABLE with the reason.

Claims, effects and rankings all use this check. Counted and timed metrics depend on no data and see no
targets, so only budgets declared `controlled` can make them incomparable.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.report.schema import BudgetCheck
from attnlab.report.verdicts import leakage_check
from attnlab.report.verdicts.budget_check import find_budget_violations
from attnlab.report.verdicts.results import IncomparabilityReason, SweepResults
from attnlab.store import fingerprint
from attnlab.store.experiment_schema import TUNING_TOKENS
from attnlab.store.run_schema import Budget, RunResult
from attnlab.store.source_digests import is_user_name

DATASET_KEYS = ("name", "val_tokens", "val_windows", "vocab_size")  # distinguish two validation sets
LOSS_UNITS = ("nats", "bits")
ROUNDING = 1e-3  # of a recomputed value, relative if it is above 1; of bfloat16 and of compiled kernels


def list_incomparability_reasons(
    sweep: SweepResults, budget_check: BudgetCheck, arm: str, against: str, metric: str
) -> list[IncomparabilityReason]:
    """List the reasons against comparing two arms in a metric; [] if they are comparable."""
    reasons = find_budget_violations(budget_check, arm, against)
    if not _is_prediction(sweep, metric):
        return reasons
    reasons += leakage_check.find_leakage_reasons(sweep, arm, against)
    pairs = [pair for pair in _iterate_result_pairs(sweep, arm, against) if not any(map(_is_analytic, pair))]
    for check in (
        _check_data,
        _check_metric_definitions,
        _check_validation_schedule,
        _check_prefix,
        _check_recomputed_values,
        _check_interference,
    ):
        reasons += next(
            ([reason] for pair in pairs if (reason := check(sweep, metric, arm, against, *pair))), []
        )
    return reasons


def find_incomparable_arms(sweep: SweepResults, budget_check: BudgetCheck, metric: str) -> set[str]:
    """Find the arms that cannot be compared with the baseline in a metric."""
    return {
        arm
        for arm in sweep.treatment_arms
        if list_incomparability_reasons(sweep, budget_check, arm, sweep.baseline, metric)
    }


def list_unshared_parts(sweep: SweepResults, arms: Sequence[str]) -> list[str]:
    """List, a phrase each, the callbacks and the user's own parts that not all of these arms have."""
    parts_by_arm = {
        arm: set(_iterate_checked_parts(results[0].config))
        for arm in arms
        if (results := sweep.get_finished_results(arm))
    }
    phrases = []
    for part in sorted(set().union(*parts_by_arm.values())):
        owners = [arm for arm, parts in parts_by_arm.items() if part in parts]
        if len(owners) < len(parts_by_arm):
            phrases.append(f"Only {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} {part}")
    return phrases


def _iterate_checked_parts(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the key of each callback, with its settings, and of each part whose code is not attnlab's."""
    callbacks = config.get("callbacks") or {}
    for name, callback in callbacks.items():
        if callback:
            settings = [f"{key}={value}" for key, value in callback.items() if key != "_target_"]
            yield f"callbacks.{name} ({', '.join([str(callback.get('_target_')), *settings])})"
    others = {key: value for key, value in config.items() if key not in ("callbacks", "logger")}
    for key, target in fingerprint.find_targets(others):
        if is_user_name(str(target)):
            yield f"{key.rpartition('.')[0]} ({target})"


def _is_prediction(sweep: SweepResults, metric: str) -> bool:
    """Whether a metric comes from a model's predictions, and is no resource, memory, speed, time or count."""
    if metric in sweep.timed_metrics or metric in Budget.model_fields or metric == TUNING_TOKENS:
        return False
    if any(metric in (result.memory | result.speed) for result in sweep.run_results):
        return False
    return not sweep.is_counted(metric, sweep.arms)


def _iterate_result_pairs(
    sweep: SweepResults, arm: str, against: str
) -> Iterator[tuple[RunResult, RunResult]]:
    """Yield the run results of both arms for each seed that both finished."""
    for seed in sweep.seeds:
        run = sweep.run_by_arm_seed[arm, seed]
        against_run = sweep.run_by_arm_seed[against, seed]
        if run.is_done and against_run.is_done and run.result and against_run.result:
            yield run.result, against_run.result


def _is_analytic(result: RunResult) -> bool:
    """Whether a run's figures are computed from theory or shapes alone, without data."""
    return bool(result.config.get("measurement")) and result.estimate.data.get("validation") is None


def _check_data(
    sweep: SweepResults, metric: str, arm: str, against: str, ours: RunResult, theirs: RunResult
) -> IncomparabilityReason | None:
    """Check that losses are on the same validation data in the same unit; per byte, on the same text."""
    a = ours.estimate.data
    b = theirs.estimate.data
    definition = sweep.get_metric(metric)
    is_measurement = bool(ours.config.get("measurement") or theirs.config.get("measurement"))
    if is_measurement and definition.unit not in LOSS_UNITS:
        return None  # a study's own figure, such as a proportion of heads
    same_text = a.get("val_text") is not None and a.get("val_text") == b.get("val_text")
    if definition.evaluated_on == "bytes":
        text = f"{metric} of {arm} and {against} uses different validation corpora"
        return (
            None
            if same_text or _is_unknown(a, b, "val_text")
            else IncomparabilityReason("validation text", text)
        )
    if definition.evaluated_on == "lengths":
        settings = [_get_length_settings(result) for result in (ours, theirs)]
        if settings[0] == settings[1] or _is_unknown(a, b, "val_text"):
            return None
        text = f"{metric} of {arm} and {against} uses different corpora or lengths: "
        text += _format_differences(*settings)
        return IncomparabilityReason("validation text", text)
    if a.get("unit") != b.get("unit") and not _is_unknown(a, b, "unit"):
        text = f"{metric} is per {a['unit']} in {arm} and per {b['unit']} in {against}"
        text += (
            _suggest_per_byte_metric(sweep)
            if same_text
            else "; the arms share no validation corpus, so a per-byte metric does not compare them"
        )
        return IncomparabilityReason("unit of the loss", text)
    if a.get("validation") == b.get("validation") or _is_unknown(a, b, "validation"):
        return None
    facts = [{key: data.get(key) for key in DATASET_KEYS} for data in (a, b)]
    for fact, result in zip(facts, (ours, theirs), strict=True):
        fact["length"] = result.estimate.context
    differing = _format_differences(*facts) or "different tokens or targets"
    text = f"{arm} and {against} are validated on different data ({differing})"
    text += _suggest_per_byte_metric(sweep) if same_text else ": use the same data for both"
    return IncomparabilityReason("validation data", text)


def _suggest_per_byte_metric(sweep: SweepResults) -> str:
    """Suggest the runs' per-byte metric, which compares different units of the same text."""
    known = {**sweep.run_results[0].metric_definitions, **sweep.run_results[0].estimate.metric_definitions}
    name = next((name for name, metric in known.items() if metric.evaluated_on == "bytes"), None)
    return f": compare {name}" if name else ""


def _get_length_settings(result: RunResult) -> dict[str, Any]:
    """Return the settings that select the tokens of losses at several lengths."""
    measure = result.config.get("measurement") or result.config.get("measure", {})
    data = result.estimate.data
    trained = measure.get("trained") or result.estimate.context
    facts = {key: data.get(key) for key in ("unit", "vocab_size", "val_text")}
    return {**facts, "trained length": trained, "lengths": measure.get("lengths")}


def _check_metric_definitions(
    sweep: SweepResults, metric: str, arm: str, against: str, ours: RunResult, theirs: RunResult
) -> IncomparabilityReason | None:
    """Check that both arms define the metric alike."""
    definitions = [result.get_metric(metric) for result in (ours, theirs)]
    if None in definitions or definitions[0] == definitions[1]:
        return None
    facts = [
        {key: getattr(definition, key) for key in ("unit", "kind", "direction")} for definition in definitions
    ]
    shared_keys = [key for key in facts[0] if facts[0][key] and facts[1][key]]  # missing contradicts none
    differing = _format_differences(*({key: definition[key] for key in shared_keys} for definition in facts))
    text = f"{arm} and {against} define {metric} differently ({differing})"
    return IncomparabilityReason("meaning of the metric", text) if differing else None


def _check_validation_schedule(
    sweep: SweepResults, metric: str, arm: str, against: str, ours: RunResult, theirs: RunResult
) -> IncomparabilityReason | None:
    """Check the validation schedule of metrics that depend on how often validation runs."""
    if metric not in sweep.censoring_budgets and sweep.get_metric(metric).evaluated_on != "best":
        return None
    facts = [
        {"measure.every": result.config.get("measure", {}).get("every"), "steps": result.estimate.steps}
        for result in (ours, theirs)
    ]
    if not (differing := _format_differences(*facts)):
        return None
    return IncomparabilityReason("validations", f"{metric} depends on the validation schedule ({differing})")


def _check_prefix(
    sweep: SweepResults, metric: str, arm: str, against: str, ours: RunResult, theirs: RunResult
) -> IncomparabilityReason | None:
    """Check that a metric excludes the targets in an arm's visible prefix; only losses by position can."""
    with_prefix = [name for name in (arm, against) if sweep.get_prefix_length(name) > 1]
    counts = [result.targets_by_position for result in (ours, theirs)]
    none_in_prefix = all(counts) and not any(sum(each[: sweep.excluded_targets]) for each in counts)
    if not with_prefix or none_in_prefix or (all(counts) and metric in ours.by_position):
        return None
    alternative = next(iter(ours.by_position or theirs.by_position), "another run")
    text = (
        f"{metric} includes targets in the prefix that {with_prefix[0]} sees in full: compare {alternative}"
    )
    return IncomparabilityReason("prefix", text)


def _check_recomputed_values(
    sweep: SweepResults, metric: str, arm: str, against: str, ours: RunResult, theirs: RunResult
) -> IncomparabilityReason | None:
    """Check that both runs report the values that their final weights have."""
    rows = [
        (name, result, key) for name, result in ((arm, ours), (against, theirs)) for key in result.recomputed
    ]
    for name, result, key in rows:
        reported, recomputed = result.metrics.get(key), result.recomputed[key]
        if reported is not None and abs(reported - recomputed) > ROUNDING * max(1.0, abs(recomputed)):
            text = f"{name} reports {key} {reported:.4g} with seed {result.seed}, but the logits of its "
            text += f"final weights give {recomputed:.4g}: a part changes the loss or the weights"
            return IncomparabilityReason("recomputed loss", text)
    return None


def _check_interference(
    sweep: SweepResults, metric: str, arm: str, against: str, ours: RunResult, theirs: RunResult
) -> IncomparabilityReason | None:
    """Check that no part used the validation data in one arm only."""
    uses = [(result.interference, result.config.get("callbacks")) for result in (ours, theirs)]
    if uses[0] == uses[1] or not (ours.interference or theirs.interference):
        return None
    facts = [
        f"{name}: {', '.join(result.interference)}"
        for name, result in ((arm, ours), (against, theirs))
        if result.interference
    ]
    text = f"the arms do not treat the validation data alike ({'; '.join(facts)})"
    return IncomparabilityReason("use of the validation data", text)


def _is_unknown(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    """Whether one side lacks the key: a user's own trainer, or an older run result."""
    return a.get(key) is None or b.get(key) is None


def _format_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Format the keys in which two mappings differ, with both values; empty if none."""
    shown = [(key, str(a[key])[:60], str(b.get(key))[:60]) for key in a if a[key] != b.get(key)]
    return ", ".join(f"{key} {one} and {other}" for key, one, other in shown)
