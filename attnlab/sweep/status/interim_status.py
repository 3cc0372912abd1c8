"""Status of a plan's interim analyses: runs needed by now, runs that may follow, and the claims' standings.

Surprising: importing the decision code takes longer than the rest of `plan` or `status`. So standings are
cached for display, keyed by the run results behind them. A sweep decides again each time before it trains.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from attnlab.report.schema import CalibrationResult, ClaimStatus, Verdict
from attnlab.store import disk_cache, fingerprint
from attnlab.store.run_schema import RunConfig, RunLookup
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.states import RunState, get_file_version, load_cached_result, load_run_states

LATER = "later"
NOT_NEEDED = "not needed"
_DECIDING_PACKAGES = (
    "stats",
    "store/experiment_schema",
    "report",
    "report/verdicts",
)  # code that decides claims
_PACKAGE_ROOT = Path(__file__).parents[2]


def list_analysis_seeds(plan: Plan) -> list[int]:
    """List the seeds at each planned interim analysis; empty for fixed and anytime-valid designs."""
    schedule = plan.experiment.looks if plan.experiment else None
    return schedule if isinstance(schedule, list) else []


def find_required_runs(plan: Plan, root: Path) -> list[RunConfig]:
    """List the runs that a plan's claims need by now.

    With interim analyses, these are the runs of the analyses so far, and of the next one for arms with a
    pending claim. Without, all runs. While the margin is unknown, none.
    """
    return (
        []
        if explain_unknown_margin(plan, root)
        else _select_first_seeds(plan, count_required_seeds(plan, root))
    )


def explain_unknown_margin(plan: Plan, root: Path) -> str | None:
    """Explain why a margin in training compute is unknown in nats, which blocks comparisons; else None."""
    if plan.experiment is None or not plan.experiment.compute_amounts:
        return None
    calibration = load_compute_calibration(plan, root)
    return calibration.reason if calibration else None


def load_compute_calibration(plan: Plan, root: Path) -> CalibrationResult | None:
    """Summarize the finished runs of a plan's compute calibration; None without one."""
    return (
        plan.compute_calibration.summarize(create_result_lookup(root)) if plan.compute_calibration else None
    )


def create_result_lookup(root: Path) -> RunLookup:
    """Create a function from a run id to its result below `root`."""
    return lambda id: load_cached_result(root / id)


def count_required_seeds(plan: Plan, root: Path) -> dict[str, int]:
    """Map each arm to the number of seeds needed by now; empty without interim analyses."""
    return (
        _derive_required_seeds(plan, _decide_claims(plan, root, load_compute_calibration(plan, root)))
        if list_analysis_seeds(plan)
        else {}
    )


def load_plan_states(plan: Plan, root: Path, check_weights: bool = False) -> dict[str, RunState]:
    """Load the state of each run, by run id.

    An untrained run of the comparison is `later` or `not needed` if no claim needs it by now.
    """
    run_states = load_run_states(plan.all_runs, root, check_weights)
    idle = dict[str, RunState]()
    if list_analysis_seeds(plan):
        claims = load_claim_standings(plan, root)
        seed_indices = _index_seeds(plan)
        required_ids = {run.id for run in _select_first_seeds(plan, _derive_required_seeds(plan, claims))}
        idle = {
            run.id: _build_idle_state(plan, claims, run.arm, seed_indices[run.seed])
            for run in plan.runs
            if run.id not in required_ids
        }
    if reason := explain_unknown_margin(plan, root):
        blocked = RunState(LATER, f"pending until the margin is known: {reason}", 0.0)
        idle = {run.id: blocked for run in plan.runs} | idle
    return run_states | {id: state for id, state in idle.items() if run_states[id].status == "to train"}


def list_certain_ids(plan: Plan, root: Path) -> set[str]:
    """List the ids of the runs that are certain to be needed by now.

    These are the runs of tuning, of the compute calibration and of the current interim analysis, even if they
    can start only after the others. They exclude a comparison whose margin stays unknown.
    """
    earlier = [*plan.tuning_runs, *(plan.compute_calibration.runs if plan.compute_calibration else ())]
    if explain_unknown_margin(plan, root) and not any(
        load_cached_result(root / run.id) is None for run in earlier
    ):
        return {run.id for run in earlier}
    seeds = (
        _derive_required_seeds(plan, load_claim_standings(plan, root)) if list_analysis_seeds(plan) else {}
    )
    return {run.id for run in [*earlier, *_select_first_seeds(plan, seeds)]}


def list_pending_analyses(plan: Plan, root: Path) -> list[int]:
    """List the numbers of the interim analyses that claims are waiting for, without duplicates."""
    if not list_analysis_seeds(plan) or plan.experiment is None:
        return []
    if not (standings := load_claim_standings(plan, root)):
        return [1] if plan.experiment.claims else []
    return sorted({claim.completed_analyses + 1 for claim in standings if claim.is_pending})


