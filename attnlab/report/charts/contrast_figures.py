"""Figures of claim groups: a waterfall of a staircase, a 2 x 2 panel of an interaction, a ranked bar chart.

From report.json to named specs, each with the sentence that can replace it.
"""

from attnlab.report.charts import vega_layers
from attnlab.report.charts.comparison_charts import LETTER_WIDTH
from attnlab.report.charts.comparison_figures import Figure
from attnlab.report.charts.svg import INK
from attnlab.report.charts.vega_layers import Spec
from attnlab.report.number_format import MINUS, append_unit, format_number
from attnlab.report.schema import ClaimGroup, GroupEffect, Report
from attnlab.report.tables.claim_group_tables import describe_group, format_group_effect, rank_effects

ROW_HEIGHT = 56
FRAME = 56  # height of axis and title
EFFECT_STYLES = {
    "better": (vega_layers.GREEN, "circle"),
    "worse": (vega_layers.VERMILION, "cross"),
    "not distinguishable from 0": (vega_layers.GRAY, "diamond"),
    "lower": (vega_layers.BLUE, "triangle-down"),
    "higher": (vega_layers.PURPLE, "triangle-up"),
}


def build_contrast_figures(report: Report, width: int, suffix: str = "") -> dict[str, list[Figure]]:
    """The figure of each claim group that has an estimate, by its place, as in `contrasts1`."""
    builders = {
        "chain": _build_bars,
        "interaction": _build_interaction_panel,
        "leave_one_out": _build_bars,
    }
    figures = dict[str, list[Figure]]()
    for i, group in enumerate(report.claim_groups, 1):
        if any(effect.mean is not None for effect in group.effects):
            place = f"contrasts{i}{suffix}"
            figures[place] = [Figure(place, builders[group.kind](group, width), describe_group(group))]
    return figures


def _classify(group: ClaimGroup, effect: GroupEffect) -> str:
    if effect.low is None or effect.high is None or effect.low <= 0 <= effect.high:
        return "not distinguishable from 0"
    is_lower = effect.high < 0
    if group.direction is None:
        return "lower" if is_lower else "higher"
    return "better" if is_lower == (group.direction == "lower") else "worse"


def _build_rows(group: ClaimGroup) -> list[Spec]:
    """A row per effect, which starts at 0, or in a chain where the step before ends."""
    rows = list[Spec]()
    start = 0.0
    for i, effect in enumerate(rank_effects(group)):
        if effect.mean is None:
            continue
        is_step = group.kind == "chain" and i < len(group.effects) - 1
        begin = start if is_step else 0.0
        text = format_group_effect(group, effect)
        rows.append(
            {
                "label": effect.name,
                "begin": begin,
                "end": begin + effect.mean,
                "low": None if effect.low is None else begin + effect.low,
                "high": None if effect.high is None else begin + effect.high,
                "state": _classify(group, effect),
                "text": format_number(effect.mean, group.digits, sign=True),
                "description": f"{effect.name}: {text}",
            }
        )
        start = begin + effect.mean if is_step else start
    return rows


def _build_bars(group: ClaimGroup, width: int) -> Spec:
    """Horizontal bars with intervals; the number stands above the end of the bar."""
    rows = _build_rows(group)
    values = [row[key] for row in rows for key in ("begin", "end", "low", "high")]
    low, high = vega_layers.compute_domain([*values, 0.0], pad=0.12)
    for row in rows:
        half = LETTER_WIDTH * len(row["text"]) / 2 * (high - low) / max(1, width - 150)
        row["place"] = min(max(row["end"], low + half), high - half)
    x = vega_layers.build_quantitative_channel(
        "begin",
        [low, high],
        append_unit(f"{group.label} {MINUS} that of {group.arms[0]}", group.unit),
        tickCount=vega_layers.count_ticks(width),
    )
    y = vega_layers.build_nominal_channel("label", labelLimit=130 if width < 400 else 200)
    states = {state: EFFECT_STYLES[state] for state in EFFECT_STYLES if state in {r["state"] for r in rows}}
    code = vega_layers.build_style_channels("state", states)
    color = {**code["color"], "legend": {"title": None, "orient": "top"}}
    bar = {"opacity": 0.45, "height": {"band": 0.5}}
    layers: list[Spec | None] = [
        vega_layers.build_reference_line("x", 0),
        vega_layers.build_layer("bar", bar, x=x, x2="end", y=y, color=color),
        vega_layers.build_layer("rule", {"strokeWidth": 2}, x={**x, "field": "low"}, x2="high", y=y),
        vega_layers.build_layer(
            "tick",
            {"thickness": 3, "height": 22, "color": INK},
            x={**x, "field": "end"},
            y=y,
            description="description",
        ),
        vega_layers.build_layer(
            "text", {"dy": -19, "color": INK}, x={**x, "field": "place"}, y=y, text="text"
        ),
    ]
    return vega_layers.build_chart(width, FRAME + 26 + ROW_HEIGHT * len(rows), layers, rows)


def _build_interaction_panel(group: ClaimGroup, width: int) -> Spec:
    """Means of the four arms: parallel lines mean that the changes add up."""
    both, one, other, baseline = group.arms
    names = [f"without {one}", f"with {one}"]
    rows = [
        {
            "at": names[has_one],
            "line": f"with {other}" if has_other else f"without {other}",
            "value": group.means[arm],
            "text": format_number(group.means[arm], group.digits + 1),
            "description": f"{arm}: {format_number(group.means[arm], group.digits + 1)}",
        }
        for arm, has_one, has_other in (
            (baseline, False, False), (one, True, False), (other, False, True), (both, True, True),
        )
        if group.means[arm] is not None
    ]  # fmt: skip
    x = {
        **vega_layers.build_nominal_channel("at", labelAngle=0),
        "scale": {"domain": names, "padding": 0.35},
    }
    domain = vega_layers.compute_domain([*group.means.values()], pad=0.2)
    y = vega_layers.build_quantitative_channel("value", domain, append_unit(group.label, group.unit))
    styles = {
        f"without {other}": (vega_layers.GRAY, "circle"),
        f"with {other}": (vega_layers.BLUE, "square"),
    }
    code = vega_layers.build_style_channels("line", styles)
    legend = {"title": None, "orient": "top"}
    code = {channel: {**encoding, "legend": legend} for channel, encoding in code.items()}
    layers: list[Spec | None] = [
        vega_layers.build_layer("line", {"strokeWidth": 2}, x=x, y=y, color=code["color"]),
        vega_layers.build_layer(
            "point", {"filled": True, "size": 90, "opacity": 1}, x=x, y=y, description="description", **code
        ),
        vega_layers.build_layer("text", {"dy": -12, "color": INK}, x=x, y=y, text="text"),
    ]
    return vega_layers.build_chart(min(width, 420), 270, layers, rows)
