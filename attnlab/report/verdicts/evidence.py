"""What was measured for each claim, look by look, and what the family of claims decides on it.

Which evidence a claim gets follows from what its metric is: a count is exact, a time has blocks, a share is
bet on, steps that are cut off at the budget are ranked, and the rest has Student's t, or ranks as soon as a
run has diverged. A look is made of a claim once all its runs have ended, never before.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab import stats
from attnlab.report.verdicts.runs import Pair, Sweep, common, kind

Declared = Mapping[str, Any]  # a claim with its defaults filled in


@dataclass(frozen=True)
class Step:
    """One look at a claim: how many seeds it has, and what was decided then."""

    seeds: int
    decision: stats.Decision


@dataclass(frozen=True)
class Found:
    """A claim's decision with the evidence of its last look, the basis that it has (seeds, share, ranks,
    identity, exact, timing), the looks that were made of it, and its pairs of finished runs.
    """

    decision: stats.Decision
    evidence: stats.Evidence | None
    basis: str
    steps: tuple[Step, ...]
    pairs: list[Pair]

    @property
    def sample(self) -> list[float]:
        """The paired differences that it was decided on, as far as both runs were finished."""
        return [pair["difference"] for pair in self.pairs]


class Ratios:
    """Paired ratios, one per seed: t on the mean of their logarithms, read back as a ratio."""

    def __init__(self, pairs: Sequence[Pair], design: stats.Design):
        logs = [math.log(pair["value"] / pair["against"]) for pair in pairs]
        self.logs = stats.Differences(logs, design)
        self.n = self.logs.n
        self.estimate = None if self.logs.estimate is None else math.exp(self.logs.estimate)

    def interval(self, level: float) -> tuple[float, float] | None:
        ends = self.logs.interval(level)
        return ends and (math.exp(ends[0]), math.exp(min(ends[1], 700.0)))

    def p_above(self, threshold: float) -> float | None:
        return self.logs.p_above(math.log(threshold)) if threshold > 0 else 0.0

    def p_below(self, threshold: float) -> float | None:
        return self.logs.p_below(math.log(threshold)) if threshold > 0 else 1.0


def found(sweep: Sweep, claims: Sequence[Declared]) -> list[Found]:
    """Every claim's decision, over all looks that have been made."""
    plan = stats.designs(sweep.experiment.looks, len(sweep.seeds))
    decisions = list[stats.Decision]()
    steps = [list[Step]() for _ in claims]
    seen: list[stats.Evidence | None] = [None for _ in claims]
    for number, (count, design) in enumerate(plan):
        asked = list[stats.Question | None]()
        for i, claim in enumerate(claims):
            made = _made(sweep, claim, count)
            open_ = not number or decisions[i].holds is None or decisions[i].exact
            asked.append(
                _question(sweep, claim, count, design if made else stats.Early())
                if open_ and (made or not number)
                else None
            )
        decisions = stats.decide(asked, before=decisions)
        for i, (claim, question) in enumerate(zip(claims, asked, strict=True)):
            if question is not None:
                seen[i] = question.evidence
                if _made(sweep, claim, count):
                    steps[i].append(Step(count, decisions[i]))
    return [
        Found(
            decision,
            evidence,
            basis(sweep, claim, looks[-1].seeds if looks else None),
            tuple(looks),
            _pairs(sweep, claim, looks),
        )
        for claim, decision, evidence, looks in zip(claims, decisions, seen, steps, strict=True)
    ]


def needs(
    sweep: Sweep, claims: Sequence[Declared], comparable: Sequence[bool]
) -> list[tuple[Found, int, bool]]:
    """Every claim's decision, how many of the seeds it needs by now, and whether it is open: it waits for a
    look. Those are the seeds of the looks so far, and of the next one where it is open. One that compares
    nothing, or has nothing to compare, needs no more; what is no matter of seeds needs those of the first.
    """
    counts = [count for count, _ in stats.designs(sweep.experiment.looks, len(sweep.seeds))]
    out = []
    for one, equal in zip(found(sweep, claims), comparable, strict=True):
        made = 0 if one.basis in ("exact", "timing") else len(one.steps)
        closed = one.decision.holds is not None or (made > 0 and not one.decision.n) or not equal
        closed = closed or one.basis in ("exact", "timing") or made == len(counts)
        out.append(
            (one, one.steps[-1].seeds if made and closed else counts[0 if closed else made], not closed)
        )
    return out


def _made(sweep: Sweep, claim: Declared, count: int) -> bool:
    if basis(sweep, claim, count) in ("exact", "timing"):
        return True
    return sweep.tried((claim["arm"], claim["against"]), sweep.seeds[:count])


