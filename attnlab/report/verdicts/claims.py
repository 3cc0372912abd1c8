"""The preregistered claims: what was measured for each, the decision over the whole family, and its verdict.

`evidence` decides; here each decision gets its verdict and what stands beside it, all as numbers:
`tables/wording.py` prints them.
"""

from collections.abc import Sequence
from dataclasses import asdict

from attnlab import stats
from attnlab.report.schema import (
    BudgetCheck,
    ClaimResult,
    Deciding,
    Decision,
    DeclaredClaim,
    FlippedClaim,
    LevelInterval,
    Look,
    LooksMade,
    Standing,
    Training,
    Verdict,
)
from attnlab.report.verdicts import comparability, evidence, leakage
from attnlab.report.verdicts.bases import find_basis
from attnlab.report.verdicts.budget import untrained
from attnlab.report.verdicts.effects import beside
from attnlab.report.verdicts.evidence import Found
from attnlab.report.verdicts.exchange import trained
from attnlab.report.verdicts.runs import Reason, Sweep
from attnlab.report.verdicts.verdict import claim_verdict, decimals

LEVEL = 0.95  # of the interval beside the decision's own


def declared(sweep: Sweep) -> list[DeclaredClaim]:
    """The claims, by default against the baseline, on the primary metric, as a difference; each with the
    direction that is better.
    """
    rows = []
    for claim in sweep.experiment.claims:
        arm, against = sweep.experiment.arms_of(claim)
        row = DeclaredClaim(
            says=claim.says,
            arm=arm,
            against=against,
            metric=sweep.experiment.metric_of(claim),
            compare=claim.compare,
            relation=claim.relation,
            threshold=sweep.experiment.nats(claim.threshold, sweep.slope),
            threshold_said=sweep.experiment.in_words(claim.threshold),
            identity=claim.identity,
            reason=claim.reason,
            direction=claim.direction,
        )
        rows.append(row.model_copy(update={"direction": _direction(sweep, row)}))
    return rows


def waiting(sweep: Sweep, budget: BudgetCheck) -> list[Standing]:
    """How every claim stands between two interim analyses."""
    asked = declared(sweep)
    comparable = [not _unequal(sweep, budget, claim) for claim in asked]
    return [
        Standing(
            arm=claim.arm,
            against=claim.against,
            basis=found.basis.name,
            verdict=claim_verdict(found.decision.holds, n=found.decision.n, comparable=equal),
            looks=_looks(sweep, found),
            made=len(found.steps),
            seeds=seeds,
            open=is_open,
        )
        for claim, equal, (found, seeds, is_open) in zip(
            asked, comparable, evidence.needs(sweep, asked, comparable), strict=True
        )
    ]


def claims(sweep: Sweep, budget: BudgetCheck, exploratory: bool) -> list[ClaimResult]:
    """Every claim with its numbers and its verdict, in the preregistered order."""
    asked = declared(sweep)
    return [
        _result(sweep, budget, claim, found, exploratory)
        for claim, found in zip(asked, evidence.found(sweep, asked), strict=True)
    ]


def _result(
    sweep: Sweep, budget: BudgetCheck, claim: DeclaredClaim, found: Found, exploratory: bool
) -> ClaimResult:
    """A claim's verdict and numbers. Of arms that cannot be compared there are none but how many seeds there
    are. The interval has one level for all claims, and comes from the same evidence as the decision.
    """
    decision = found.decision
    metric = sweep.metric(claim.metric)
    reasons = [reason.text for reason in _unequal(sweep, budget, claim)]
    raw = untrained(sweep, claim.arm, claim.against) if found.basis.shows_training else None
    verdict = claim_verdict(decision.holds, n=decision.n, comparable=not reasons, trained=raw is None)
    unknown = None
    if claim.threshold is None:
        told = sweep.asked.exchange
        verdict, raw, unknown = Verdict.NO_RESULT, None, told.why if told else "there is no exchange"
    ends = found.evidence.interval(LEVEL) if found.evidence is not None and not reasons else None
    numbers = {key: value for key, value in asdict(decision).items() if key != "holds"}
    if reasons:
        numbers |= dict.fromkeys(("estimate", "low", "high", "p", "p_holm"))
    pairs = found.pairs if claim.compare == "difference" and not reasons else []
    return ClaimResult(
        **dict(claim),
        **dict(beside(pairs)),
        label=metric.words,
        unit="" if claim.compare == "ratio" else metric.unit,
        basis=found.basis.name,
        exploratory=exploratory,
        timed=evidence.timed(sweep, claim),
        verdict=verdict,
        not_comparable=reasons,
        untrained=raw,
        unknown=unknown,
        by_design=[arm for arm in (claim.arm, claim.against) if leakage.is_by_design(sweep, arm)],
        planned=_planned(sweep, found),
        looks=None if reasons else _looks(sweep, found),
        training=None if reasons else _trained(sweep, claim, found),
        digits=decimals(ends[1] - ends[0] if ends else None),
        decision=Decision(**numbers),
        interval=LevelInterval(low=ends[0], high=ends[1], level=LEVEL) if ends else None,
        deciding=None if reasons else _deciding(claim, found),
        flipped=None if reasons else _flipped(claim, found),
    )


