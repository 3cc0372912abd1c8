"""The path of a claim that was decided in looks: the interval of each look, its boundary, and the look at
which it was passed. One small picture per claim.
"""

import math
from collections.abc import Sequence

from attnlab.report.charts.figures import Figure
from attnlab.report.charts.marks import VERDICTS, Spec, chart, coded, layer, line_at, number, span
from attnlab.report.charts.svg import BAND, INK, MUTED, PAPER
from attnlab.report.schema import ClaimResult, Look, Report, Verdict
from attnlab.report.tables import looks
from attnlab.report.tables.looks import LookRow
from attnlab.report.tables.wording import describe_claim

HEIGHT = 210
LETTER = 8.5
AXIS = 60  # pixels of a letter of a verdict beside its look, and of the axis on the left
FAR = 0.7  # of the height that the last look needs: so much further is drawn of wider intervals


def paths(report: Report, width: int, suffix: str = "") -> dict[str, list[Figure]]:
    """Place in the page (`looks`, the claim's number, `suffix`) -> its figure; of claims tried in looks."""
    return {
        f"looks{number}{suffix}": [_figure(claim, f"looks{number}{suffix}", width)]
        for number, claim in enumerate(report.verdict.claims, 1)
        if looks.has_path(claim)
        and any(look.estimate is not None for look in (claim.looks.made if claim.looks else ()))
    }


def _figure(claim: ClaimResult, name: str, width: int) -> Figure:
    rows = looks.rows(claim)
    steps = "; ".join(looks.describe(claim, row) for row in rows)
    label = f"Interim analyses of the claim {claim.says}. {describe_claim(claim)} {steps}."
    return Figure(name, _spec(claim, rows, width), label)


def _spec(claim: ClaimResult, rows: Sequence[LookRow], width: int) -> Spec:
    start, stop = claim.region or (-math.inf, math.inf)
    ends = [end for end in (start, stop) if math.isfinite(end)]
    seen = [(row, row.seen) for row in rows if row.seen and row.seen.estimate is not None]
    domain = low, high = _domain(ends, [look for _, look in seen])
    last = rows[-1].seeds
    counts = {"values": [row.seeds for row in rows], "format": "d", "grid": False, "tickSize": 7}
    made = [_mark(claim, row, look, domain) for row, look in seen]
    word_share = LETTER * (len(claim.verdict) + 1) / (width - AXIS)
    end = max([last * 1.08, *(mark["seeds"] / (1 - word_share) for mark in made if mark["decided"])])
    x = number("seeds", [0, end], "paired seeds", **counts)
    y = number("estimate", [low, high], tickCount=5)
    decided, open_ = ([mark for mark in made if mark["decided"] is yes] for yes in (True, False))
    idle: list[Spec] = [
        {"seeds": row.seeds, "state": row.state}
        for row in rows
        if row.state not in (looks.DECIDED, looks.OPEN)
    ]
    bounds = _boundaries(rows)
    holds = {"from": max(start, low), "to": min(stop, high)}
    code = coded("word", VERDICTS)
    clip = {"clip": True}
    dashed = {"color": MUTED, "strokeDash": [5, 3], "strokeWidth": 1.3, **clip}
    tick = {"orient": "horizontal", "color": MUTED, "size": 14, **clip}
    empty = {"filled": False, "size": 35, "opacity": 1, "color": MUTED}
    foot = {"datum": low}
    dot = {"filled": True, "size": 90, "opacity": 1}
    word = {"dx": 10, "dy": -9, "align": "left", "fontWeight": "bold"}
    # where an interval goes on beyond the picture
    cut = [{"seeds": mark["seeds"], "word": mark["word"], **tip} for mark in made for tip in mark.pop("cut")]
    tip = {"field": "shape", "type": "nominal", "scale": None}
    layers: list[Spec | None] = [
        layer("rect", {"color": BAND, **clip}, [holds], y={**y, "field": "from"}, y2="to"),
        *(line_at("y", end, color=INK, strokeDash=[], strokeWidth=1) for end in ends),
        line_at("y", 0.0) if low < 0 < high and 0.0 not in ends else None,
        layer("line", dashed, bounds, x=x, y={**y, "field": "at"}, detail="side"),
        layer("tick", tick, bounds, x=x, y={**y, "field": "at"}),
        layer("line", {"color": MUTED, "strokeWidth": 1}, x=x, y=y),
        layer("rule", {"strokeWidth": 3}, x=x, y={**y, "field": "low"}, y2="high", color=code["color"]),
        layer("point", {"filled": True, "size": 45, "opacity": 1}, cut, x=x, y={**y, "field": "at"},
              color=code["color"], shape=tip),
        layer("point", {**dot, "fill": PAPER, "strokeWidth": 2}, open_, x=x, y=y, description="said",
              stroke=code["color"], shape=code["shape"]),
        layer("point", {**dot, "size": 130, "stroke": PAPER}, decided, x=x, y=y, description="said", **code),
        layer("text", word, decided, x=x, y=y, text="word"),
        layer("point", empty, idle, x=x, y=foot),
        layer("text", {"dy": -10, "color": MUTED, "align": "right"}, idle[-1:], x=x, y=foot, text="state"),
    ]  # fmt: skip
    return chart(width, HEIGHT, layers, made, title={"text": looks.title(claim), "fontWeight": "normal"})


def _mark(claim: ClaimResult, row: LookRow, look: Look, domain: tuple[float, float]) -> Spec:
    decided, (low, high) = row.state == looks.DECIDED, domain
    return {
        "seeds": row.seeds,
        "estimate": look.estimate,
        "low": max(_or(look.low, low), low),
        "high": min(_or(look.high, high), high),
        "decided": decided,
        "word": str(claim.verdict if decided else Verdict.INCONCLUSIVE),
        "said": looks.describe(claim, row),
        "cut": [
            {"at": edge, "shape": shape}
            for end, edge, shape in ((look.low, low, "triangle-down"), (look.high, high, "triangle-up"))
            if end is None or not low <= end <= high
        ],
    }


def _boundaries(rows: Sequence[LookRow]) -> list[Spec]:
    """The points of every boundary: a support that no estimate could have given has none."""
    points = list[Spec]()
    for row in rows:
        for side, ends in (("support", row.support), ("refute", row.refute)):
            first, last = ends or (None, None)
            if side == "support" and first is not None and last is not None and first >= last:
                continue
            points += [
                {"seeds": row.seeds, "at": end, "side": f"{side}{i}"}
                for i, end in enumerate((first, last))
                if end is not None
            ]
    return points


def _domain(ends: Sequence[float], seen: Sequence[Look]) -> tuple[float, float]:
    """What is drawn: thresholds, estimates and the last interval whole; of wider ones as much again."""
    low, high = span([*ends, *(look.estimate for look in seen), seen[-1].low, seen[-1].high], 0.1)
    others = [end for look in seen for end in (look.low, look.high) if end is not None]
    far = FAR * (high - low)
    air = 0.15 * (high - low)  # air for the words at the foot
    return max(min([low, *others]), low - far) - air, min(max([high, *others]), high + far)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
