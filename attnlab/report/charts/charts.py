"""Charts that compare arms: verdict intervals, forest plot, paired slopes, trade-off, budget.

Plain functions from rows of report.json to a Vega-Lite spec; `said` in a row is what a screen reader says.
"""

from collections.abc import Collection

from attnlab.report.charts.marks import (
    GREEN,
    GREY,
    VERDICTS,
    VERMILION,
    Spec,
    Styles,
    band,
    chart,
    coded,
    layer,
    line_at,
    name,
    number,
    span,
)
from attnlab.report.charts.svg import BAND, INK, MUTED, PAPER
from attnlab.report.tables.ranking import MANY

LETTER = 6.2  # pixels of an average letter of a label
THOUSANDS = 10_000  # from here on an axis is told as 10k; below, 0.16 and 2,048 read better


def intervals(rows: list[Spec], *, unit: str, width: int, centre: float = 0.0) -> Spec:
    """One row per claim: the interval that decided it, over the shaded region in which the claim holds.

    A row has: label, mean, low, high (the interval), from, to (the region), word, text, said; an end that is
    None is nowhere.
    """
    keys = ("mean", "low", "high", "from", "to")
    domain = span([*(row[key] for row in rows for key in keys), centre], pad=0.12)
    low, high = domain
    drawn = []
    for row in rows:
        half = LETTER * len(row["text"]) / 2 * (high - low) / max(1, width - 120)
        place = min(max(row["mean"], low + half), high - half)
        ends = {"start": row["from"], "end": row["to"], "low": row["low"], "high": row["high"]}
        edges = {"start": low, "end": high, "low": low, "high": high}
        known = {key: edges[key] if end is None else end for key, end in ends.items()}
        drawn.append({**row, "place": place, **known})

    y = name("label", labelLimit=150)
    x = number("mean", domain, unit, grid=False)
    code = coded("word", VERDICTS)
    dot = {"filled": True, "size": 130, "opacity": 1, "stroke": PAPER, "strokeWidth": 1}
    holds = {"color": BAND, "height": {"band": 0.86}}
    colour = code["color"]
    layers: list[Spec | None] = [
        layer("bar", holds, x={**x, "field": "start"}, x2="end", y=y),
        line_at("x", centre),
        layer("rule", {"strokeWidth": 3}, x={**x, "field": "low"}, x2="high", y=y, color=colour),
        layer("point", dot, x=x, y=y, description="said", **code),
        layer("text", {"dy": -14, "color": INK}, x={**x, "field": "place"}, y=y, text="text"),
    ]
    return chart(width, 48 + 52 * len(rows), layers, drawn)


def forest(
    rows: list[Spec], seeds: list[Spec], styles: Styles, *, unit: str, margin: float | None, width: int
) -> Spec:
    """A row per arm: the mean with its interval, a thin ring per seed below it, the margin behind all."""
    ends = [row[key] for row in rows for key in ("mean", "low", "high")] + [seed["value"] for seed in seeds]
    x = number("mean", span([*ends, 0.0, *([margin, -margin] if margin else [])]), unit)
    y = name("arm")
    code = coded("arm", styles)
    colour = code["color"]
    ring = {"size": 34, "strokeWidth": 1.1, "yOffset": 11, "opacity": 0.85, "filled": False}
    rule = {"strokeWidth": 2.5, "yOffset": -4, "y2Offset": -4}
    dot = {"size": 110, "filled": True, "opacity": 1, "yOffset": -4}
    layers = [
        band("x", margin) if margin else None,
        line_at("x", 0),
        layer("point", ring, seeds, x={**x, "field": "value"}, y=y, color=colour, description="said"),
        layer("rule", rule, x={**x, "field": "low"}, x2="high", y=y, color=colour),
        layer("point", dot, x=x, y=y, description="said", **code),
    ]
    return chart(width, 48 + (50 if len(rows) <= MANY else 28) * len(rows), layers, rows)


