"""The declared claims: what was measured for each, the decision over the whole family, and its word.

A claim about a seed metric is decided on paired differences (or ratios), one about a counted quantity on
its exact value, one about a measured time on a bootstrap of interleaved blocks.
"""

import math
from dataclasses import asdict
from typing import Any

from attnlab import stats
from attnlab.report.verdicts import foresight
from attnlab.report.verdicts.budget import crosses
from attnlab.report.verdicts.effects import beside
from attnlab.report.verdicts.runs import Pair, Sweep, common, kind
from attnlab.report.verdicts.sentence import Wording, decimals, plain, sentence
from attnlab.report.verdicts.verdict import Verdict, claim_verdict
from attnlab.store.declarations import canonical

COUNTED = {"seeds": "paired seed", "exact": "exact count", "timing": "timing block"}


class Ratios:
    """Paired ratios, one per seed: Student's t on the mean of their logarithms, read back as a ratio."""

    def __init__(self, pairs: list[Pair]):
        self.logs = stats.Differences([math.log(pair["value"] / pair["against"]) for pair in pairs])
        self.n = self.logs.n
        self.estimate = None if self.logs.estimate is None else math.exp(self.logs.estimate)

    def interval(self, level: float) -> tuple[float, float] | None:
        ends = self.logs.interval(level)
        return ends and (math.exp(ends[0]), math.exp(ends[1]))

    def p_above(self, threshold: float) -> float | None:
        return self.logs.p_above(math.log(threshold)) if threshold > 0 else 0.0

    def p_below(self, threshold: float) -> float | None:
        return self.logs.p_below(math.log(threshold)) if threshold > 0 else 1.0


def declared(sweep: Sweep) -> list[dict[str, Any]]:
    """The claims, by default against the baseline, on the primary metric, as a difference."""
    return [
        {
            "says": claim.says,
            "arm": claim.arm,
            "against": claim.against or sweep.baseline,
            "metric": canonical(claim.metric or sweep.experiment.metric),
            "compare": claim.compare,
            "is": claim.relation,
            "threshold": claim.threshold,
            "direction": claim.direction,
        }
        for claim in sweep.experiment.claims
    ]


def _timed(sweep: Sweep, claim: dict[str, Any]) -> bool:
    """Whether a run of the two arms made it of times."""
    metric, arms = claim["metric"], (claim["arm"], claim["against"])
    return any(kind(record, metric) == "time" for record in sweep.having(metric, arms))


def _evidence(sweep: Sweep, claim: dict[str, Any]) -> tuple[stats.Evidence | None, str, list[Pair]]:
    """What was measured for a claim, of which kind (seeds, exact, timing), and the pairs of seeds."""
    arm, against, metric, ratio = claim["arm"], claim["against"], claim["metric"], claim["compare"] == "ratio"
    if metric in sweep.times and not sweep.having(metric, sweep.arms):
        rows = [((sweep.timing or {}).get("arms") or {}).get(name, {}).get(metric) for name in (arm, against)]
        if not ratio or not all(row and row.get("samples") for row in rows):
            return None, "timing", []
        ours, theirs = (_blocks(row["samples"]) for row in rows)
        return stats.ratio_draws(ours, theirs), "timing", []
    if sweep.counted(metric, (arm, against)):
        count, other = (common(sweep.values(name, metric)) for name in (arm, against))
        if count is None or other is None or (ratio and not other):
            return None, "exact", []
        return stats.Exact(count / other if ratio else count - other), "exact", []
    pairs = sweep.pairs(arm, against, metric)
    if not pairs:
        return None, "seeds", []
    return (
        Ratios(pairs) if ratio else stats.Differences([pair["difference"] for pair in pairs]),
        "seeds",
        pairs,
    )


def _blocks(samples: list[float]) -> list[list[float]]:
    """Rounds of A B B A hold two samples of each arm, taken in the same moment."""
    return [samples[i : i + 2] for i in range(0, len(samples) - 1, 2)]


def claims(sweep: Sweep, budget: dict[str, Any], exploratory: bool) -> list[dict[str, Any]]:
    """Every claim with its numbers, its verdict and its sentences, in the declared order."""
    asked = declared(sweep)
    measured = [_evidence(sweep, claim) for claim in asked]
    centre = [1.0 if claim["compare"] == "ratio" else 0.0 for claim in asked]
    questions = [
        stats.Question(evidence, claim["is"], claim["threshold"], middle)
        for claim, (evidence, _, _), middle in zip(asked, measured, centre, strict=True)
    ]
    decisions = zip(asked, measured, centre, stats.decide(questions), strict=True)
    return [
        {
            **claim,
            "exploratory": exploratory,
            "kind": basis,
            **({"timed": True} if _timed(sweep, claim) else {}),
            **_told(sweep, budget, claim, basis, middle, decision, exploratory),
            "decision": asdict(decision),
            **beside(
                sweep,
                pairs if claim["compare"] == "difference" else [],
                _hurts(claim, decision),
                _margin(claim),
            ),
        }
        for claim, (_, basis, pairs), middle, decision in decisions
    ]


def _told(
    sweep: Sweep,
    budget: dict[str, Any],
    claim: dict[str, Any],
    basis: str,
    middle: float,
    decision: stats.Decision,
    exploratory: bool,
) -> dict[str, Any]:
    """A decided claim's verdict, its sentences, and where on an axis the claim and its decision lie."""
    arms = claim["arm"], claim["against"]
    unequal = crosses(budget, *arms) + foresight.reasons(sweep, *arms)
    names = [reason["label"] for reason in unequal]
    interval = None if decision.low is None or decision.high is None else (decision.low, decision.high)
    word = claim_verdict(
        claim["is"], claim["threshold"], interval, n=decision.n, comparable=not unequal, centre=middle
    )
    text = _wording(sweep, claim, basis)
    low, high = stats.region(claim["is"], claim["threshold"], middle)
    planned = len(sweep.seeds) if basis == "seeds" else None
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
            unequal=names,
            counted=COUNTED[basis],
            exploratory=exploratory,
        ),
        "plain": plain(text, word, names, exact=decision.exact),
        "not_comparable": [reason["text"] for reason in unequal],
        "planned": planned,
        "digits": decimals(interval[1] - interval[0]) if interval and interval[0] != interval[1] else 3,
        "from": low if math.isfinite(low) else None,
        "to": high if math.isfinite(high) else None,
    }


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
        direction=_direction(sweep, claim, basis),
        baseline=sweep.baseline,
    )


def _direction(sweep: Sweep, claim: dict[str, Any], basis: str) -> str | None:
    """Which is better: as the claim says, else the experiment of its metric, else the metric's declaration;
    of what is counted, timed or cut off at the budget the lower; None where nobody said it.
    """
    if claim["direction"]:
        return str(claim["direction"])
    if claim["metric"] == sweep.experiment.metric:
        return sweep.experiment.direction
    if known := sweep.metric(claim["metric"]).direction:
        return known
    return None if basis == "seeds" and claim["metric"] not in sweep.budgets else "lower"


def _margin(claim: dict[str, Any]) -> float | None:
    """The width that an equality claim asks for; what the seeds needed are planned on."""
    return claim["threshold"] if claim["is"] == "within" else None


def _hurts(claim: dict[str, Any], decision: stats.Decision) -> str:
    """The direction of failure that would speak against this claim, for the worst-case line."""
    if claim["is"] == "within":
        return "lower" if (decision.estimate or 0) >= 0 else "higher"
    return "lower" if claim["is"] == "below" else "higher"


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
