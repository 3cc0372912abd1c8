"""What the rungs of a ladder say together: one pure function of their reports."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from attnlab.report.across.pairs import (
    Report,
    about,
    comparisons,
    differences,
    failed,
    flops,
    reasons_apart,
    values,
)
from attnlab.report.tables.format import MINUS, NONE, span, text
from attnlab.stats import paired
from attnlab.stats.across.agreement import agreement
from attnlab.stats.across.holdout import holdout
from attnlab.stats.across.multiplier import Spent, multipliers
from attnlab.stats.across.rungs import Estimate, Rung
from attnlab.stats.across.trend import AHEAD, Trend
from attnlab.stats.across.word import CANNOT_TELL, More, word

SCHEMA = 1
LEVEL = 0.95
POINTS = 40  # of the drawn line
DIGITS = 3


def build(reports: Mapping[str, Report]) -> dict[str, Any]:
    """The ladder of these reports, by title, as plain JSON. The rungs stand by the compute of their
    baseline: a file does not keep the order in which their ladder has them.
    """
    baseline = next(iter(reports.values()))["experiment"]["baseline"]
    rungs = sorted(reports.items(), key=lambda item: flops(item[1], baseline) or 0.0)
    first = rungs[0][1]
    place = first["place"]
    experiment = first["experiment"]
    asked = list(dict.fromkeys(pair for _, report in rungs for pair in comparisons(report)))
    steps = [_rung(title, report, baseline) for title, report in rungs]
    by_rung = {row["name"]: (row, report) for row, (_, report) in zip(steps, rungs, strict=True)}
    growth = _growth(steps)
    found = [_comparison(by_rung, pair, experiment, growth) for pair in asked]
    claims = _claims(by_rung)
    return {
        "schema": SCHEMA,
        "name": place["together"],
        "experiment": experiment["name"],
        "question": experiment["question"],
        "metric": experiment["metric"],
        "unit": next(
            (str(row["unit"]) for row in first["effects"] if row["metric"] == experiment["metric"]), ""
        ),
        "direction": experiment["direction"],
        "margin": experiment["margin"],
        "margin_reason": experiment["margin_reason"],
        "level": LEVEL,
        "arms": experiment["arms"],
        "baseline": baseline,
        "ladder": place["ladder"],
        "rungs": steps,
        "comparisons": found,
        "losses": _losses(by_rung, experiment),
        "claims": claims,
        "agreement": counted([claim["verdicts"] for claim in claims]),
        "exploratory": any(report["verdict"]["exploratory"] for report in reports.values()),
        "reproduce": {
            key: first["reproduce"].get(key) for key in ("command", "commit", "dirty", "date", "device")
        },
    }


def _rung(title: str, report: Report, baseline: str) -> dict[str, Any]:
    budget: dict[str, Any] = next(
        (run["budget"] for run in report["runs"] if run["arm"] == baseline and run["budget"]), {}
    )
    rates = {run["arm"]: run["budget"]["lr"] for run in report["runs"] if run["budget"].get("lr") is not None}
    known = ("parameters", "parameters_non_embedding", "tokens", "steps")
    return {
        "name": report["place"]["name"],
        "title": title,
        "flops": flops(report, baseline),
        **{key: budget.get(key) for key in known},
        "rates": rates,
        "finished": report["verdict"]["finished"],
        "planned": report["verdict"]["planned"],
        "headline": report["verdict"]["headline"],
        "seconds": sum(run["seconds"] or 0 for run in report["runs"]),
    }


def _growth(steps: list[dict[str, Any]]) -> float | None:
    """Tenfolds of compute for a tenfold of parameters, from the smallest rung to the largest; None where the
    parameters do not grow, or are not known.
    """
    first = steps[0]
    last = steps[-1]
    if not all(row[key] for row in (first, last) for key in ("parameters", "flops")):
        return None
    wider = math.log(last["parameters"] / first["parameters"])
    return math.log(last["flops"] / first["flops"]) / wider if wider > 0 else None


def _comparison(
    by_rung: Mapping[str, Any], pair: tuple[str, str], experiment: Mapping[str, Any], growth: float | None
) -> dict[str, Any]:
    """An effect at each rung, the line through them, and the word that the declared rule gives."""
    arm, against = pair
    rows = [_effect(row, report, pair, experiment["metric"]) for row, report in by_rung.values()]
    rungs = [Rung(row["x"], row["differences"]) for row in rows if row["differences"] and not row["failed"]]
    lost = ", ".join(f"{row['rung']} ({row['failed']})" for row in rows if row["failed"])
    why = f"runs failed at {lost}, and a loss that is not there lies on no line" if lost else None
    metric = experiment["metric"]
    apart = [reasons_apart(report, *pair, metric) for _, report in by_rung.values()]
    why = next((f"NOT COMPARABLE: {'; '.join(reasons)}" for reasons in apart if reasons), why)
    rungs = [] if any(apart) else rungs
    why = why or (None if rungs else "no rung has a finished pair of runs")
    said = None if why else word(rungs, experiment["margin"])
    found: dict[str, Any] = {
        "arm": arm,
        "against": against,
        "effects": rows,
        "word": said.word if said else CANNOT_TELL,
        "meaning": f"{said.reason}{_deciding(said.more)}" if said else why,
        "more": asdict(said.more) if said and said.more else None,
        "slope": None, "change": None, "ahead": None, "larger": None, "held_out": None, "line": [],
    }  # fmt: skip
    if len(rungs) > 1:
        trend = Trend(rungs, LEVEL)
        xs = np.linspace(trend.bottom, trend.top + AHEAD, POINTS)
        found |= {"slope": _told(trend.slope()), "change": _told(trend.change())}
        found["ahead"] = _told(trend.ahead()) | {"flops": 10 ** (trend.top + AHEAD)}
        if growth is not None:
            found["larger"] = _told(trend.at(trend.top + growth)) | {"compute": 10**growth}
        found["line"] = [_told(trend.at(float(x))) | {"flops": 10 ** float(x)} for x in xs]
    if len(rungs) > 2:
        tested = holdout(rungs, LEVEL)
        found["held_out"] = {
            "mean": tested.predicted, "low": tested.low, "high": tested.high, "seen": tested.observed,
            "hit": tested.hit,
        }  # fmt: skip
    ahead = _ahead(found) if found["ahead"] else ""
    return found | {"sentence": f"{_sentence(found, experiment)} {ahead}".rstrip(), "ahead_said": ahead}


def _effect(row: Mapping[str, Any], report: Report, pair: tuple[str, str], metric: str) -> dict[str, Any]:
    found = differences(report, *pair, metric)
    return {
        "rung": row["name"],
        "flops": row["flops"],
        "x": math.log10(row["flops"] or 1.0),
        "n": len(found),
        **_interval(found),
        "differences": found,
        "failed": sum(failed(report, arm) for arm in pair),
    }


def _interval(found: list[float]) -> dict[str, float | None]:
    """The mean of values by seed with its t interval; all None without one."""
    known = paired(found, LEVEL) if found else None
    return {key: getattr(known, key, None) for key in ("mean", "low", "high")}


def _deciding(more: More | None) -> str:
    """What would decide, where that can be said."""
    if more is None:
        return ""
    ways = ((more.at_top, "seeds in all at the largest rung"), (more.further, "seeds at a further one"))
    known = " or ".join(f"{seeds} {where}" for seeds, where in ways if seeds)
    decided = "would decide in 80 % of such ladders, if the truth is as it was seen"
    return f"; about {known} {decided}" if known else ""


def _told(known: Estimate) -> dict[str, Any]:
    return {"mean": known.estimate, "low": known.low, "high": known.high}


def _said(known: Mapping[str, Any] | None) -> str:
    return (
        f"{text(known['mean'], DIGITS, sign=True)} {span(known['low'], known['high'], DIGITS)}"
        if known
        else NONE
    )


def _sentence(found: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
    """The effect at both ends, how it changes, and what lies ahead."""
    seen = [row for row in found["effects"] if row["mean"] is not None]
    if not seen:
        return "No rung has a finished pair of runs."
    first = seen[0]
    last = seen[-1]
    joint = f"{found['arm']} {MINUS} {found['against']}"
    metric = experiment["metric"]
    words = [f"{joint}: {_said(first)} at {first['rung']}, {_said(last)} at {last['rung']} ({metric})"]
    if found["change"]:
        words.append(
            f"a change of {_said(found['change'])} along the line, margin {text(experiment['margin'])}"
        )
    if found["held_out"]:
        hit = {True: "where", False: "not where", None: "nobody knows whether where"}[
            found["held_out"]["hit"]
        ]
        words.append(f"the largest rung is {hit} the others point")
    return "; ".join(words) + "."


def _ahead(found: Mapping[str, Any]) -> str:
    said = f"At ten times the largest rung's compute, if the line goes on: {_said(found['ahead'])}"
    if larger := found["larger"]:
        times = f"{larger['compute']:.0f} times its compute as these rungs grow"
        said += f"; at ten times its size, {times}: {_said(larger)}"
    return f"{said}."


def _losses(by_rung: Mapping[str, Any], experiment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The loss of every arm at each rung, and the baseline's compute for that of the largest."""
    metric = experiment["metric"]
    base = experiment["baseline"]
    rows = {
        arm: [_loss(row, report, arm, metric) for row, report in by_rung.values()]
        for arm in experiment["arms"]
    }
    known = {
        arm: [Spent(p["flops"], p["values"]) for p in points if p["flops"] and p["values"]]
        for arm, points in rows.items()
    }
    leaking = {arm for _, report in by_rung.values() for arm in (report["leakage"] or {"arms": []})["arms"]}
    return [
        {
            "arm": arm,
            "points": points,
            "multiplier": None
            if arm == base or {arm, base} & leaking
            else _multiplier(known[base], known[arm]),
        }
        for arm, points in rows.items()
    ]


