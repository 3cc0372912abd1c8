"""What the rungs of a ladder say together: one pure function of their reports."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise

import numpy as np

from attnlab.report.across.pairs import (
    about,
    comparisons,
    differences,
    failed,
    flops,
    reasons_apart,
    values,
)
from attnlab.report.ladder import (
    Accuracy,
    ArmLosses,
    Comparison,
    FloorMultiplier,
    HeldOut,
    LadderClaim,
    LadderReport,
    Larger,
    LinePoint,
    LossPoint,
    MoreSeeds,
    Multiplier,
    Size,
    SizeEffect,
    Source,
)
from attnlab.report.schema import ExperimentSummary, Mean, Report
from attnlab.report.tables.format import MINUS, NONE, span, text
from attnlab.stats import paired
from attnlab.stats.across.agreement import agreement
from attnlab.stats.across.holdout import holdout
from attnlab.stats.across.multiplier import Spent, multipliers
from attnlab.stats.across.rungs import Estimate, Rung
from attnlab.stats.across.trend import AHEAD, Trend
from attnlab.stats.across.word import CANNOT_TELL, More, word

LEVEL = 0.95
POINTS = 40  # of the drawn line
DIGITS = 3
AtSize = Sequence[tuple[Size, Report]]  # the smallest first


def build(reports: Mapping[str, Report]) -> LadderReport:
    """The ladder of these reports, by title. The rungs stand by the compute of their baseline: a file does
    not keep the order in which their ladder has them.
    """
    baseline = next(iter(reports.values())).experiment.baseline
    ordered = sorted(reports.items(), key=lambda item: flops(item[1], baseline) or 0.0)
    by_rung = [(_rung(title, report, baseline), report) for title, report in ordered]
    first = by_rung[0][1]
    place = first.place
    experiment = first.experiment
    assert place is not None, "a rung's report says of which ladder it is"
    assert place.ladder is not None
    asked = list(dict.fromkeys(pair for _, report in by_rung for pair in comparisons(report)))
    growth = _growth([size for size, _ in by_rung])
    claims = _claims(by_rung)
    return LadderReport(
        name=place.together,
        experiment=experiment.name,
        question=experiment.question,
        metric=experiment.metric,
        unit=next((row.unit for row in first.effects if row.metric == experiment.metric), ""),
        direction=experiment.direction,
        margin=_margin(experiment),
        margin_reason=experiment.margin_reason,
        level=LEVEL,
        arms=experiment.arms,
        baseline=baseline,
        ladder=place.ladder,
        rungs=[size for size, _ in by_rung],
        comparisons=[_comparison(by_rung, pair, experiment, growth) for pair in asked],
        losses=_losses(by_rung, experiment),
        claims=claims,
        agreement=counted([claim.verdicts for claim in claims]),
        exploratory=any(report.verdict.exploratory for report in reports.values()),
        reproduce=Source(**{key: getattr(first.reproduce, key) for key in Source.model_fields}),
    )


def _margin(experiment: ExperimentSummary) -> float:
    assert experiment.margin is not None, "a ladder declares its margin as a number"
    return experiment.margin


def _rung(title: str, report: Report, baseline: str) -> Size:
    budget = next((run.budget for run in report.runs if run.arm == baseline and run.budget.known()), None)
    assert report.place is not None
    known = ("parameters", "parameters_non_embedding", "tokens", "steps")
    return Size(
        name=report.place.name,
        title=title,
        flops=flops(report, baseline),
        **{key: budget.get(key) if budget else None for key in known},
        rates={run.arm: float(run.budget.lr) for run in report.runs if run.budget.lr is not None},
        finished=report.verdict.finished,
        planned=report.verdict.planned,
        headline=report.verdict.headline,
        seconds=sum(run.seconds or 0 for run in report.runs),
    )


def _growth(sizes: Sequence[Size]) -> float | None:
    """Tenfolds of compute for a tenfold of parameters, from the smallest rung to the largest; None where the
    parameters do not grow, or are not known.
    """
    first, last = sizes[0], sizes[-1]
    if not (first.parameters and last.parameters and first.flops and last.flops):
        return None
    wider = math.log(last.parameters / first.parameters)
    return math.log(last.flops / first.flops) / wider if wider > 0 else None


def _comparison(
    by_rung: AtSize, pair: tuple[str, str], experiment: ExperimentSummary, growth: float | None
) -> Comparison:
    """An effect at each rung, the line through them, and the word that the declared rule gives."""
    metric = experiment.metric
    rows = [_effect(size, report, pair, metric) for size, report in by_rung]
    apart = next(filter(None, (reasons_apart(report, *pair, metric) for _, report in by_rung)), [])
    why = _obstacle(rows, apart)
    rungs = [Rung(row.x, row.differences) for row in rows if row.differences and not row.failed and not apart]
    told = None if why else word(rungs, _margin(experiment))
    trend = Trend(rungs, LEVEL) if len(rungs) > 1 else None
    tested = holdout(rungs, LEVEL) if len(rungs) > 2 else None
    found = Comparison(
        arm=pair[0],
        against=pair[1],
        effects=rows,
        word=told.word if told else CANNOT_TELL,
        meaning=f"{told.reason}{_deciding(told.more)}" if told else why,
        more=MoreSeeds(**asdict(told.more)) if told and told.more else None,
        slope=_mean(trend.slope()) if trend else None,
        change=_mean(trend.change()) if trend else None,
        ahead=_point(trend, trend.top + AHEAD) if trend else None,
        larger=Larger(**dict(_mean(trend.at(trend.top + growth))), compute=10**growth)
        if trend and growth is not None
        else None,
        held_out=HeldOut(
            mean=tested.predicted, low=tested.low, high=tested.high, seen=tested.observed, hit=tested.hit
        )
        if tested
        else None,
        line=[_point(trend, float(x)) for x in np.linspace(trend.bottom, trend.top + AHEAD, POINTS)]
        if trend
        else [],
        sentence="",
        ahead_said="",
    )
    ahead = _ahead(found) if found.ahead else ""
    sentence = f"{_sentence(found, experiment)} {ahead}".rstrip()
    return found.model_copy(update={"sentence": sentence, "ahead_said": ahead})


def _obstacle(rows: Sequence[SizeEffect], apart: Sequence[str]) -> str | None:
    """Why two arms, with the reasons that keep them `apart`, have no word; None where they have one."""
    if apart:
        return f"NOT COMPARABLE: {'; '.join(apart)}"
    if lost := ", ".join(f"{row.rung} ({row.failed})" for row in rows if row.failed):
        return f"runs failed at {lost}, and a loss that is not there lies on no line"
    return None if any(row.differences for row in rows) else "no rung has a finished pair of runs"


def _point(trend: Trend, x: float) -> LinePoint:
    return LinePoint(**dict(_mean(trend.at(x))), flops=10**x)


def _effect(size: Size, report: Report, pair: tuple[str, str], metric: str) -> SizeEffect:
    found = differences(report, *pair, metric)
    return SizeEffect(
        rung=size.name,
        flops=size.flops,
        x=math.log10(size.flops or 1.0),
        n=len(found),
        **dict(_interval(found)),
        differences=found,
        failed=sum(failed(report, arm) for arm in pair),
    )


def _interval(found: list[float]) -> Mean:
    """The mean of values by seed with its t interval; all None without one."""
    known = paired(found, LEVEL) if found else None
    return Mean(**{key: getattr(known, key, None) for key in ("mean", "low", "high")})


def _deciding(more: More | None) -> str:
    """What would decide, where that can be said."""
    if more is None:
        return ""
    ways = ((more.at_top, "seeds in all at the largest rung"), (more.further, "seeds at a further one"))
    known = " or ".join(f"{seeds} {where}" for seeds, where in ways if seeds)
    decided = "would decide in 80 % of such ladders, if the truth is as it was seen"
    return f"; about {known} {decided}" if known else ""


def _mean(known: Estimate) -> Mean:
    return Mean(mean=known.estimate, low=known.low, high=known.high)


def _format(known: Mean | None) -> str:
    return f"{text(known.mean, DIGITS, sign=True)} {span(known.low, known.high, DIGITS)}" if known else NONE


def _sentence(found: Comparison, experiment: ExperimentSummary) -> str:
    """The effect at both ends, how it changes, and what lies ahead."""
    seen = [row for row in found.effects if row.mean is not None]
    if not seen:
        return "No rung has a finished pair of runs."
    first = seen[0]
    last = seen[-1]
    joint = f"{found.arm} {MINUS} {found.against}"
    words = [
        f"{joint}: {_format(first)} at {first.rung}, {_format(last)} at {last.rung} ({experiment.metric})"
    ]
    if found.change:
        words.append(f"a change of {_format(found.change)} along the line, margin {text(experiment.margin)}")
    if found.held_out:
        hit = {True: "where", False: "not where", None: "nobody knows whether where"}[found.held_out.hit]
        words.append(f"the largest rung is {hit} the others point")
    return "; ".join(words) + "."


def _ahead(found: Comparison) -> str:
    said = f"At ten times the largest rung's compute, if the line goes on: {_format(found.ahead)}"
    if larger := found.larger:
        times = f"{larger.compute:.0f} times its compute as these rungs grow"
        said += f"; at ten times its size, {times}: {_format(larger)}"
    return f"{said}."


def _losses(by_rung: AtSize, experiment: ExperimentSummary) -> list[ArmLosses]:
    """The loss of every arm at each rung, and the baseline's compute for that of the largest."""
    base = experiment.baseline
    rows = {
        arm: [_loss(size, report, arm, experiment.metric) for size, report in by_rung]
        for arm in experiment.arms
    }
    known = {
        arm: [Spent(p.flops, p.values) for p in points if p.flops and p.values]
        for arm, points in rows.items()
    }
    leaking = {arm for _, report in by_rung for arm in (report.leakage.arms if report.leakage else ())}
    return [
        ArmLosses(
            arm=arm,
            points=points,
            multiplier=None if arm == base or {arm, base} & leaking else _multiplier(known[base], known[arm]),
        )
        for arm, points in rows.items()
    ]


