"""Failed runs with their last lines of output, caveats, and deviations from the preregistration.

A run lost to its infrastructure has its own label and is no failure of its arm.
"""

from collections.abc import Iterable
from typing import Any

from attnlab.report.number_format import format_compute_amount
from attnlab.report.schema import FailedRun, FailureCount, Failures
from attnlab.report.verdicts import leakage_check
from attnlab.report.verdicts.results import SweepResults
from attnlab.store.config_groups import format_value
from attnlab.store.experiment_schema import ComputeProportion, Experiment

STATUS_LABELS = {
    "diverged": "diverged",
    "out_of_memory": "ran out of memory",
    "crashed": "crashed",
    "timed_out": "timed out",
    "killed": "lost to the machine",
    "host_out_of_memory": "lost to the machine",
    "missing": "no run result",
}


def build_failures(sweep: SweepResults) -> Failures:
    """Build the failed runs and the counts per arm; the denominator is the number of planned runs."""
    rows = []
    for run in sweep.planned_runs:
        if run.is_done:
            continue
        failure = run.result.failure if run.result else None
        rows.append(
            FailedRun(
                arm=run.arm,
                seed=run.seed,
                id=run.id,
                status=run.status,
                status_label=STATUS_LABELS[run.status],
                message=failure.message if failure else None,
                step=failure.step if failure else None,
                tail=list(failure.tail[-20:]) if failure else [],
            )
        )
    counts = [
        FailureCount(
            arm=arm,
            planned=len(sweep.get_runs(arm)),
            failed=sum(not run.is_done and not run.is_lost for run in sweep.get_runs(arm)),
            lost=sum(run.is_lost for run in sweep.get_runs(arm)),
        )
        for arm in sweep.arms
    ]
    labels = [row.status_label for row in rows]
    status_counts = [
        (label, labels.count(label)) for label in dict.fromkeys(STATUS_LABELS.values()) if label in labels
    ]
    return Failures(runs=rows, counts=counts, status_counts=status_counts, caveats=list_caveats(sweep))


def describe_lost_runs(sweep: SweepResults) -> list[str]:
    """Describe the runs lost to their infrastructure in a sentence; [] if there are none."""
    runs = [f"{run.arm} seed {run.seed}" for run in sweep.planned_runs if run.is_lost]
    if not runs:
        return []
    pronoun = "it" if len(runs) == 1 else "them"
    return [
        f"Lost to the machine: {', '.join(runs)}. A lost run is no failure of its arm, and claims that need "
        f"{pronoun} are pending: run the same command again to train {pronoun}."
    ]


def list_caveats(sweep: SweepResults) -> list[str]:
    """List the limits of the intervals in plain words."""
    estimates = [record.estimate for record in sweep.run_results]
    data = sorted({estimate.data["name"] for estimate in estimates if "name" in estimate.data})
    sizes = sorted({estimate.parameters for estimate in estimates if estimate.parameters})
    scale = (
        f"{sizes[0]:,} to {sizes[-1]:,} parameters"
        if len(sizes) > 1
        else f"{sizes[0]:,} parameters"
        if sizes
        else "this size"
    )
    rates = sorted({estimate.lr for estimate in estimates if estimate.lr is not None})
    lr = ", ".join(f"{rate:g}" for rate in rates) or "one learning rate"
    waived = [
        f"An attention invariant fails, and the sweep waived it: {line}."
        for line in sweep.context.waived_invariants
    ]
    return [
        *waived,
        *leakage_check.describe_leakage(sweep),
        "The intervals cover the variation over seeds. "
        f"They do not cover data other than {', '.join(data) or 'these'}, "
        f"scales other than {scale}, or other hyperparameters (learning rate {lr}).",
        "Attention weights show where information is routed from. "
        "They do not explain the predictions of the model.",
        "Training speeds of concurrent runs are indicative only; the timing figures come from a process "
        "that ran alone on the machine.",
    ]


def find_deviations(sweep: SweepResults) -> list[str] | None:
    """Find where the sweep deviates from its experiment file, and changes made after results were known.

    None if neither is known. Without a preregistration, the list names the missing parts.
    """
    if sweep.context.not_preregistered:
        single_seed = "only one seed, so no difference has an interval: set seed=0,1,2"
        return [
            "no claim, no margin and no number of seeds",
            *([single_seed] if len(sweep.seeds) == 1 else ()),
        ]
    later_changes = sweep.context.preregistration.deviations if sweep.context.preregistration else []
    declared = sweep.context.preregistered
    settings = sweep.experiment.to_dict()
    if not declared:
        return later_changes or None
    stated = {key: value for key, value in declared.items() if value is not None}
    expected = _get_default_values(declared) | Experiment.model_validate(settings | stated).model_dump(
        include=set(stated)
    )
    if isinstance(looks := declared.get("looks"), list) and declared.get("seeds") is None:
        expected["seeds"] = list(range(looks[-1]))  # as many as the last interim analysis has
    if {"claims", "arms"} <= set(stated):  # a ladder may leave out arms, and the claims about them
        known_arms = {*expected["arms"], None}
        expected["claims"] = [
            claim
            for claim in expected["claims"]
            if {claim["arm"], claim["against"], *(claim["contrast"] or ())} <= known_arms
        ]
    actual = sweep.experiment.model_dump(include=set(declared))
    compared = {key: (expected[key], actual[key]) for key in declared}
    compared["overrides"] = [], list(sweep.context.overrides)
    deviations = [
        f"{key}: preregistered {_format_key_value(expected_value)}, used {_format_key_value(actual_value)}"
        for key, (expected_value, actual_value) in sorted(compared.items())
        if expected_value != actual_value
    ]
    return deviations + later_changes


def _get_default_values(keys: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of experiment keys; None for required ones."""
    fields = {key: Experiment.model_fields[key] for key in keys}
    return {
        key: None if field.is_required() else field.get_default(call_default_factory=True)
        for key, field in fields.items()
    }


def _format_key_value(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, dict) and "training" in value:
        return format_compute_amount(str(ComputeProportion.model_validate(value)))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_format_option(item)}" for key, item in value.items())
    if not isinstance(value, list):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return f"{len(value)} claims" if isinstance(value[0], dict) else ", ".join(map(str, value))


def _format_option(value: Any) -> str:
    """Format a value as on the command line, with the items of a list in brackets."""
    if isinstance(value, list):
        return f"[{','.join(map(_format_option, value))}]"
    return f"{value:g}" if isinstance(value, float) else format_value(value)
