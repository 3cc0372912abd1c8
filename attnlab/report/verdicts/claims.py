"""The declared claims: what was measured for each, the decision over the whole family, and its word.

`evidence` says what a claim is decided on; here its verdict is worded, and what stands beside it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attnlab import stats
from attnlab.report.verdicts import comparability, evidence, leakage
from attnlab.report.verdicts.budget import untrained
from attnlab.report.verdicts.effects import beside
from attnlab.report.verdicts.evidence import Found
from attnlab.report.verdicts.exchange import trained
from attnlab.report.verdicts.runs import Sweep
from attnlab.report.verdicts.sentence import Wording, decimals, looked, plain, sentence
from attnlab.report.verdicts.verdict import Verdict, claim_verdict

COUNTED = {
    "seeds": "paired seed", "share": "paired seed", "ranks": "paired seed", "identity": "paired seed",
    "exact": "exact count", "timing": "timing block",
}  # fmt: skip
LEARNED = ("seeds", "share", "ranks")  # a result of training
SEEDED = (*LEARNED, "identity")
LEVEL = 0.95  # of the interval beside the decision's own
DECIDED = (Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE)


def declared(sweep: Sweep) -> list[dict[str, Any]]:
    """The claims, by default against the baseline, on the primary metric, as a difference; each with the
    direction that is better.
    """
    rows = []
    for claim in sweep.experiment.claims:
        arm, against = sweep.experiment.arms_of(claim)
        row = {
            "says": claim.says,
            "arm": arm,
            "against": against,
            "metric": sweep.experiment.metric_of(claim),
            "compare": claim.compare,
            "is": claim.relation,
            "threshold": sweep.experiment.nats(claim.threshold, sweep.slope),
            "threshold_said": sweep.experiment.in_words(claim.threshold),
            "identity": claim.identity,
            "reason": claim.reason,
            "direction": claim.direction,
        }
        rows.append({**row, "direction": _direction(sweep, row)})
    return rows


def waiting(sweep: Sweep, budget: dict[str, Any]) -> list[dict[str, Any]]:
    """Where every claim stands between two looks, as far as it decides which runs are needed by now."""
    asked = declared(sweep)
    comparable = [not _unequal(sweep, budget, claim) for claim in asked]
    rows = []
    for claim, equal, (found, seeds, open_) in zip(
        asked, comparable, evidence.needs(sweep, asked, comparable), strict=True
    ):
        rows.append(
            {
                "arm": claim["arm"],
                "against": claim["against"],
                "kind": found.basis,
                "verdict": str(claim_verdict(found.decision.holds, n=found.decision.n, comparable=equal)),
                "looked": looked(_looks(sweep, found)),
                "made": len(found.steps),
                "seeds": seeds,
                "open": open_,
            }
        )
    return rows


def claims(sweep: Sweep, budget: dict[str, Any], exploratory: bool) -> list[dict[str, Any]]:
    """Every claim with its numbers, its verdict and its sentences, in the declared order."""
    asked = declared(sweep)
    return [
        {
            **claim,
            "exploratory": exploratory,
            "kind": found.basis,
            **({"timed": True} if evidence.timed(sweep, claim) else {}),
            **(
                _unknown(sweep, claim, found, exploratory)
                if claim["threshold"] is None
                else _told(sweep, budget, claim, found, exploratory)
            ),
            **_numbers(sweep, budget, claim, found),
        }
        for claim, found in zip(asked, evidence.found(sweep, asked), strict=True)
    ]


def _numbers(sweep: Sweep, budget: dict[str, Any], claim: dict[str, Any], found: Found) -> dict[str, Any]:
    """The decision in numbers, and what stands beside it; of arms that cannot be compared there are none.

    The interval has one level for all claims, and comes from the same evidence as the decision.
    """
    decision = {key: value for key, value in asdict(found.decision).items() if key != "holds"}
    if _unequal(sweep, budget, claim):
        decision |= dict.fromkeys(("estimate", "low", "high", "p", "p_holm"))
        return {"decision": decision, "interval": None, "deciding": None, "flipped": None, **beside([])}
    ends = found.evidence.interval(LEVEL) if found.evidence is not None else None
    return {
        "decision": decision,
        "interval": ends and {"low": ends[0], "high": ends[1], "level": LEVEL},
        "deciding": _deciding(claim, found),
        "flipped": _flipped(claim, found),
        **beside(found.pairs if claim["compare"] == "difference" else []),
    }


def _looks(sweep: Sweep, found: Found) -> dict[str, Any] | None:
    """The looks that a claim's verdict was earned in: what was planned, and a row for each that was made."""
    if found.basis not in SEEDED or found.basis == "identity":
        return None
    plan = sweep.experiment.looks
    design = "anytime" if isinstance(plan, str) else "looks" if plan else "fixed"
    holds = found.decision.holds is not None and bool(found.steps)
    return {
        "design": design,
        "planned": plan if isinstance(plan, list) else [len(sweep.seeds)],
        "decided": len(found.steps) if holds else None,  # at which look, from 1
        "made": [
            {
                "seeds": step.seeds,
                "n": step.decision.n,
                "estimate": step.decision.estimate,
                "low": step.decision.low,
                "high": step.decision.high,
                "level": step.decision.level,
            }
            for step in found.steps
        ],
    }


