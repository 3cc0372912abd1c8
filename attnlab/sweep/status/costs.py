"""What a plan with looks still takes: at most, and on the average where arms do not differ.

The chances of the looks are kept in the cache by what they follow from, since scipy takes longer to import
than all the rest of a plan.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from attnlab.store import answers, fingerprint
from attnlab.store.declarations import Claim, Experiment
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.store.source import sources
from attnlab.sweep.execute.progress import duration
from attnlab.sweep.plan.exchange.told import slope as slope_of
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.status.forecast import Forecast, finished_pairs
from attnlab.sweep.status.looks import LATER, Waiting
from attnlab.sweep.status.states import OPEN, State

ALPHA = 0.05
SPREAD = 1.65  # sd of a difference in a margin, where nothing is known of it
_POWER = "attnlab.stats.power"
_CERTAIN = ("exact", "identity", "timing")  # kinds of claims that no further seed decides
_KINDS = {"count": "exact", "time": "timing", "share": "share", "censored": "ranks"}  # by the metric's


@dataclass
class Expected:
    """Seeds per arm where arms do not differ, and the claims whose spread was seen, guessed, or neither."""

    seeds: dict[str, float]
    margin: float
    seen: int = 0
    guessed: int = 0
    unknown: list[int] = field(default_factory=list)


def line(
    plan: Plan,
    looks: Sequence[int],
    claims: Sequence[Waiting],
    records: Mapping[str, RunRecord],
    open_: Sequence[RunSpec],
    forecasts: Mapping[str, Forecast],
    slots: int,
) -> str:
    """What the looks take; `open_` are the runs that have not ended and that a claim may still need."""
    if not open_:
        return "no claim waits for a further look"
    expected = _expected(plan, looks, claims, records)
    left = {arm: [run for run in open_ if run.arm == arm] for arm in plan.arms()}
    ended = {arm: len(runs) - len(left[arm]) for arm, runs in plan.arms().items()}
    most = {arm: float(len(runs)) for arm, runs in left.items()}
    likely = {arm: min(most[arm], max(0.0, expected.seeds[arm] - ended[arm])) for arm in left}
    few, many = min(expected.seeds.values()), max(expected.seeds.values())
    seeds = f"{few:.3g}" if many - few < 0.05 else f"{few:.3g} to {many:.3g}"
    about, atmost = (_cost(runs, left, forecasts, slots) for runs in (likely, most))
    return (
        f"looks at {', '.join(map(str, looks))} seeds: if arms do not differ, about {seeds} of {looks[-1]} "
        f"seeds per arm, {about}; at most {atmost} ({_assumed(expected)})"
    )


def together(runs: Sequence[tuple[State, Forecast]], slots: int) -> list[str]:
    """What the runs of several comparisons take: by now, and with every later look."""
    known = [(state.word, seconds) for state, forecast in runs if (seconds := forecast.seconds) is not None]
    now = sum(seconds for word, seconds in known if word in OPEN)
    later = sum(seconds for word, seconds in known if word == LATER)
    if not now:
        return []
    number = sum(state.word in OPEN for state, _ in runs)
    more = f", and with every later look {duration((now + later) / slots)} at most" if later else ""
    about = duration(now / min(slots, number))
    return [f"together: {number} to train by now, about {about} on {slots} slots{more}"]


def _cost(
    runs: Mapping[str, float],
    left: Mapping[str, Sequence[RunSpec]],
    forecasts: Mapping[str, Forecast],
    slots: int,
) -> str:
    """So many more runs of each arm, and what they take."""
    number = sum(runs.values())
    said = f"{math.ceil(number)} more runs"
    known = {
        arm: seconds
        for arm, some in left.items()
        if (seconds := [s for run in some if (s := forecasts[run.id].seconds) is not None])
    }
    if not known or not number:
        return said
    usual = mean(second for seconds in known.values() for second in seconds)
    total = sum(count * (mean(known[arm]) if arm in known else usual) for arm, count in runs.items())
    return f"{said}, {duration(total / min(slots, math.ceil(number)))} on {slots} slots"


def _expected(
    plan: Plan, looks: Sequence[int], claims: Sequence[Waiting], records: Mapping[str, RunRecord]
) -> Expected:
    """Per arm the largest need among its claims, each claim taken alone."""
    experiment = plan.experiment
    assert experiment is not None
    stands: list[Waiting | None] = list(claims) or [None] * len(experiment.claims)
    kinds = [
        stand["kind"] if stand else _kind(plan.runs[0], experiment, claim)
        for claim, stand in zip(experiment.claims, stands, strict=True)
    ]
    tested = sum(
        kind not in _CERTAIN and not (stand and stand["verdict"] == "SUPPORTED")
        for kind, stand in zip(kinds, stands, strict=True)
    )
    # while nobody knows it, what is declared in training is as large as it may be
    slope = slope_of(plan.exchange, records.get) or math.inf
    margin = experiment.nats(experiment.margin, slope) or 0.0
    out = Expected(dict.fromkeys(experiment.arms, float(looks[0])), margin)
    for number, (claim, kind, stand) in enumerate(zip(experiment.claims, kinds, stands, strict=True), 1):
        if stand and not stand["open"]:
            need = float(stand["seeds"])
        elif kind in _CERTAIN:
            need = float(looks[0])
        elif kind == "seeds" and (spread := _spread(plan, experiment, claim, records, out)) is not None:
            threshold = experiment.nats(claim.threshold, slope) or 0.0
            shares = _stops(plan.runs[0].config, looks, claim, threshold, spread, ALPHA / max(1, tested))
            need = _mean(looks, shares, stand["made"] if stand else 0)
        else:
            need = float(looks[-1])
            out.unknown.append(number)
        for arm in experiment.arms_of(claim):
            out.seeds[arm] = max(out.seeds[arm], need)
    arms = {run.id: run.arm for run in plan.runs}
    for run in plan.runs:  # what another arm continues from
        if (parent := arms.get(str(run.config.get("parent")))) is not None:
            out.seeds[parent] = max(out.seeds[parent], out.seeds[run.arm])
    return out


def _kind(run: RunSpec, experiment: Experiment, claim: Claim) -> str:
    """What a claim will be decided on, as far as that is known before a run has ended."""
    metric = experiment.metric_of(claim)
    if claim.identity:
        return "identity"
    declared = run.estimate.declared.get(metric)
    if run.estimate.get(metric) is not None and (declared is None or declared.kind == "seeds"):
        return "exact"
    return _KINDS.get(declared.kind, "seeds") if declared else "seeds"


def _spread(
    plan: Plan, experiment: Experiment, claim: Claim, records: Mapping[str, RunRecord], out: Expected
) -> float | None:
    """The sd of a claim's differences, or of the logarithms of its ratios; None where nobody knows."""
    metric = experiment.metric_of(claim)
    values = {
        (run.arm, run.seed): value
        for run in plan.runs
        if run.id in records and (value := records[run.id].figure(metric)) is not None
    }
    pairs = finished_pairs(experiment, values, *experiment.arms_of(claim))
    ratio = claim.compare == "ratio"
    if ratio and any(min(pair) <= 0 for pair in pairs):
        return None
    known = [math.log(ours / theirs) if ratio else ours - theirs for ours, theirs in pairs]
    if len(known) > 1 and (sd := stdev(known)) > 0:
        out.seen += 1
        return sd
    if metric != experiment.metric or ratio or not 0 < out.margin < math.inf:
        return None
    out.guessed += 1
    return out.margin / SPREAD


