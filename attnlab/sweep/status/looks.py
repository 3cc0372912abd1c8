"""What the looks of a plan ask for: which runs are needed by now, which may follow, and where claims stand.

Surprising: to decide takes longer to import than all the rest of `plan` or `status`, so what was decided is
kept in the cache, by the records that it was decided on. What is trained is decided anew each time.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from attnlab.report.schema import ExchangeFound, Standing, Verdict
from attnlab.store import answers, fingerprint
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan.exchange.told import Lookup
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.states import State, record, version
from attnlab.sweep.status.states import states as states_of

IDLE = LATER, NEVER = "later", "not needed"  # states of a run that no claim needs by now
_ROOMS = ("stats", "store/declarations", "report", "report/verdicts")  # whose code decides
_HOME = Path(__file__).parents[2]


def counts(plan: Plan) -> list[int]:
    """Seeds at each declared look; none of a plan that is looked at once, or at any time."""
    looks = plan.experiment.looks if plan.experiment else None
    return looks if isinstance(looks, list) else []


def needed(plan: Plan, root: Path) -> list[RunSpec]:
    """The runs that a plan's claims need by now: those of the looks so far, and of the next one where a claim
    about the arm is still open. Of a plan with one look, all; of one whose margin is not known, none.
    """
    return [] if unpriced(plan, root) else _first(plan, wanted(plan, root))


def unpriced(plan: Plan, root: Path) -> str | None:
    """Why what is declared in training is not known in nats, so that nothing may be compared; else None."""
    if plan.experiment is None or not plan.experiment.in_training:
        return None
    told = exchanged(plan, root)
    return told.why if told else None


def exchanged(plan: Plan, root: Path) -> ExchangeFound | None:
    """What the runs of a plan's exchange tell by now; None where it has none."""
    return plan.exchange.told(lookup(root)) if plan.exchange else None


def lookup(root: Path) -> Lookup:
    """The record of a run in a store, by its id."""
    return lambda id: record(root / id)


def wanted(plan: Plan, root: Path) -> dict[str, int]:
    """Arm -> how many of the seeds are needed by now; empty where there are no looks to go by."""
    return _wanted(plan, _decided(plan, root, exchanged(plan, root))) if counts(plan) else {}


def states(plan: Plan, root: Path, weights: bool = False) -> dict[str, State]:
    """Run id -> its state, where a run of the comparison that is to be trained is `later` or `not needed` if
    no claim needs it by now.
    """
    found = states_of(plan.all_runs, root, weights)
    idle = dict[str, State]()
    if counts(plan):
        claims = waiting(plan, root)
        order = _order(plan)
        at = {run.id for run in _first(plan, _wanted(plan, claims))}
        idle = {
            run.id: _idle(plan, claims, run.arm, order[run.seed]) for run in plan.runs if run.id not in at
        }
    if why := unpriced(plan, root):
        waits = State(LATER, f"once the margin is known: {why}", 0.0)
        idle = {run.id: waits for run in plan.runs} | idle
    return found | {id: state for id, state in idle.items() if found[id].word == "to train"}


def waiting(plan: Plan, root: Path) -> list[Standing]:
    """Where each claim stands, in the declared order; [] while no run has ended."""
    versions = [version(root / run.id / "run.json") for run in plan.runs]
    if not any(versions):
        return []
    assert plan.experiment is not None
    code = [[path.name, *version(path)] for room in _ROOMS for path in sorted((_HOME / room).glob("*.*"))]
    runs = [[run.id, run.arm, run.seed, *version] for run, version in zip(plan.runs, versions, strict=True)]
    told = exchanged(plan, root)
    key = fingerprint.digest(
        [plan.experiment.plain(), told and told.plain(), str(root.absolute()), runs, code]
    )
    kept = answers.kept(plan.runs[0].config, "looks", key)
    if isinstance(kept, list) and len(kept) == len(plan.experiment.claims):
        with suppress(ValidationError):
            return [Standing.model_validate(stand) for stand in kept]
    found = _decided(plan, root, told)
    answers.keep(plan.runs[0].config, "looks", key, [stand.plain() for stand in found])
    return found


def lines(plan: Plan, root: Path) -> list[str]:
    """A line per claim: its word so far, and the look that it waits for."""
    if not counts(plan) or plan.experiment is None:
        return []
    declared = plan.experiment.claims
    looks = counts(plan)
    stands: Sequence[Standing | None] = waiting(plan, root) or [None] * len(declared)
    first = f"interim analysis 1 of {len(looks)} waits for {looks[0]} seeds"
    return [
        f"claim {number}, {claim.says}: {_line(stand, len(looks)) if stand else first}"
        for number, (claim, stand) in enumerate(zip(declared, stands, strict=True), 1)
    ]


def _line(claim: Standing, looks: int) -> str:
    words = [str(claim.verdict)] if claim.made or not claim.open else []
    design = claim.looks.describe() if claim.looks else ""
    if words and design and claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE):
        words.append(design[0].lower() + design[1:])
    if claim.open:
        words.append(f"interim analysis {claim.made + 1} of {looks} waits for {claim.seeds} seeds")
    return ", ".join(words) + (", whatever the seeds" if claim.basis == "exact" else "")


def _decided(plan: Plan, root: Path, told: ExchangeFound | None) -> list[Standing]:
    """Where each claim stands, by the records as they are now and what the exchange told."""
    from attnlab.report.build import waiting
    from attnlab.report.verdicts.runs import Asked, Run

    assert plan.experiment is not None
    found = [Run(run.arm, run.seed, run.id, record(root / run.id)) for run in plan.runs]
    return waiting(Asked(plan.experiment, exchange=told), found)


def _wanted(plan: Plan, claims: Sequence[Standing]) -> dict[str, int]:
    assert plan.experiment is not None
    needs = dict.fromkeys(plan.experiment.arms, counts(plan)[0])
    for claim in claims:
        for arm in (claim.arm, claim.against):
            needs[arm] = max(needs[arm], claim.seeds)
    return needs


def _first(plan: Plan, seeds: Mapping[str, int]) -> list[RunSpec]:
    """The runs of an arm's first so many seeds, all of an arm that is not named, and their parents."""
    order = _order(plan)
    runs = [run for run in plan.runs if run.arm not in seeds or order[run.seed] < seeds[run.arm]]
    parents = {run.config.get("parent") for run in runs}
    ids = {run.id for run in runs}
    return [*runs, *(run for run in plan.runs if run.id in parents and run.id not in ids)]


def _order(plan: Plan) -> dict[int, int]:
    return {seed: i for i, seed in enumerate(plan.experiment.seeds)} if plan.experiment else {}


def _idle(plan: Plan, claims: Sequence[Standing], arm: str, place: int) -> State:
    """Why nobody trains a run now; `place` counts the seeds before its own."""
    assert plan.experiment is not None
    about = map(plan.experiment.arms_of, plan.experiment.claims)
    still = [stand.open for stand in claims] or [True] * len(plan.experiment.claims)
    if not any(open_ and arm in arms for open_, arms in zip(still, about, strict=True)):
        return State(NEVER, "no claim about its arm is open", 0.0)
    looks = counts(plan)
    look = next(i for i, count in enumerate(looks, 1) if place < count)
    return State(LATER, f"at interim analysis {look} of {len(looks)}, if it is still inconclusive", 0.0)