def _flipped(claim: Mapping[str, Any], found: Found) -> dict[str, Any] | None:
    """What sign flips say of the claim's own threshold, at the tail that t was given."""
    decision = found.decision
    sample = found.evidence
    if not isinstance(sample, stats.Differences) or decision.level is None or not found.steps or sample.tied:
        return None
    where = stats.region(claim["is"], claim["threshold"])
    answer = stats.flipped(found.sample, where, sample.tail(decision.level)) if sample.n > 1 else None
    return asdict(answer) if answer else None


def _deciding(claim: Mapping[str, Any], found: Found) -> dict[str, Any] | None:
    """How many seeds would decide a claim about means that is still open, if the truth is as it was seen."""
    decision = found.decision
    sample = found.evidence
    open_ = claim["compare"] == "difference" and decision.holds is None and bool(found.steps)
    if not open_ or decision.level is None or decision.n < 2:
        return None
    where = stats.region(claim["is"], claim["threshold"])
    tail = (1 - decision.level) / 2
    if isinstance(sample, stats.Shares):
        answer = stats.deciding_shares(sample.values, where, tail)
    else:
        answer = stats.deciding(found.sample, where, tail) if found.basis == "seeds" else None
    return asdict(answer) if answer else None


def _told(
    sweep: Sweep,
    budget: dict[str, Any],
    claim: dict[str, Any],
    found: Found,
    exploratory: bool,
) -> dict[str, Any]:
    """A decided claim's verdict, its sentences, and where on an axis the claim and its decision lie."""
    decision = found.decision
    basis = found.basis
    unequal = _unequal(sweep, budget, claim)
    reasons = [reason["text"] for reason in unequal]
    interval = decision.interval
    raw = untrained(sweep, claim["arm"], claim["against"]) if basis in LEARNED else None
    word = claim_verdict(decision.holds, n=decision.n, comparable=not unequal, trained=raw is None)
    text = _wording(sweep, claim, found.basis)
    low, high = stats.region(claim["is"], claim["threshold"], text.centre)
    planned = _planned(sweep, found)
    looks = None if unequal else _looks(sweep, found)
    training = None if unequal else _trained(sweep, claim, found)
    narrow = interval is not None and math.isfinite(interval[1] - interval[0]) and interval[0] < interval[1]
    return {
        "direction": text.direction,
        "label": text.metric,
        "unit": text.unit,
        "verdict": str(word),
        "sentence": sentence(
            text,
            decision,
            word,
            planned=planned,
            unequal=reasons,
            counted=COUNTED[basis],
            looked=looked(looks),
            exploratory=exploratory,
            raw=raw or "",
        )
        + _as_if(training, word)
        + "".join(
            f" {arm} {leakage.BY_DESIGN}."
            for arm in (claim["arm"], claim["against"])
            if leakage.is_by_design(sweep, arm)
        ),
        "plain": plain(text, word, exact=decision.exact),
        "not_comparable": reasons,
        "planned": planned,
        "looks": looks,
        "training": training,
        "digits": decimals(interval[1] - interval[0]) if interval and narrow else 3,
        "from": low if math.isfinite(low) else None,
        "to": high if math.isfinite(high) else None,
    }


