"""The report's charts as Vega-Lite specs: plain functions from rows of report.json to a spec.

Every mark carries a shape and a spoken description beside its colour. Domains are computed here and not left to
Vega, so that charts that stand side by side share them.
"""

from typing import Any

from attnlab.report.svg import BAND, INK, MUTED, PAPER

Spec = dict[str, Any]
BLUE, VERMILION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A828C"
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
WORDS = {  # shape and colour of a verdict
    "SUPPORTED": ("circle", GREEN), "REFUTED": ("cross", VERMILION), "INCONCLUSIVE": ("diamond", BLUE),
    "NOT COMPARABLE": ("square", GREY), "NO RESULT": ("square", GREY),
}  # fmt: skip


def style(arms: list[str], baseline: str) -> dict[str, tuple[str, str]]:
    """Colour and shape of each arm: grey for the baseline, and no two arms alike up to 28 of them."""
    others = [arm for arm in arms if arm != baseline]
    colours = [BLUE, VERMILION, GREEN, PURPLE]
    given = {arm: (colours[i % 4], SHAPES[1 + i % 6]) for i, arm in enumerate(others)}
    return {arm: given.get(arm, (GREY, "circle")) for arm in arms}


def span(values: list[float | None], pad: float = 0.08) -> list[float]:
    """A domain that holds every number given, with a little air; never of zero width."""
    known = [v for v in values if v is not None]
    if not known:
        return [0.0, 1.0]
    low, high = min(known), max(known)
    air = (high - low) * pad or abs(high) * 0.05 or 1.0
    return [low - air, high + air]


def _x(field: str, domain: list[float], title: str | None, **axis: Any) -> Spec:
    axis = {"title": title, "tickCount": 6, "labelOverlap": "greedy", **axis}
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"domain": domain, "nice": False, "zero": False},
        "axis": axis,
    }


def _scale(field: str, table: dict[str, Any]) -> Spec:
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(table), "range": list(table.values())},
        "legend": None,
    }


def _layers(width: int, height: int, layers: list[Spec], **more: Any) -> Spec:
    fit = {"type": "fit", "contains": "padding"}
    return {"width": width, "height": height, "autosize": fit, "layer": layers, **more}


def intervals(rows: list[Spec], *, unit: str, width: int, centre: float = 0.0) -> Spec:
    """One row per claim: the interval that decided it, over the shaded region in which the claim holds.

    A row has: label, mean, low, high (None where one-sided), from, to (the region; None is unbounded), word, text, said.
    """
    ends = [row[key] for row in rows for key in ("mean", "low", "high", "from", "to")]
    domain = span([*ends, centre], pad=0.12)
    letter = (domain[1] - domain[0]) / max(1, width - 120) * 6.2  # an average one, as a share of the axis
    drawn = [
        {
            **row,
            "t": min(max(row["mean"], domain[0] + half), domain[1] - half),
            "a": domain[0] if row["low"] is None else row["low"],
            "b": domain[1] if row["high"] is None else row["high"],
            "c": domain[0] if row["from"] is None else row["from"],
            "e": domain[1] if row["to"] is None else row["to"],
        }
        for row in rows
        for half in (letter * len(row["text"]) / 2,)
    ]
    y = {"field": "label", "type": "nominal", "sort": None, "axis": {"title": None, "ticks": False, "domain": False,
         "labelColor": INK, "labelFontSize": 12, "labelLimit": 150}}  # fmt: skip
    x = _x("a", domain, unit, grid=False)
    shape = _scale("word", {word: shape for word, (shape, _) in WORDS.items()})
    colour = _scale("word", {word: colour for word, (_, colour) in WORDS.items()})
    size = {"bandPosition": 0.5}
    layers = [
        {"mark": {"type": "bar", "color": BAND, "height": {"band": 0.86}, "aria": False},
         "encoding": {"x": {**x, "field": "c"}, "x2": {"field": "e"}, "y": y}},
        {"mark": {"type": "rule", "color": MUTED, "strokeDash": [3, 3], "aria": False},
         "encoding": {"x": {"datum": centre}}},
        {"mark": {"type": "rule", "strokeWidth": 3, "aria": False},
         "encoding": {"x": x, "x2": {"field": "b"}, "y": {**y, **size}, "color": colour}},
        {"mark": {"type": "point", "filled": True, "size": 130, "opacity": 1, "stroke": PAPER, "strokeWidth": 1},
         "encoding": {"x": {**x, "field": "mean"}, "y": y, "color": colour, "shape": shape, "description": {"field": "said"}}},
        {"mark": {"type": "text", "dy": -14, "color": INK, "aria": False},
         "encoding": {"x": {**x, "field": "t"}, "y": y, "text": {"field": "text"}}},
    ]  # fmt: skip
    return _layers(width, 48 + 52 * len(rows), layers, data={"values": drawn})