def _loss(row: Mapping[str, Any], report: Report, arm: str, metric: str) -> dict[str, Any]:
    found = [*values(report, arm, metric).values()]
    return {"rung": row["name"], "flops": flops(report, arm), "values": found, **_interval(found)}


def _multiplier(baseline: list[Spent], arm: list[Spent]) -> dict[str, Any] | None:
    """By the assumed floor of the loss; None where there is nothing to go by."""
    if len(baseline) < 2 or not arm:
        return None
    told = multipliers(baseline, arm[-1], LEVEL)
    floors = {
        name: {"floor": m.law.floor, "value": m.estimate, "low": m.low, "high": m.high}
        for name, m in told.by_floor.items()
    }
    return {"floors": floors, "least": told.least, "most": told.most}


def _claims(by_rung: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each claim that seeds decide, with its verdict at every rung."""
    reports = [report for _, report in by_rung.values()]
    says = dict.fromkeys(
        claim["says"] for report in reports for claim in report["verdict"]["claims"] if about(claim, report)
    )
    verdicts = [
        {claim["says"]: claim["verdict"] for claim in report["verdict"]["claims"]} for report in reports
    ]
    return [{"says": claim, "verdicts": [told.get(claim) for told in verdicts]} for claim in says]


def counted(verdicts: list[list[str | None]]) -> dict[str, Any]:
    """Over claims, each with its verdicts from the smallest rung on: every rung against the next."""
    pairs = [(small or "", large or "") for row in verdicts for small, large in pairwise(row)]
    found = agreement(pairs)
    open_ = found.small_open + found.large_open
    if found.share is None:
        return {
            "pairs": pairs,
            "words": "Decision accuracy: no claim was decided at a rung and at the next one too.",
        }
    ends = f"[{found.share.low:.0%}, {found.share.high:.0%}]".replace("%", " %")
    both = found.alike + found.opposite
    words = (
        f"Decision accuracy: where a rung and the next one both decided a claim, they decided alike in "
        f"{found.alike} of {both} cases, {ends}; in {open_} further cases one of the two was open."
    )
    return {"pairs": pairs, "words": words}