def _unknown(sweep: Sweep, claim: dict[str, Any], found: Found, exploratory: bool) -> dict[str, Any]:
    """The same of a claim whose threshold is declared in training, where nobody knows what that is."""
    metric = sweep.metric(claim["metric"])
    told = sweep.asked.exchange
    why = told["why"] if told else "there is no exchange"
    head = f"{Verdict.NO_RESULT} (exploratory)" if exploratory else str(Verdict.NO_RESULT)
    return {
        "label": metric.words,
        "unit": metric.unit,
        "verdict": str(Verdict.NO_RESULT),
        "sentence": f"{head}: {claim['threshold_said']} is not known in nats: {why}.",
        "plain": "What it is to be compared with is not known, so nothing was decided.",
        "not_comparable": [],
        "planned": _planned(sweep, found),
        "looks": _looks(sweep, found),
        "training": None,
        "digits": 3,
        "from": None,
        "to": None,
    }


def _as_if(said: dict[str, Any] | None, word: Verdict) -> str:
    """The sentence that says it as training too."""
    words = said["words"] if said and word in DECIDED else ""
    return f" {words[:1].upper()}{words[1:]}." if words else ""


def _trained(sweep: Sweep, claim: dict[str, Any], found: Found) -> dict[str, Any] | None:
    """What was found as training, with its interval at one level for all claims."""
    if claim["compare"] == "ratio" or found.decision.exact or found.evidence is None:
        return None
    return trained(sweep, claim["metric"], found.decision.estimate, found.evidence.interval(LEVEL), LEVEL)


def _wording(sweep: Sweep, claim: dict[str, Any], basis: str) -> Wording:
    """What the sentences about a claim need of it."""
    metric = sweep.metric(claim["metric"])
    return Wording(
        claim["arm"],
        claim["against"],
        claim["is"],
        claim["threshold"],
        claim["compare"],
        metric.words,
        unit="" if claim["compare"] == "ratio" else metric.unit,
        direction=claim["direction"],
        baseline=sweep.baseline,
        median=basis == "ranks",
        said=claim["threshold_said"] or "",
    )


def _unequal(sweep: Sweep, budget: dict[str, Any], claim: dict[str, Any]) -> list[dict[str, str]]:
    """Why the two arms of a claim cannot be compared in its metric."""
    return comparability.reasons(sweep, budget, claim["arm"], claim["against"], claim["metric"])


def _planned(sweep: Sweep, found: Found) -> int | None:
    """The seeds that the last look at a claim had, or that its first one will have."""
    if found.basis not in SEEDED:
        return None
    if found.steps:
        return found.steps[-1].seeds
    return stats.designs(sweep.experiment.looks, len(sweep.seeds))[0][0]


def _direction(sweep: Sweep, claim: dict[str, Any]) -> str | None:
    """Which is better: as the claim says, else the experiment of its metric, else the metric's declaration;
    of what is counted, timed or cut off at the budget the lower; None where nobody said it.
    """
    if claim["direction"]:
        return str(claim["direction"])
    if claim["metric"] == sweep.experiment.metric:
        return sweep.experiment.direction
    if known := sweep.metric(claim["metric"]).direction:
        return known
    seeded = evidence.basis(sweep, claim) in SEEDED
    return None if seeded and claim["metric"] not in sweep.budgets else "lower"


def headline(found: list[dict[str, Any]]) -> str:
    """The page's word: one for all where they agree, else how many of each."""
    words = [claim["verdict"] for claim in found]
    if all(word == Verdict.NO_RESULT for word in words):
        return str(Verdict.NO_RESULT)
    counts = [(word, words.count(word)) for word in map(str, Verdict) if word in words]
    if len(counts) == 1:
        return (
            words[0]
            if len(words) == 1
            else f"{'both' if len(words) == 2 else f'all {len(words)}'} claims {words[0]}"
        )
    return ", ".join(f"{count} {word}" for word, count in counts)
