"""Trade-off charts: the metric over a cost, with the arms that no other arm beats on both axes."""

from collections.abc import Collection
from functools import partial

from attnlab.report.charts.comparison_figures import build_seed_points, build_styles, describe_rows
from attnlab.report.charts.svg import MUTED
from attnlab.report.charts.vega_layers import (
    LETTER_WIDTH,
    Spec,
    Styles,
    build_chart,
    build_layer,
    build_quantitative_channel,
    build_seed_layer,
    build_style_channels,
    compute_domain,
)
from attnlab.report.number_format import append_unit, format_number
from attnlab.report.schema import Interval, Report, TradeoffPanel, TradeoffPoint
from attnlab.report.section import Chart
from attnlab.report.tables.arm_columns import MANY_ARMS

SIZE = (276, 240)
PLOT_SIZE = (210.0, 185.0)  # without the axes
LABEL_GAP, LABEL_LIFT, LABEL_HEIGHT = 6, 11, 12  # of a label beside and above its point
SI_FORMAT_THRESHOLD = 10_000  # from here on an axis has 10k; below, 0.16 and 2,048 read better

Box = tuple[float, float, float, float]  # left, right, bottom, top


def has_differing_costs(panel: TradeoffPanel) -> bool:
    """Whether arms differ in the cost of a panel; otherwise it has no chart."""
    return len({point.x for point in panel.points}) > 1


def build_tradeoff_charts(report: Report) -> list[Chart]:
    """A chart for every cost in which arms differ."""
    charts = list[Chart]()
    experiment = report.experiment
    primary = next((row for row in report.effects if row.primary), None)
    y_title = append_unit(experiment.metric, primary.unit if primary else "")
    for panel in report.tradeoff:
        if not has_differing_costs(panel):
            continue
        axis = append_unit(panel.label, panel.unit)
        points: list[Spec] = [
            {
                **dict(p),
                **_clip_result(p, is_proportion=bool(primary and primary.is_proportion)),
                "description": f"{p.arm}: {axis} {format_number(p.x)}, {experiment.metric} "
                f"{format_number(p.y, panel.digits)}",
            }
            for p in panel.points
        ]
        seeds = [
            seed
            for p in panel.points
            for seed in build_seed_points(report, p.arm, experiment.metric, p.x, digits=panel.digits)
        ]
        front = [*panel.pareto_front, experiment.baseline]
        better = "Lower" if panel.lower_is_better else "Higher"
        charts.append(
            Chart(
                f"trade{len(charts)}",
                f"{experiment.metric} against {axis}. {describe_rows(points)}",
                partial(
                    draw_tradeoff, panel, points, seeds, build_styles(report), y_title=y_title,
                    labeled_arms=front if len(points) > MANY_ARMS else experiment.arms,
                ),
                caption=f"{panel.label}: {panel.note}. {better} is better.",
                is_fixed=True,
            )
        )  # fmt: skip
    return charts


def _clip_result(point: TradeoffPoint, *, is_proportion: bool) -> dict[str, float | None]:
    """The interval of a result, that of a proportion in [0, 1]."""
    interval = Interval(low=point.y_low, high=point.y_high)
    interval = interval.clip((0.0, 1.0)) if is_proportion else interval
    return {"y_low": interval.low, "y_high": interval.high}


def draw_tradeoff(
    panel: TradeoffPanel,
    points: list[Spec],
    seeds: list[Spec],
    styles: Styles,
    *,
    y_title: str,
    labeled_arms: Collection[str],
) -> Spec:
    """An interval cross per arm, with the name of each of `labeled_arms`; `seeds` are drawn as rings.

    The dashed steps join the arms that no other arm beats on both axes.
    """
    front = sorted((p for p in points if p["arm"] in panel.pareto_front), key=lambda p: p["x"])
    x = build_quantitative_channel(
        "x",
        compute_domain([row[key] for row in points for key in ("x", "x_low", "x_high")], 0.18),
        append_unit(panel.label, panel.unit),
        tickCount=4,
        format="~s" if max(abs(row["x"]) for row in points) >= SI_FORMAT_THRESHOLD else ",.6~g",
    )
    y_values = [row[key] for row in points for key in ("y", "y_low", "y_high")]
    ys = compute_domain([*y_values, *(seed["value"] for seed in seeds)], 0.18)
    code = build_style_channels("arm", styles)
    rows, top = _place_labels(points, x["scale"]["domain"], ys, labeled_arms)
    y = build_quantitative_channel("y", [ys[0], top], y_title)
    steps = {
        "interpolate": "step-after" if panel.lower_is_better else "step-before",
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
    return build_chart(*SIZE, layers, rows)


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
