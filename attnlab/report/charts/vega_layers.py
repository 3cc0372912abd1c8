"""Building blocks of all charts: colors, shapes, domains, axes and layers of Vega-Lite.

Every mark has a shape and a text for screen readers beside its color. Domains are computed here and not by
Vega, so that charts side by side can share them.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.report.charts.svg import BAND, INK, MUTED
from attnlab.report.tables.arm_columns import MANY_ARMS

Spec = dict[str, Any]
Styles = Mapping[str, tuple[str, str]]  # arm -> color, shape

LETTER_WIDTH = 6.2  # pixels of a label's average letter
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
GRAY = "#7A828C"
OLIVE = "#8A7A00"
TEAL = "#008A94"
COLORS = [BLUE, VERMILION, GREEN, PURPLE, OLIVE, TEAL]
SHAPES = ["square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
VERDICT_STYLES = {
    "SUPPORTED": (GREEN, "circle"),
    "REFUTED": (VERMILION, "cross"),
    "INCONCLUSIVE": (BLUE, "diamond"),
    "NOT COMPARABLE": (GRAY, "square"),
    "UNTRAINED": (GRAY, "square"),
    "DEMONSTRATION": (GRAY, "square"),
    "NO RESULT": (GRAY, "square"),
}


def assign_styles(arms: list[str], baseline: str) -> dict[str, tuple[str, str]]:
    """Color and shape of each arm: a gray circle for the baseline, and unique pairs for up to 42 others."""
    others = [arm for arm in arms if arm != baseline]
    styles = {arm: (COLORS[i % len(COLORS)], SHAPES[i % len(SHAPES)]) for i, arm in enumerate(others)}
    return {arm: styles.get(arm, (GRAY, "circle")) for arm in arms}


def compute_domain(values: list[float | None], pad: float = 0.08) -> list[float]:
    """A padded domain that contains every number; never of zero width."""
    numbers = [v for v in values if v is not None]
    if not numbers:
        return [0.0, 1.0]
    low = min(numbers)
    high = max(numbers)
    padding = (high - low) * pad or abs(high) * 0.05 or 1.0
    return [low - padding, high + padding]


def place_text(text: str, at: float, domain: list[float], width: int) -> float:
    """The value at which to center a text above `at`, so that it ends within an axis of `width` pixels."""
    half = LETTER_WIDTH * len(text) / 2 * (domain[1] - domain[0]) / max(1, width)
    return min(max(at, domain[0] + half), domain[1] - half)


def count_ticks(width: int) -> int:
    """Ticks of a horizontal axis whose labels, as in −0.02, have room in a chart of this width."""
    return min(6, width // 80)


def build_quantitative_channel(
    field: str, domain: list[float], title: str | None = None, **axis: Any
) -> Spec:
    """A quantitative channel on a fixed domain."""
    scale = {"domain": domain, "nice": False, "zero": False}
    axis = {"title": title, "tickCount": 6, "labelOverlap": "greedy", "labelSeparation": 4, **axis}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def build_nominal_channel(field: str, **axis: Any) -> Spec:
    """A nominal channel in the order of the data, labeled in ink."""
    axis = {"title": None, "ticks": False, "domain": False, "labelColor": INK, "labelFontSize": 12, **axis}
    return {"field": field, "type": "nominal", "sort": None, "axis": axis}


def build_style_channels(field: str, styles: Styles) -> dict[str, Spec]:
    """Color and shape of a field, as channels."""
    channels = {}
    for i, channel in enumerate(("color", "shape")):
        scale = {"domain": list(styles), "range": [style[i] for style in styles.values()]}
        channels[channel] = {"field": field, "type": "nominal", "scale": scale, "legend": None}
    return channels


def build_layer(kind: str, options: Spec, data: list[Spec] | None = None, /, **channels: Any) -> Spec:
    """One mark, hidden from screen readers unless it has a description channel.

    Among many arms the mark carries its arm as a description; `svg` writes it where a script finds it.
    """
    aria: Spec = {} if "description" in channels else {"aria": False}
    color = channels.get("color")
    if (
        aria
        and isinstance(color, dict)
        and color["field"] == "arm"
        and len(color["scale"]["domain"]) > MANY_ARMS
    ):
        aria = {"ariaRoleDescription": "arm"}
        channels = {**channels, "description": "arm"}
    encoding = {key: {"field": value} if isinstance(value, str) else value for key, value in channels.items()}
    spec: Spec = {"mark": {"type": kind, **aria, **options}, "encoding": encoding}
    return spec if data is None else {"data": {"values": data}, **spec}


def build_seed_layer(seeds: list[Spec], *, x: Spec, y: Spec, color: Spec) -> Spec | None:
    """A thin ring per seed; None without seeds."""
    ring = {"size": 34, "strokeWidth": 1.1, "opacity": 0.85, "filled": False}
    y = {**y, "field": "value"}
    return (
        build_layer("point", ring, seeds, x=x, y=y, color=color, description="description") if seeds else None
    )


def build_reference_line(channel: str, value: float, **options: Any) -> Spec:
    """A dashed line across the chart."""
    style = {"color": MUTED, "strokeDash": [3, 3], **options}
    return build_layer("rule", style, **{channel: {"datum": value}})


def build_margin_band(channel: str, margin: float) -> Spec:
    """The margin on both sides of 0, shaded."""
    return build_layer(
        "rect", {"color": BAND}, **{channel: {"datum": -margin}, f"{channel}2": {"datum": margin}}
    )


def build_chart(
    width: int, height: int, layers: list[Spec | None], data: list[Spec], **properties: Any
) -> Spec:
    """Layers over the same data, in a picture of exactly this size."""
    autosize = {"type": "fit", "contains": "padding"}
    present_layers = [spec for spec in layers if spec is not None]
    return {
        "width": width,
        "height": height,
        "autosize": autosize,
        "layer": present_layers,
        "data": {"values": data},
        **properties,
    }
