"""Charts that compare arms: verdict intervals, forest plot, paired slopes, trade-off, budget.

Plain functions from rows of report.json to a Vega-Lite spec. `description` in a row is the text for screen
readers.
"""

from collections.abc import Collection

from attnlab.report.charts.svg import BAND, INK, MUTED, PAPER
from attnlab.report.charts.vega_layers import (
    GRAY,
    GREEN,
    VERDICT_STYLES,
    VERMILION,
    Spec,
    Styles,
    build_chart,
    build_layer,
    build_margin_band,
    build_nominal_channel,
    build_quantitative_channel,
    build_reference_line,
    build_seed_layer,
    build_style_channels,
    compute_domain,
    count_ticks,
)
from attnlab.report.tables.arm_columns import MANY_ARMS

LETTER_WIDTH = 6.2  # pixels of a label's average letter
TRADEOFF_SIZE = (276, 240)
PLOT_SIZE = (210.0, 185.0)  # of a trade-off without its axes
LABEL_GAP, LABEL_LIFT, LABEL_HEIGHT = 6, 11, 12  # of a label beside and above its point
SI_FORMAT_THRESHOLD = 10_000  # from here on an axis has 10k; below, 0.16 and 2,048 read better

Box = tuple[float, float, float, float]  # left, right, bottom, top


def build_interval_chart(rows: list[Spec], *, unit: str, width: int, center: float = 0.0) -> Spec:
    """One row per claim: the interval that decided it, over the shaded region in which the claim holds.

    Args:
        rows: each with label, mean, low, high (the interval), from, to (the region), verdict, text,
            description. An end that is None is at the edge of the chart.
    """
    keys = ("mean", "low", "high", "from", "to")
    domain = compute_domain([*(row[key] for row in rows for key in keys), center], pad=0.12)
    low, high = domain
    chart_rows = []
    for row in rows:
        half = LETTER_WIDTH * len(row["text"]) / 2 * (high - low) / max(1, width - 120)
        text_x = min(max(row["mean"], low + half), high - half)
        ends = {"start": row["from"], "end": row["to"], "low": row["low"], "high": row["high"]}
        edges = {"start": low, "end": high, "low": low, "high": high}
        drawn_ends = {key: edges[key] if end is None else end for key, end in ends.items()}
        chart_rows.append({**row, "place": text_x, **drawn_ends})

    y = build_nominal_channel("label", labelLimit=150)
    x = build_quantitative_channel("mean", domain, unit, grid=False, tickCount=count_ticks(width))
    code = build_style_channels("verdict", VERDICT_STYLES)
    dot = {"filled": True, "size": 130, "opacity": 1, "stroke": PAPER, "strokeWidth": 1}
    region = {"color": BAND, "height": {"band": 0.86}}
    color = code["color"]
    layers: list[Spec | None] = [
        build_layer("bar", region, x={**x, "field": "start"}, x2="end", y=y),
        build_reference_line("x", center),
        build_layer("rule", {"strokeWidth": 3}, x={**x, "field": "low"}, x2="high", y=y, color=color),
        build_layer("point", dot, x=x, y=y, description="description", **code),
        build_layer("text", {"dy": -14, "color": INK}, x={**x, "field": "place"}, y=y, text="text"),
    ]
    return build_chart(width, 48 + 52 * len(rows), layers, chart_rows)


def build_forest_chart(
    rows: list[Spec], seeds: list[Spec], styles: Styles, *, unit: str, margin: float | None, width: int
) -> Spec:
    """A row per arm: the mean with its interval, a thin ring per seed below it, the margin behind all."""
    ends = [row[key] for row in rows for key in ("mean", "low", "high")] + [seed["value"] for seed in seeds]
    x = build_quantitative_channel(
        "mean",
        compute_domain([*ends, 0.0, *([margin, -margin] if margin else [])]),
        unit,
        tickCount=count_ticks(width),
    )
    y = build_nominal_channel("arm")
    code = build_style_channels("arm", styles)
    color = code["color"]
    ring = {"size": 34, "strokeWidth": 1.1, "yOffset": 11, "opacity": 0.85, "filled": False}
    rule = {"strokeWidth": 2.5, "yOffset": -4, "y2Offset": -4}
    dot = {"size": 110, "filled": True, "opacity": 1, "yOffset": -4}
    layers = [
        build_margin_band("x", margin) if margin else None,
        build_reference_line("x", 0),
        build_layer(
            "point", ring, seeds, x={**x, "field": "value"}, y=y, color=color, description="description"
        ),
        build_layer("rule", rule, x={**x, "field": "low"}, x2="high", y=y, color=color),
        build_layer("point", dot, x=x, y=y, description="description", **code),
    ]
    return build_chart(width, 48 + (50 if len(rows) <= MANY_ARMS else 28) * len(rows), layers, rows)


def build_slope_chart(
    rows: list[Spec], arm: str, baseline: str, styles: Styles, *, domain: list[float], unit: str
) -> Spec:
    """One line per seed from the baseline to the arm: parallel lines mean that pairing by seed helps."""
    x = {**build_nominal_channel("arm", labelAngle=0), "scale": {"domain": [baseline, arm], "padding": 0.35}}
    y, (color, shape) = build_quantitative_channel("value", domain, unit), styles[arm]
    dot = {"size": 30, "filled": True, "opacity": 1, "color": color, "shape": shape}
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.2, "opacity": 0.8, "color": color}, x=x, y=y, detail="seed"),
        build_layer("point", dot, x=x, y=y, description="description"),
    ]
    return build_chart(240, 250, layers, rows)