def basis(sweep: Sweep, claim: Declared, count: int | None = None) -> str:
    """What a claim is decided on, of the first so many seeds."""
    metric = claim["metric"]
    arms = (claim["arm"], claim["against"])
    if metric in sweep.times and not sweep.having(metric, sweep.arms):
        return "timing"
    if sweep.counted(metric, arms):
        return "exact"
    if claim["identity"]:
        return "identity"
    if sweep.metric(metric).kind == "share" and claim["compare"] == "difference":
        return "share"
    diverged = any(sweep.at[arm, seed].status == "diverged" for arm in arms for seed in sweep.seeds[:count])
    return "ranks" if metric in sweep.budgets or diverged else "seeds"


def _question(sweep: Sweep, claim: Declared, count: int, design: stats.Design) -> stats.Question:
    centre = 1.0 if claim["compare"] == "ratio" else 0.0
    if claim["threshold"] is None:  # it is declared in training, and nobody knows what that is
        return stats.Question(None, claim["is"], 1.0, centre)
    evidence = _evidence(sweep, claim, sweep.seeds[:count], design)
    return stats.Question(evidence, claim["is"], claim["threshold"], centre)


def _evidence(
    sweep: Sweep, claim: Declared, seeds: Sequence[int], design: stats.Design
) -> stats.Evidence | None:
    arm = claim["arm"]
    against = claim["against"]
    metric = claim["metric"]
    ratio = claim["compare"] == "ratio"
    what = basis(sweep, claim, len(seeds))
    if what == "timing":
        rows = [((sweep.timing or {}).get("arms") or {}).get(name, {}).get(metric) for name in (arm, against)]
        if not ratio or not all(row and row.get("samples") for row in rows):
            return None
        ours, theirs = (_blocks(row["samples"]) for row in rows)
        return stats.ratio_draws(ours, theirs)
    if what == "exact":
        count, other = (common(sweep.values(name, metric)) for name in (arm, against))
        if count is None or other is None or (ratio and not other):
            return None
        return stats.Exact(count / other if ratio else count - other)
    pairs = sweep.pairs(arm, against, metric, seeds)
    early = isinstance(design, stats.Early)
    if what == "identity" and not early:
        values = [pair["value"] / pair["against"] if ratio else pair["difference"] for pair in pairs]
        return stats.Exact(*values) if values else None
    if what == "share" and not early:
        return stats.Shares(_shares(sweep, claim, seeds)) if pairs else None
    if what == "ranks" and not early:
        return _ranks(sweep, claim, seeds)
    if not pairs:
        return None
    if ratio:
        return Ratios(pairs, design)
    return stats.Differences([pair["difference"] for pair in pairs], design)


def _ranks(sweep: Sweep, claim: Declared, seeds: Sequence[int]) -> stats.Evidence | None:
    arm = claim["arm"]
    against = claim["against"]
    metric = claim["metric"]
    outcomes = sweep.outcomes(arm, against, metric, seeds, claim["direction"])
    if claim["compare"] == "ratio":
        known = {pair["seed"]: pair["value"] / pair["against"] for pair in sweep.pairs(arm, against, metric)}
        both = [seed for seed in seeds if seed in known]
        lost = [outcome for outcome in outcomes if not math.isfinite(outcome)]
        worst = [outcome if math.isnan(outcome) else max(0.0, outcome) for outcome in lost]
        outcomes = [*(known[seed] for seed in both), *worst]
    return stats.Ranks(outcomes) if outcomes else None


def _shares(sweep: Sweep, claim: Declared, seeds: Sequence[int]) -> list[float]:
    """Differences of shares; a run that diverged has the worst share there is."""
    worst = 1.0 if claim["direction"] == "lower" else 0.0
    out = []
    for seed in seeds:
        values = [sweep.value(arm, seed, claim["metric"]) for arm in (claim["arm"], claim["against"])]
        lost = [sweep.at[arm, seed].status == "diverged" for arm in (claim["arm"], claim["against"])]
        ours, theirs = (worst if gone else value for value, gone in zip(values, lost, strict=True))
        if ours is not None and theirs is not None:
            out.append(ours - theirs)
    return out


def _pairs(sweep: Sweep, claim: Declared, looks: Sequence[Step]) -> list[Pair]:
    """The finished pairs of the look that a claim was decided at; all there are before the first one."""
    if basis(sweep, claim) in ("exact", "timing"):
        return []
    seeds = sweep.seeds[: looks[-1].seeds] if looks else sweep.seeds
    return sweep.pairs(claim["arm"], claim["against"], claim["metric"], seeds)


def _blocks(samples: Sequence[float]) -> list[list[float]]:
    """Rounds of A B B A hold two samples of each arm, taken in the same moment."""
    return [list(samples[i : i + 2]) for i in range(0, len(samples) - 1, 2)]


def timed(sweep: Sweep, claim: Declared) -> bool:
    """Whether a run of the two arms made it of times."""
    metric = claim["metric"]
    arms = (claim["arm"], claim["against"])
    return any(kind(record, metric) == "time" for record in sweep.having(metric, arms))
