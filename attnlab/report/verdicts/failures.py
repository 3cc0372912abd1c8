"""Failed runs with their last lines of output, caveats, and deviations from the preregistration.

A run lost to its infrastructure has its own label and is no failure of its arm.
"""

from attnlab.report.schema import FailedRun, FailureCount, Failures
from attnlab.report.verdicts import leakage_check
from attnlab.report.verdicts.results import SweepResults
from attnlab.store.guards.preregistered_terms import format_pair_count

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


def find_deviations(sweep: SweepResults) -> list[str]:
    """Find what makes a sweep exploratory: terms that changed after results were known, or no terms at all.

    A change by the command line that is preregistered before any of its results is another test, and no
    deviation.
    """
    if sweep.context.not_preregistered:
        single_seed = "only one seed, so no difference has an interval: set seed=0,1,2"
        return [
            "no claim, no margin and no number of seeds",
            *([single_seed] if len(sweep.seeds) == 1 else ()),
        ]
    preregistration = sweep.context.preregistration
    later_changes = preregistration.deviations if preregistration else []
    overrides = ", ".join(sweep.context.overrides)
    if not overrides or (preregistration and not preregistration.known_pairs):
        return later_changes
    known = (
        f"when {format_pair_count(preregistration.known_pairs)} known"
        if preregistration
        else "and nothing was preregistered"
    )
    return [f"the command changed the experiment, {known}: {overrides}", *later_changes]
