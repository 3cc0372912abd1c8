"""Charts along an axis: learning curves, loss by length or distance, head scores by layer."""

from attnlab.report.charts.svg import INK
from attnlab.report.charts.vega_layers import (
    Spec,
    Styles,
    build_chart,
    build_layer,
    build_margin_band,
    build_quantitative_channel,
    build_reference_line,
    build_seed_layer,
    build_style_channels,
    compute_domain,
)


def build_curve_chart(
    lines: list[Spec],
    means: list[Spec],
    styles: Styles,
    *,
    y_title: str,
    has_zero_line: bool,
    margin: float | None,
) -> Spec:
    """Every seed as a thin line, the mean as a thick one, over training tokens. Nothing is smoothed."""
    y_values = [p["value"] for p in lines] + [0.0] * has_zero_line + ([margin, -margin] if margin else [])
    end = max((p["tokens"] for p in lines), default=1.0)
    x = build_quantitative_channel(
        "tokens", [0.0, end], "training tokens", format="~s", tickCount=5, grid=False
    )
    y = build_quantitative_channel("value", compute_domain(y_values, 0.05), y_title)
    code = build_style_channels("arm", styles)
    thin = {"clip": True, "strokeWidth": 0.8, "opacity": 0.5}
    thick = {"clip": True, "strokeWidth": 2.4}
    dot = {"filled": True, "size": 70, "opacity": 1}
    layers = [
        build_margin_band("y", margin) if margin else None,
        build_reference_line("y", 0, color=INK) if has_zero_line else None,
        build_layer("line", thin, x=x, y=y, color=code["color"], detail="seed"),
        build_layer("line", thick, means, x=x, y=y, color=code["color"]),
        build_layer("point", dot, select_last_rows(means), x=x, y=y, description="description", **code),
    ]
    return build_chart(376, 280, layers, lines)


def select_last_rows(rows: list[Spec]) -> list[Spec]:
    """The last row of each arm: the end of its line."""
    return list({row["arm"]: row for row in rows}.values())


def build_position_chart(means: list[Spec], styles: Styles, *, y_title: str) -> Spec:
    """The mean of each arm at every position of the context."""
    x = build_quantitative_channel(
        "position",
        compute_domain([p["position"] for p in means], 0.02),
        "position in the context",
        grid=False,
    )
    y = build_quantitative_channel("value", compute_domain([p["value"] for p in means], 0.05), y_title)
    code = build_style_channels("arm", styles)
    dot = {"filled": True, "size": 60, "opacity": 1}
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.8}, x=x, y=y, color=code["color"]),
        build_layer("point", dot, select_last_rows(means), x=x, y=y, description="description", **code),
    ]
    return build_chart(376, 280, layers, means)


def build_condition_chart(
    points: list[Spec], seeds: list[Spec], styles: Styles, *, title: str, x_title: str
) -> Spec:
    """A line per arm over a numeric condition (a multiple of the length, a distance), with its intervals.

    `seeds` are drawn as rings.
    """
    x_values = sorted({p["x"] for p in points})
    x = build_quantitative_channel(
        "x", [x_values[0] * 0.93, x_values[-1] * 1.08], x_title, values=x_values, format="~g", grid=False
    )
    x["scale"]["type"] = "log"
    y = build_quantitative_channel(
        "mean",
        compute_domain(
            [
                *(p[key] for p in points for key in ("mean", "low", "high")),
                *(seed["value"] for seed in seeds),
            ]
        ),
    )
    code = build_style_channels("arm", styles)
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.6}, x=x, y=y, color=code["color"]),
        build_layer(
            "rule", {"strokeWidth": 1.6}, x=x, y={**y, "field": "low"}, y2="high", color=code["color"]
        ),
        build_layer(
            "point", {"filled": True, "size": 60, "opacity": 1}, x=x, y=y, description="description", **code
        ),
        build_seed_layer(seeds, x=x, y=y, color=code["color"]),
    ]
    return build_chart(376, 280, layers, points, title=title)


def build_strip_chart(
    points: list[Spec], chance: list[float], styles: Styles, *, title: str, is_summary: bool
) -> Spec:
    """Head scores by layer: a mark per head, arms side by side, the chance level of each text dashed.

    In a summary a point is the median, a thick line the quartiles, a thin one the range.
    """
    keys = ("low", "high") if is_summary else ("value",)
    y = build_quantitative_channel(
        "value", compute_domain([*(p[key] for p in points for key in keys), 0.0, *chance], 0.06)
    )
    present = {arm: style for arm, style in styles.items() if any(p["arm"] == arm for p in points)}
    code = build_style_channels("arm", present)
    side = {"field": "arm", "type": "nominal", "sort": list(present)}
    x = {"field": "layer", "type": "ordinal", "axis": {"title": "layer", "labelAngle": 0}}
    channels = {"x": x, "xOffset": side, "color": code["color"]}
    dot = {"size": 26, "strokeWidth": 1.1, "opacity": 0.75, "filled": is_summary}
    layers = [
        build_layer("rule", {"strokeWidth": 1}, **channels, y={**y, "field": "low"}, y2="high")
        if is_summary
        else None,
        build_layer("rule", {"strokeWidth": 4}, **channels, y={**y, "field": "q1"}, y2="q3")
        if is_summary
        else None,
        build_layer("point", dot, **channels, y=y, shape=code["shape"]),
        *(build_reference_line("y", level, color=INK, strokeDash=[4, 3]) for level in chance),
    ]
    columns = len(present) * len({p["layer"] for p in points})
    return build_chart(276 if columns <= 28 else 576, 180, layers, points, title=title)