def _stops(
    config: Mapping[str, Any], looks: Sequence[int], claim: Claim, threshold: float, sd: float, share: float
) -> list[float]:
    """Per look the chance that it decides a claim, at the claim's share of the level."""
    about = [claim.relation, threshold, claim.compare]
    key = fingerprint.digest([list(looks), about, sd, share, sources([_POWER])])
    kept = answers.kept(config, "looks", key)
    if isinstance(kept, list) and len(kept) == len(looks):
        return kept
    from attnlab import stats

    centre, ratio = (1.0, True) if claim.compare == "ratio" else (0.0, False)
    low, high = stats.region(claim.relation, threshold, centre)
    tail = share if low < centre < high else share / 2
    if ratio:
        low, high = (math.log(end) if end > 0 else -math.inf for end in (low, high))
    found = stats.stops(looks, (low / sd, high / sd), tail)
    answers.keep(config, "looks", key, found)
    return found


def _mean(looks: Sequence[int], shares: Sequence[float], made: int) -> float:
    """Seeds on the average, of a claim that the first so many looks have left open."""
    open_ = 1 - sum(shares[:made])
    if open_ <= 0:
        return float(looks[min(made, len(looks) - 1)])
    stop = sum(count * share for count, share in zip(looks[made:], shares[made:], strict=True))
    return (stop + looks[-1] * (1 - sum(shares))) / open_


def _assumed(expected: Expected) -> str:
    words = ["sd of the differences as in the finished pairs"] if expected.seen else []
    if expected.guessed:
        sd = expected.margin / SPREAD
        words.append(
            f"sd of a difference taken as margin / {SPREAD:g} = {sd:.2g} where no two pairs are finished"
        )
    if expected.unknown:
        words.append(f"claim {', '.join(map(str, expected.unknown))} counted to the last look")
    return "; ".join(words) or "every claim is decided or counted"