def _looks(sweep: Sweep, found: Found) -> LooksMade | None:
    """The interim analyses of a claim: what was planned, and a row for each that was made."""
    if not found.basis.has_looks:
        return None
    plan = sweep.experiment.looks
    holds = found.decision.holds is not None and bool(found.steps)
    return LooksMade(
        design="anytime" if isinstance(plan, str) else "looks" if plan else "fixed",
        planned=plan if isinstance(plan, list) else [len(sweep.seeds)],
        decided=len(found.steps) if holds else None,
        made=[
            Look(
                seeds=step.seeds,
                n=step.decision.n,
                estimate=step.decision.estimate,
                low=step.decision.low,
                high=step.decision.high,
                level=step.decision.level,
            )
            for step in found.steps
        ],
    )


def _flipped(claim: DeclaredClaim, found: Found) -> FlippedClaim | None:
    """What sign flips say of the claim's own threshold, at the tail that t was given."""
    decision = found.decision
    sample = found.evidence
    if not isinstance(sample, stats.Differences) or decision.level is None or not found.steps or sample.tied:
        return None
    if sample.n < 2 or claim.region is None:
        return None
    answer = stats.flipped(found.sample, claim.region, sample.tail(decision.level))
    return FlippedClaim(**asdict(answer)) if answer else None


def _deciding(claim: DeclaredClaim, found: Found) -> Deciding | None:
    """How many seeds would decide a claim about means that is inconclusive, at the observed effect."""
    decision = found.decision
    is_open = claim.compare == "difference" and decision.holds is None and bool(found.steps)
    if not is_open or decision.level is None or decision.n < 2 or claim.region is None:
        return None
    answer = found.basis.deciding(claim, found.evidence, found.sample, (1 - decision.level) / 2)
    return Deciding(**asdict(answer)) if answer else None


def _trained(sweep: Sweep, claim: DeclaredClaim, found: Found) -> Training | None:
    """What was found as training, with its interval at one level for all claims."""
    if claim.compare == "ratio" or found.decision.exact or found.evidence is None or claim.threshold is None:
        return None
    return trained(sweep, claim.metric, found.decision.estimate, found.evidence.interval(LEVEL), LEVEL)


def _unequal(sweep: Sweep, budget: BudgetCheck, claim: DeclaredClaim) -> list[Reason]:
    """Why the two arms of a claim cannot be compared in its metric."""
    return comparability.reasons(sweep, budget, claim.arm, claim.against, claim.metric)


def _planned(sweep: Sweep, found: Found) -> int | None:
    """The seeds that the last interim analysis of a claim had, or that its first one will have."""
    if not found.basis.by_seed:
        return None
    if found.steps:
        return found.steps[-1].seeds
    return stats.designs(sweep.experiment.looks, len(sweep.seeds))[0][0]


def _direction(sweep: Sweep, claim: DeclaredClaim) -> str | None:
    """Which is better: as the claim says, else the experiment of its metric, else the metric's declaration;
    of what is counted, timed or cut off at the budget the lower; None where nobody said it.
    """
    if claim.direction:
        return claim.direction
    if claim.metric == sweep.experiment.metric:
        return sweep.experiment.direction
    if known := sweep.metric(claim.metric).direction:
        return known
    by_seed = find_basis(sweep, claim).by_seed
    return None if by_seed and claim.metric not in sweep.budgets else "lower"


def headline(found: Sequence[ClaimResult]) -> str:
    """The page's word: one for all where they agree, else how many of each."""
    words = [claim.verdict for claim in found]
    if all(word == Verdict.NO_RESULT for word in words):
        return str(Verdict.NO_RESULT)
    counts = [(word, words.count(word)) for word in Verdict if word in words]
    if len(counts) == 1:
        return (
            str(words[0])
            if len(words) == 1
            else f"{'both' if len(words) == 2 else f'all {len(words)}'} claims {words[0]}"
        )
    return ", ".join(f"{count} {word}" for word, count in counts)
