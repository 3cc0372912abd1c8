"""Charts along an axis: learning curves, loss by length or distance, head scores by layer."""

from attnlab.report.charts.marks import Spec, Styles, band, chart, coded, layer, line_at, number, span
from attnlab.report.charts.svg import INK


def curves(
    lines: list[Spec], means: list[Spec], styles: Styles, *, y_title: str, zero: bool, margin: float | None
) -> Spec:
    """Every seed as a thin line, the mean as a thick one, over training tokens. Nothing is smoothed."""
    inside = [p["value"] for p in lines] + [0.0] * zero + ([margin, -margin] if margin else [])
    end = max((p["tokens"] for p in lines), default=1.0)
    x = number("tokens", [0.0, end], "training tokens", format="~s", tickCount=5, grid=False)
    y = number("value", span(inside, 0.05), y_title)
    code = coded("arm", styles)
    thin = {"clip": True, "strokeWidth": 0.8, "opacity": 0.5}
    thick = {"clip": True, "strokeWidth": 2.4}
    dot = {"filled": True, "size": 70, "opacity": 1}
    layers = [
        band("y", margin) if margin else None,
        line_at("y", 0, color=INK) if zero else None,
        layer("line", thin, x=x, y=y, color=code["color"], detail="seed"),
        layer("line", thick, means, x=x, y=y, color=code["color"]),
        layer("point", dot, last_of_each(means), x=x, y=y, description="said", **code),
    ]
    return chart(376, 280, layers, lines)


def last_of_each(rows: list[Spec]) -> list[Spec]:
    """The last row of each arm: where its line ends."""
    return list({row["arm"]: row for row in rows}.values())


def positions(means: list[Spec], styles: Styles, *, y_title: str) -> Spec:
    """The mean of each arm at every position of the context."""
    x = number("position", span([p["position"] for p in means], 0.02), "position in the context", grid=False)
    y = number("value", span([p["value"] for p in means], 0.05), y_title)
    code = coded("arm", styles)
    dot = {"filled": True, "size": 60, "opacity": 1}
    layers: list[Spec | None] = [
        layer("line", {"strokeWidth": 1.8}, x=x, y=y, color=code["color"]),
        layer("point", dot, last_of_each(means), x=x, y=y, description="said", **code),
    ]
    return chart(376, 280, layers, means)


def by_condition(points: list[Spec], styles: Styles, *, title: str, x_title: str) -> Spec:
    """A line per arm over a numbered condition (a multiple of the length, a distance), with its intervals."""
    at = sorted({p["x"] for p in points})
    x = number("x", [at[0] * 0.93, at[-1] * 1.08], x_title, values=at, format="~g", grid=False)
    x["scale"]["type"] = "log"
    y = number("mean", span([p[key] for p in points for key in ("mean", "low", "high")]))
    code = coded("arm", styles)
    layers: list[Spec | None] = [
        layer("line", {"strokeWidth": 1.6}, x=x, y=y, color=code["color"]),
        layer("rule", {"strokeWidth": 1.6}, x=x, y={**y, "field": "low"}, y2="high", color=code["color"]),
        layer("point", {"filled": True, "size": 60, "opacity": 1}, x=x, y=y, description="said", **code),
    ]
    return chart(376, 280, layers, points, title=title)


def strip(points: list[Spec], chance: list[float], styles: Styles, *, title: str, summary: bool) -> Spec:
    """Head scores by layer: a mark per head, arms side by side, the chance level of each text dashed.

    In a summary a point is the median, a thick line the quartiles, a thin one the range.
    """
    keys = ("low", "high") if summary else ("value",)
    y = number("value", span([*(p[key] for p in points for key in keys), 0.0, *chance], 0.06))
    present = {arm: look for arm, look in styles.items() if any(p["arm"] == arm for p in points)}
    code = coded("arm", present)
    side = {"field": "arm", "type": "nominal", "sort": list(present)}
    x = {"field": "layer", "type": "ordinal", "axis": {"title": "layer", "labelAngle": 0}}
    at = {"x": x, "xOffset": side, "color": code["color"]}
    dot = {"size": 26, "strokeWidth": 1.1, "opacity": 0.75, "filled": summary}
    layers = [
        layer("rule", {"strokeWidth": 1}, **at, y={**y, "field": "low"}, y2="high") if summary else None,
        layer("rule", {"strokeWidth": 4}, **at, y={**y, "field": "q1"}, y2="q3") if summary else None,
        layer("point", dot, **at, y=y, shape=code["shape"]),
        *(line_at("y", level, color=INK, strokeDash=[4, 3]) for level in chance),
    ]
    columns = len(present) * len({p["layer"] for p in points})
    return chart(276 if columns <= 28 else 576, 180, layers, points, title=title)