def build_tradeoff_chart(
    rows: list[Spec],
    front: list[Spec],
    seeds: list[Spec],
    styles: Styles,
    *,
    x_title: str,
    y_title: str,
    lower_x_is_better: bool,
    labeled_arms: Collection[str],
) -> Spec:
    """An interval cross per arm, with the name of each of `labeled_arms`; `seeds` are drawn as rings.

    The dashed steps join the arms that no other arm beats on both axes.
    """
    x = build_quantitative_channel(
        "x",
        compute_domain([row[key] for row in rows for key in ("x", "x_low", "x_high")], 0.18),
        x_title,
        tickCount=4,
        format="~s" if max(abs(row["x"]) for row in rows) >= SI_FORMAT_THRESHOLD else ",.6~g",
    )
    y_values = [row[key] for row in rows for key in ("y", "y_low", "y_high")]
    ys = compute_domain([*y_values, *(seed["value"] for seed in seeds)], 0.18)
    code = build_style_channels("arm", styles)
    rows, top = _place_labels(rows, x["scale"]["domain"], ys, labeled_arms)
    y = build_quantitative_channel("y", [ys[0], top], y_title)
    steps = {
        "interpolate": "step-after" if lower_x_is_better else "step-before",
        "strokeDash": [4, 3],
        "strokeWidth": 1,
    }
    bar = {"strokeWidth": 2}
    dot = {"size": 90, "filled": True, "opacity": 1}
    layers: list[Spec | None] = [
        build_layer("line", {**steps, "color": MUTED}, front, x=x, y=y),
        build_layer("rule", bar, x={**x, "field": "x_low"}, x2="x_high", y=y, color=code["color"]),
        build_layer("rule", bar, x=x, y={**y, "field": "y_low"}, y2="y_high", color=code["color"]),
        build_layer("point", dot, x=x, y=y, description="description", **code),
        build_layer(
            "text",
            {"dy": -LABEL_LIFT, "align": "left"},
            x={**x, "field": "start"},
            y={**y, "field": "tag"},
            text="label",
        ),
        build_seed_layer(seeds, x=x, y=y, color=code["color"]),
    ]
    return build_chart(*TRADEOFF_SIZE, layers, rows)


def _place_labels(
    rows: list[Spec], xs: list[float], ys: list[float], labeled_arms: Collection[str]
) -> tuple[list[Spec], float]:
    """Add to each row its `label`, where it starts in x, and its height `tag`; return the upper end of y.

    From the lowest point up, a label is raised until it covers no earlier label and no other point. A label
    beyond the axis would take its space from the plot.
    """
    width, height = PLOT_SIZE
    top = ys[1]
    for _ in range(8):  # raised labels need a larger scale, on which labels are closer
        unit = (top - ys[0]) / height
        points = [((row["x"] - xs[0]) / (xs[1] - xs[0]) * width, (row["y"] - ys[0]) / unit) for row in rows]
        boxes = list[Box]()
        placed = list[Spec]()
        for row, (x, y) in sorted(zip(rows, points, strict=True), key=lambda pair: pair[0]["y"]):
            label = row["arm"] if row["arm"] in labeled_arms else ""
            length = LETTER_WIDTH * len(label)
            start = max(0.0, min(x + LABEL_GAP, width - length))
            others = [(px - 5, px + 5, py - 5, py + 5) for px, py in points if (px, py) != (x, y)]
            tag = y
            while label and (
                hits := [
                    box
                    for box in (*boxes, *others)
                    if start < box[1]
                    and box[0] < start + length
                    and tag + LABEL_LIFT - LABEL_HEIGHT / 2 < box[3]
                    and box[2] < tag + LABEL_LIFT + LABEL_HEIGHT / 2
                ]
            ):
                tag = max(box[3] for box in hits) - LABEL_LIFT + LABEL_HEIGHT / 2 + 0.5
            if label:
                middle = tag + LABEL_LIFT
                sides = start - LABEL_GAP, start + length + LABEL_GAP
                boxes.append((*sides, middle - LABEL_HEIGHT / 2, middle + LABEL_HEIGHT / 2))
            placed.append(
                {
                    **row,
                    "label": label,
                    "tag": row["y"] if tag == y else ys[0] + tag * unit,
                    "start": xs[0] + start / width * (xs[1] - xs[0]),
                }
            )
        needed = max([ys[1], *(ys[0] + box[3] * unit for box in boxes)])
        if needed <= top:
            break
        top = needed
    return placed, top


def build_budget_chart(cells: list[Spec]) -> Spec:
    """The budget table as marks and text: a row per resource, a column per arm."""
    mark_styles = {
        "equal": (GREEN, "circle"),
        "differs, controlled": (VERMILION, "cross"),
        "unmatched by design": (GRAY, "triangle-up"),
        "differs": (GRAY, "diamond"),
        "unknown": (GRAY, "square"),
    }
    legend = {"title": None, "orient": "bottom"}
    code = {
        channel: {**encoding, "legend": legend}
        for channel, encoding in build_style_channels("mark", mark_styles).items()
    }
    x = build_nominal_channel("arm", orient="top", labelAngle=0, labelFontWeight="bold")
    y = build_nominal_channel("row", labelLimit=260)
    arms, rows = (len({cell[key] for cell in cells}) for key in ("arm", "row"))
    layers = [
        build_layer("point", {"filled": True, "size": 60, "xOffset": -42, "opacity": 1}, x=x, y=y, **code),
        build_layer("text", {"align": "left", "xOffset": -32}, x=x, y=y, text="text"),
    ]
    return {"width": 110 * arms, "height": 22 * rows, "layer": layers, "data": {"values": cells}}