def slopes(
    rows: list[Spec], arm: str, baseline: str, styles: Styles, *, domain: list[float], unit: str
) -> Spec:
    """One line per seed from the baseline to the arm: parallel lines mean that pairing by seed paid."""
    x = {**name("arm", labelAngle=0), "scale": {"domain": [baseline, arm], "padding": 0.35}}
    y, (colour, shape) = number("value", domain, unit), styles[arm]
    dot = {"size": 30, "filled": True, "opacity": 1, "color": colour, "shape": shape}
    layers: list[Spec | None] = [
        layer("line", {"strokeWidth": 1.2, "opacity": 0.8, "color": colour}, x=x, y=y, detail="seed"),
        layer("point", dot, x=x, y=y, description="said"),
    ]
    return chart(240, 250, layers, rows)


def tradeoff(
    rows: list[Spec],
    front: list[Spec],
    styles: Styles,
    *,
    x_title: str,
    y_title: str,
    lower_x: bool,
    named: Collection[str],
) -> Spec:
    """An interval cross per arm, with its name where it is `named`; the dashed steps join the arms that no
    other beats on both sides.
    """
    x = number(
        "x",
        span([row[key] for row in rows for key in ("x", "x_low", "x_high")], 0.18),
        x_title,
        tickCount=4,
        format="~s" if max(abs(row["x"]) for row in rows) >= THOUSANDS else ",.6~g",
    )
    ys = span([row[key] for row in rows for key in ("y", "y_low", "y_high")], 0.18)
    code = coded("arm", styles)
    rows = _told_apart(rows, x["scale"]["domain"], ys, named)
    y = number("y", [ys[0], max([ys[1], *(row["top"] for row in rows)])], y_title)
    steps = {
        "interpolate": "step-after" if lower_x else "step-before",
        "strokeDash": [4, 3],
        "strokeWidth": 1,
    }
    bar = {"strokeWidth": 2}
    dot = {"size": 90, "filled": True, "opacity": 1}
    layers: list[Spec | None] = [
        layer("line", {**steps, "color": MUTED}, front, x=x, y=y),
        layer("rule", bar, x={**x, "field": "x_low"}, x2="x_high", y=y, color=code["color"]),
        layer("rule", bar, x=x, y={**y, "field": "y_low"}, y2="y_high", color=code["color"]),
        layer("point", dot, x=x, y=y, description="said", **code),
        layer("text", {"dy": -11, "dx": 6, "align": "left"}, x=x, y={**y, "field": "tag"}, text="label"),
    ]
    return chart(276, 240, layers, rows)


def _told_apart(rows: list[Spec], xs: list[float], ys: list[float], named: Collection[str]) -> list[Spec]:
    """Rows with their `label`, its height, `tag`, and where that ends, `top`: where points crowd, labels are
    stacked. What stood beyond the axis would take its room from the plot.
    """
    line = 0.06 * (ys[1] - ys[0])
    near = 0.2 * (xs[1] - xs[0])
    out: list[Spec] = []
    for row in sorted(rows, key=lambda row: row["y"]):
        label = row["arm"] if row["arm"] in named else ""
        below = [other["tag"] for other in out if other["label"] and abs(other["x"] - row["x"]) < near]
        tag = max([row["y"], *(tag + line for tag in below if label)])
        out.append({**row, "label": label, "tag": tag, "top": tag + 2 * line if label else row["y"]})
    return out


def budget(cells: list[Spec]) -> Spec:
    """The budget table as marks and text: a row per resource, a column per arm."""
    looks = {
        "equal": (GREEN, "circle"),
        "differs, held": (VERMILION, "cross"),
        "differs": (GREY, "diamond"),
        "unknown": (GREY, "square"),
    }
    legend = {"title": None, "orient": "bottom"}
    code = {channel: {**encoding, "legend": legend} for channel, encoding in coded("mark", looks).items()}
    x = name("arm", orient="top", labelAngle=0, labelFontWeight="bold")
    y = name("row", labelLimit=260)
    arms, rows = (len({cell[key] for cell in cells}) for key in ("arm", "row"))
    layers = [
        layer("point", {"filled": True, "size": 60, "xOffset": -42, "opacity": 1}, x=x, y=y, **code),
        layer("text", {"align": "left", "xOffset": -32}, x=x, y=y, text="text"),
    ]
    return {"width": 110 * arms, "height": 22 * rows, "layer": layers, "data": {"values": cells}}