def _loss(size: Size, report: Report, arm: str, metric: str) -> LossPoint:
    found = [*values(report, arm, metric).values()]
    return LossPoint(rung=size.name, flops=flops(report, arm), values=found, **dict(_interval(found)))


def _multiplier(baseline: list[Spent], arm: list[Spent]) -> Multiplier | None:
    """By the assumed floor of the loss; None where there is nothing to go by."""
    if len(baseline) < 2 or not arm:
        return None
    told = multipliers(baseline, arm[-1], LEVEL)
    floors = {
        name: FloorMultiplier(floor=m.law.floor, value=m.estimate, low=m.low, high=m.high)
        for name, m in told.by_floor.items()
    }
    return Multiplier(floors=floors, least=told.least, most=told.most)


def _claims(by_rung: AtSize) -> list[LadderClaim]:
    """Each claim that seeds decide, with its verdict at every rung."""
    reports = [report for _, report in by_rung]
    says = dict.fromkeys(
        claim.says for report in reports for claim in report.verdict.claims if about(claim, report)
    )
    verdicts = [{claim.says: claim.verdict for claim in report.verdict.claims} for report in reports]
    return [LadderClaim(says=claim, verdicts=[told.get(claim) for told in verdicts]) for claim in says]


def counted(verdicts: Sequence[Sequence[str | None]]) -> Accuracy:
    """Over claims, each with its verdicts from the smallest rung on: every rung against the next."""
    pairs = [(small or "", large or "") for row in verdicts for small, large in pairwise(row)]
    found = agreement(pairs)
    open_ = found.small_open + found.large_open
    if found.share is None:
        return Accuracy(
            pairs=pairs, words="Decision accuracy: no claim was decided at a rung and at the next one too."
        )
    ends = f"[{found.share.low:.0%}, {found.share.high:.0%}]".replace("%", " %")
    both = found.alike + found.opposite
    words = (
        f"Decision accuracy: where a rung and the next one both decided a claim, they decided alike in "
        f"{found.alike} of {both} cases, {ends}; in {open_} further cases one of the two was open."
    )
    return Accuracy(pairs=pairs, words=words)