def load_claim_standings(plan: Plan, root: Path) -> list[ClaimStatus]:
    """Load or compute the standing of each claim, in preregistered order; [] while no run has ended."""
    versions = [get_file_version(root / run.id / "run.json") for run in plan.runs]
    if not any(versions):
        return []
    assert plan.experiment is not None
    code = [
        [path.name, *get_file_version(path)]
        for package in _DECIDING_PACKAGES
        for path in sorted((_PACKAGE_ROOT / package).glob("*.*"))
    ]
    runs = [[run.id, run.arm, run.seed, *version] for run, version in zip(plan.runs, versions, strict=True)]
    calibration = load_compute_calibration(plan, root)
    key = fingerprint.compute_digest(
        [plan.experiment.to_dict(), calibration and calibration.to_dict(), str(root.absolute()), runs, code]
    )
    cached = disk_cache.read_cache_entry(plan.runs[0].config, "looks", key)
    if isinstance(cached, list) and len(cached) == len(plan.experiment.claims):
        with suppress(ValidationError):
            return [ClaimStatus.model_validate(standing) for standing in cached]
    standings = _decide_claims(plan, root, calibration)
    content = [standing.to_dict() for standing in standings]
    disk_cache.write_cache_entry(plan.runs[0].config, "looks", key, content)
    return standings


def describe_claim_standings(plan: Plan, root: Path) -> list[str]:
    """Describe, per claim, its interim verdict and the analysis that it is waiting for."""
    if not list_analysis_seeds(plan) or plan.experiment is None:
        return []
    claims = plan.experiment.claims
    counts = list_analysis_seeds(plan)
    standings: Sequence[ClaimStatus | None] = load_claim_standings(plan, root) or [None] * len(claims)
    untested = f"pending: interim analysis 1 of {len(counts)} at {counts[0]} seeds"
    return [
        f"claim {number}, {claim.says}: {_describe_standing(standing, len(counts)) if standing else untested}"
        for number, (claim, standing) in enumerate(zip(claims, standings, strict=True), 1)
    ]


def summarize_claim_standings(plan: Plan, root: Path) -> str:
    """Summarize the claims as in `interim analysis 2 of 6: 1 of 3 claims decided`.

    The result is empty without interim analyses, and before the first one.
    """
    standings = load_claim_standings(plan, root) if list_analysis_seeds(plan) else []
    number = max((claim.completed_analyses for claim in standings), default=0)
    if not number:
        return ""
    n_decided = sum(claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED) for claim in standings)
    return (
        f"interim analysis {number} of {len(list_analysis_seeds(plan))}: "
        f"{n_decided} of {len(standings)} claims decided"
    )


def _describe_standing(claim: ClaimStatus, n_analyses: int) -> str:
    parts = [str(claim.verdict)] if claim.completed_analyses or not claim.is_pending else []
    design = claim.interim_analyses.describe() if claim.interim_analyses else ""
    if parts and design and claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE):
        parts.append(design[0].lower() + design[1:])
    if claim.is_pending:
        parts.append(
            f"pending: interim analysis {claim.completed_analyses + 1} of {n_analyses} at "
            f"{claim.required_seeds} seeds"
        )
    return ", ".join(parts) + ("" if claim.decided_by_seeds else ", independent of the seeds")


def _decide_claims(plan: Plan, root: Path, calibration: CalibrationResult | None) -> list[ClaimStatus]:
    """Decide each claim from the current run results and the compute calibration."""
    from attnlab.report.report_builder import compute_claim_statuses
    from attnlab.report.verdicts.results import Run, SweepContext

    assert plan.experiment is not None
    runs = [Run(run.arm, run.seed, run.id, load_cached_result(root / run.id)) for run in plan.runs]
    return compute_claim_statuses(SweepContext(plan.experiment, compute_calibration=calibration), runs)


def _derive_required_seeds(plan: Plan, claims: Sequence[ClaimStatus]) -> dict[str, int]:
    assert plan.experiment is not None
    required = dict.fromkeys(plan.experiment.arms, list_analysis_seeds(plan)[0])
    for claim, status in zip(plan.experiment.claims, claims, strict=False):
        for arm in plan.experiment.get_claim_arms(claim):
            required[arm] = max(required[arm], status.required_seeds)
    return required


def _select_first_seeds(plan: Plan, seeds: Mapping[str, int]) -> list[RunConfig]:
    """Select the runs of each arm's first seeds, all runs of arms that `seeds` omits, and their parents."""
    seed_indices = _index_seeds(plan)
    runs = [run for run in plan.runs if run.arm not in seeds or seed_indices[run.seed] < seeds[run.arm]]
    parents = {run.config.get("parent") for run in runs}
    ids = {run.id for run in runs}
    return [*runs, *(run for run in plan.runs if run.id in parents and run.id not in ids)]


def _index_seeds(plan: Plan) -> dict[int, int]:
    return {seed: i for i, seed in enumerate(plan.experiment.seeds)} if plan.experiment else {}


def _build_idle_state(plan: Plan, claims: Sequence[ClaimStatus], arm: str, seed_index: int) -> RunState:
    """Explain why a run is not to be trained now; `seed_index` counts the seeds before its own."""
    assert plan.experiment is not None
    claim_arms = map(plan.experiment.get_claim_arms, plan.experiment.claims)
    pending = [standing.is_pending for standing in claims] or [True] * len(plan.experiment.claims)
    if not any(is_pending and arm in arms for is_pending, arms in zip(pending, claim_arms, strict=True)):
        return RunState(NOT_NEEDED, "no claim about its arm is pending", 0.0)
    counts = list_analysis_seeds(plan)
    number = next(i for i, count in enumerate(counts, 1) if seed_index < count)
    return RunState(
        LATER, f"at interim analysis {number} of {len(counts)}, if the claim is still inconclusive", 0.0
    )