def forest(rows: list[Spec], points: list[Spec], styles: dict[str, tuple[str, str]], *, unit: str, margin: float | None,
           width: int) -> Spec:  # fmt: skip
    """A row per arm: a thin point per seed, the mean, its interval, and the margin band behind all of them."""
    ends = [row[key] for row in rows for key in ("mean", "low", "high")] + [p["value"] for p in points]
    domain = span([*ends, 0.0, *([margin, -margin] if margin else [])])
    colour = _scale("arm", {arm: c for arm, (c, _) in styles.items()})
    shape = _scale("arm", {arm: s for arm, (_, s) in styles.items()})
    y = {"field": "arm", "type": "nominal", "sort": None, "axis": {"title": None, "ticks": False, "domain": False,
         "labelColor": INK, "labelFontSize": 12}}  # fmt: skip
    x = _x("mean", domain, unit)
    layers: list[Spec] = [
        {"mark": {"type": "rule", "color": MUTED, "strokeDash": [3, 3], "aria": False}, "encoding": {"x": {"datum": 0}}},
        {"data": {"values": points},
         "mark": {"type": "point", "size": 34, "strokeWidth": 1.1, "yOffset": 11, "opacity": 0.85, "filled": False},
         "encoding": {"x": {**x, "field": "value"}, "y": y, "color": colour, "description": {"field": "said"}}},
        {"mark": {"type": "rule", "strokeWidth": 2.5, "yOffset": -4, "y2Offset": -4, "aria": False},
         "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour}},
        {"mark": {"type": "point", "size": 110, "filled": True, "opacity": 1, "yOffset": -4},
         "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "description": {"field": "said"}}},
    ]  # fmt: skip
    if margin:
        band = {"x": {"datum": -margin}, "x2": {"datum": margin}}
        layers.insert(0, {"mark": {"type": "rect", "color": BAND, "aria": False}, "encoding": band})
    return _layers(width, 48 + 50 * len(rows), layers, data={"values": rows})


def slopes(rows: list[Spec], arm: str, baseline: str, styles: dict[str, tuple[str, str]], *, domain: list[float],
           unit: str) -> Spec:  # fmt: skip
    """One line per seed from the baseline to the arm: parallel lines mean that pairing by seed paid."""
    x = {"field": "arm", "type": "nominal", "sort": None, "scale": {"domain": [baseline, arm], "padding": 0.35},
         "axis": {"title": None, "labelAngle": 0, "labelColor": INK, "labelFontSize": 12, "ticks": False}}  # fmt: skip
    y = {**_x("value", domain, unit)}
    colour, shape = styles[arm]
    layers = [
        {"mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.8, "color": colour, "aria": False},
         "encoding": {"x": x, "y": y, "detail": {"field": "seed"}}},
        {"mark": {"type": "point", "size": 30, "filled": True, "opacity": 1, "color": colour, "shape": shape},
         "encoding": {"x": x, "y": y, "description": {"field": "said"}}},
    ]  # fmt: skip
    return _layers(240, 250, layers, data={"values": rows})


def tradeoff(rows: list[Spec], front: list[Spec], styles: dict[str, tuple[str, str]], *, x_title: str, y_title: str,
             lower_x: bool) -> Spec:  # fmt: skip
    """An interval cross per arm; the dashed steps join the arms that no other beats on both sides."""
    xs = span([row[key] for row in rows for key in ("x", "x_low", "x_high")], pad=0.18)
    ys = span([row[key] for row in rows for key in ("y", "y_low", "y_high")], pad=0.18)
    colour = _scale("arm", {arm: c for arm, (c, _) in styles.items()})
    shape = _scale("arm", {arm: s for arm, (_, s) in styles.items()})
    x = _x("x", xs, x_title, tickCount=4, format="~s")
    y = _x("y", ys, y_title, tickCount=5)
    layers = [
        {"data": {"values": front},
         "mark": {"type": "line", "interpolate": "step-after" if lower_x else "step-before", "color": MUTED,
                  "strokeDash": [4, 3], "strokeWidth": 1, "aria": False},
         "encoding": {"x": x, "y": y}},
        {"mark": {"type": "rule", "strokeWidth": 2, "aria": False},
         "encoding": {"x": {**x, "field": "x_low"}, "x2": {"field": "x_high"}, "y": y, "color": colour}},
        {"mark": {"type": "rule", "strokeWidth": 2, "aria": False},
         "encoding": {"x": x, "y": {**y, "field": "y_low"}, "y2": {"field": "y_high"}, "color": colour}},
        {"mark": {"type": "point", "size": 90, "filled": True, "opacity": 1},
         "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "description": {"field": "said"}}},
        {"mark": {"type": "text", "dy": -11, "dx": 6, "align": "left", "aria": False},
         "encoding": {"x": x, "y": y, "text": {"field": "arm"}}},
    ]  # fmt: skip
    return _layers(330, 260, layers, data={"values": rows})


def curves(lines: list[Spec], means: list[Spec], styles: dict[str, tuple[str, str]], *, y_title: str, zero: bool,
           margin: float | None = None) -> Spec:  # fmt: skip
    """Every seed as a thin line, the mean as a thick one, over training tokens. Nothing is smoothed."""
    values = [p["value"] for p in lines]
    domain = span([*values, *([0.0] if zero else []), *([margin, -margin] if margin else [])], pad=0.05)
    colour = _scale("arm", {arm: c for arm, (c, _) in styles.items()})
    xs = [0.0, max([p["tokens"] for p in lines], default=1.0)]
    x = _x("tokens", xs, "training tokens", format="~s", tickCount=5, grid=False)
    y = _x("value", domain, y_title)
    line = {"type": "line", "clip": True, "aria": False}
    layers: list[Spec] = [
        {"mark": {**line, "strokeWidth": 0.8, "opacity": 0.5},
         "encoding": {"x": x, "y": y, "color": colour, "detail": {"field": "seed"}}},
        {"data": {"values": means}, "mark": {**line, "strokeWidth": 2.4},
         "encoding": {"x": x, "y": y, "color": colour}},
        {"data": {"values": last_of_each(means)}, "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
         "encoding": {"x": x, "y": y, "color": colour, "shape": _scale("arm", {a: s for a, (_, s) in styles.items()}),
                      "description": {"field": "said"}}},
    ]  # fmt: skip
    if zero:
        layers.insert(
            0,
            {
                "mark": {"type": "rule", "color": INK, "strokeDash": [3, 3], "aria": False},
                "encoding": {"y": {"datum": 0}},
            },
        )
    if margin:
        band = {"y": {"datum": -margin}, "y2": {"datum": margin}}
        layers.insert(0, {"mark": {"type": "rect", "color": BAND, "aria": False}, "encoding": band})
    return _layers(460, 300, layers, data={"values": lines})


def last_of_each(rows: list[Spec]) -> list[Spec]:
    """The last row of each arm: where its line ends."""
    return list({row["arm"]: row for row in rows}.values())


def strip(
    points: list[Spec], chance: float | None, styles: dict[str, tuple[str, str]], *, title: str, summary: bool
) -> Spec:
    """Head scores by layer: a mark per head, arms side by side, the chance level dashed."""
    domain = span(
        [p[key] for p in points for key in (("low", "high") if summary else ("value",))] + [0.0, chance],
        pad=0.06,
    )
    arms = [arm for arm in styles if any(p["arm"] == arm for p in points)]
    colour = _scale("arm", {arm: c for arm, (c, _) in styles.items()})
    shape = _scale("arm", {arm: s for arm, (_, s) in styles.items()})
    x = {"field": "layer", "type": "ordinal", "axis": {"title": "layer", "labelAngle": 0}}
    offset = {"field": "arm", "type": "nominal", "sort": arms}
    y = _x("value", domain, None)
    points_mark = {
        "type": "point",
        "size": 26,
        "strokeWidth": 1.1,
        "opacity": 0.75,
        "filled": summary,
        "aria": False,
    }
    layers: list[Spec] = [
        {
            "mark": points_mark,
            "encoding": {"x": x, "xOffset": offset, "y": y, "color": colour, "shape": shape},
        }
    ]
    if summary:
        rule = {"type": "rule", "aria": False}
        both = {"x": x, "xOffset": offset, "color": colour}
        layers += [
            {
                "mark": {**rule, "strokeWidth": 1},
                "encoding": {**both, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {**rule, "strokeWidth": 4},
                "encoding": {**both, "y": {**y, "field": "q1"}, "y2": {"field": "q3"}},
            },
        ]
    if chance is not None:
        line = {
            "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3], "aria": False},
            "encoding": {"y": {"datum": chance}},
        }
        layers.append(line)
    return _layers(310, 190, layers, data={"values": points}, title=title)


def by_condition(points: list[Spec], styles: dict[str, tuple[str, str]], *, title: str, x_title: str) -> Spec:
    """A line per arm over a numbered condition (a multiple of the length, a distance), with its intervals."""
    colour = _scale("arm", {arm: c for arm, (c, _) in styles.items()})
    shape = _scale("arm", {arm: s for arm, (_, s) in styles.items()})
    at = sorted({p["x"] for p in points})
    x = {"field": "x", "type": "quantitative", "scale": {"type": "log", "nice": False, "domain": [at[0] * 0.93, at[-1] * 1.08]},
         "axis": {"title": x_title, "values": at, "format": "~g", "grid": False, "labelOverlap": True}}  # fmt: skip
    y = _x("mean", span([p[key] for p in points for key in ("mean", "low", "high")]), None)
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 1.6, "aria": False}, "encoding": {"x": x, "y": y, "color": colour}},
        {"mark": {"type": "rule", "strokeWidth": 1.6, "aria": False},
         "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}},
        {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
         "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "description": {"field": "said"}}},
    ]  # fmt: skip
    return _layers(460, 280, layers, data={"values": points}, title=title)


def budget(cells: list[Spec]) -> Spec:
    """The budget table as marks and text: a row per resource, a column per arm."""
    shapes = {"equal": "circle", "differs, held": "cross", "differs": "diamond", "unknown": "square"}
    colours = {"equal": GREEN, "differs, held": VERMILION, "differs": GREY, "unknown": GREY}
    arms, rows = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("arm", "row"))
    x = {"field": "arm", "type": "nominal", "sort": None, "axis": {"orient": "top", "title": None, "labelAngle": 0,
         "labelColor": INK, "labelFontWeight": "bold", "ticks": False, "domain": False}}  # fmt: skip
    y = {"field": "row", "type": "nominal", "sort": None, "axis": {"title": None, "labelColor": INK, "ticks": False,
         "domain": False, "labelLimit": 260}}  # fmt: skip
    legend = {"title": None, "orient": "bottom", "symbolType": None}
    mark = {
        "field": "mark",
        "type": "nominal",
        "legend": {k: v for k, v in legend.items() if v or k == "title"},
    }
    layers = [
        {"mark": {"type": "point", "filled": True, "size": 60, "xOffset": -42, "opacity": 1},
         "encoding": {"x": x, "y": y,
                      "shape": {**mark, "scale": {"domain": list(shapes), "range": list(shapes.values())}},
                      "color": {**mark, "scale": {"domain": list(colours), "range": list(colours.values())}}}},
        {"mark": {"type": "text", "align": "left", "xOffset": -32},
         "encoding": {"x": x, "y": y, "text": {"field": "text"}}},
    ]  # fmt: skip
    return {"width": 110 * len(arms), "height": 22 * len(rows), "layer": layers, "data": {"values": cells}}
