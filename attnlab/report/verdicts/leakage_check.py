"""Arms that see the tokens they predict: their losses are not comparable unless leakage is preregistered."""

from attnlab.report.schema import LeakageSection
from attnlab.report.verdicts.results import IncomparabilityReason, SweepResults
from attnlab.store.run_schema import RunResult

BY_DESIGN = "sees future tokens (by design)"


def find_leaking_results(sweep: SweepResults, arm: str) -> list[RunResult]:
    """Find an arm's finished runs whose next-token predictions depend on later tokens or on other rows."""
    return [result for result in sweep.get_finished_results(arm) if _has_leakage(result)]


def is_leaking_by_design(sweep: SweepResults, arm: str) -> bool:
    """Whether an arm sees future tokens and the experiment preregisters it under `leakage`."""
    return arm in sweep.experiment.leakage and bool(find_leaking_results(sweep, arm))


def find_leakage_reasons(sweep: SweepResults, *arms: str) -> list[IncomparabilityReason]:
    """Find the reasons against comparing arms with future leakage that is not preregistered."""
    reasons = []
    for arm in dict.fromkeys(arms):
        results = find_leaking_results(sweep, arm)
        if not results or is_leaking_by_design(sweep, arm):
            continue
        count = f"in {len(results)} of {len(sweep.get_finished_runs(arm))} runs"
        leakages = [result.leakage for result in results if result.leakage.get("sees_future")]
        if leakages:
            text = f"{arm} sees future tokens {count}"
            measured = [leakage for leakage in leakages if leakage.get("without_future") is not None]
            if measured:
                own_future, other_future = (
                    sum(float(leakage[key] or 0) for leakage in measured) / len(measured)
                    for key in ("with_future", "without_future")
                )
                text += f": loss {own_future:.3g} nats with the true future tokens, "
                text += f"{other_future:.3g} with substituted ones"
        else:
            text = f"the predictions of {arm} depend on other sequences in the batch {count}"
        reasons.append(IncomparabilityReason("future tokens", text))
    return reasons


def describe_leakage(sweep: SweepResults) -> list[str]:
    """Describe each arm that sees future tokens, with the effect on its losses.

    Arms that are preregistered under `leakage` and see none are described too.
    """
    sentences = [
        f"{reason.text}; the arm is not ranked."
        for arm in sweep.arms
        for reason in find_leakage_reasons(sweep, arm)
    ]
    for arm in sweep.arms:
        results = sweep.get_finished_results(arm)
        if is_leaking_by_design(sweep, arm):
            sentences.append(f"{arm} {BY_DESIGN}: its losses are not next-token prediction losses.")
        elif any(
            result.leakage.get("sees_future") and not result.leakage.get("next_token", 1)
            for result in results
        ):
            sentences.append(f"{arm} sees later tokens, but they are not targets of this task.")
        elif arm in sweep.experiment.leakage and results:
            sentences.append(f"{arm} is preregistered under leakage, but sees no future tokens.")
    if sweep.excluded_targets:
        prefixes = [arm for arm in sweep.arms if sweep.get_prefix_length(arm) == sweep.excluded_targets + 1]
        sentences.append(
            f"The loss of every arm excludes the first {sweep.excluded_targets} targets of each window, "
            f"which lie in the prefix that {', '.join(prefixes)} sees in full."
        )
    return sentences


def build_leakage_section(sweep: SweepResults) -> LeakageSection:
    """Build the leakage section: leaking and checked arms, excluded targets, and notes."""
    return LeakageSection(
        arms=[arm for arm in sweep.arms if find_leaking_results(sweep, arm)],
        by_design=[arm for arm in sweep.arms if is_leaking_by_design(sweep, arm)],
        checked=[
            arm for arm in sweep.arms if any(result.leakage for result in sweep.get_finished_results(arm))
        ],
        excluded_targets=sweep.excluded_targets,
        notes=describe_leakage(sweep),
    )


def _has_leakage(result: RunResult) -> bool:
    leakage = result.leakage
    return bool(leakage.get("sees_rows") or (leakage.get("sees_future") and leakage.get("next_token", 1)))
