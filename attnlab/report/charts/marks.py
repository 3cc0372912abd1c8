"""The vocabulary that all charts are made of: colours, shapes, domains, axes and layers of Vega-Lite.

Every mark carries a shape and a spoken description beside its colour. Domains are computed here and not left
to Vega, so that charts that stand side by side can share them.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.report.charts.svg import BAND, INK, MUTED
from attnlab.report.tables.ranking import MANY

Spec = dict[str, Any]
Styles = Mapping[str, tuple[str, str]]  # arm -> colour, shape

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
GREY = "#7A828C"
OLIVE = "#8A7A00"
TEAL = "#008A94"
COLOURS = [BLUE, VERMILION, GREEN, PURPLE, OLIVE, TEAL]
SHAPES = ["square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
VERDICTS = {
    "SUPPORTED": (GREEN, "circle"),
    "REFUTED": (VERMILION, "cross"),
    "INCONCLUSIVE": (BLUE, "diamond"),
    "NOT COMPARABLE": (GREY, "square"),
    "UNTRAINED": (GREY, "square"),
    "NO RESULT": (GREY, "square"),
}


def style(arms: list[str], baseline: str) -> dict[str, tuple[str, str]]:
    """Colour and shape of each arm: a grey circle for the baseline, and no two of 42 others alike."""
    others = [arm for arm in arms if arm != baseline]
    given = {arm: (COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)]) for i, arm in enumerate(others)}
    return {arm: given.get(arm, (GREY, "circle")) for arm in arms}


def span(values: list[float | None], pad: float = 0.08) -> list[float]:
    """A domain that holds every number given, with a little air; never of zero width."""
    known = [v for v in values if v is not None]
    if not known:
        return [0.0, 1.0]
    low = min(known)
    high = max(known)
    air = (high - low) * pad or abs(high) * 0.05 or 1.0
    return [low - air, high + air]


def number(field: str, domain: list[float], title: str | None = None, **axis: Any) -> Spec:
    """A quantitative channel on a fixed domain."""
    scale = {"domain": domain, "nice": False, "zero": False}
    axis = {"title": title, "tickCount": 6, "labelOverlap": "greedy", **axis}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def name(field: str, **axis: Any) -> Spec:
    """A nominal channel in the order of the data, labelled in ink."""
    axis = {"title": None, "ticks": False, "domain": False, "labelColor": INK, "labelFontSize": 12, **axis}
    return {"field": field, "type": "nominal", "sort": None, "axis": axis}


def coded(field: str, styles: Styles) -> dict[str, Spec]:
    """Colour and shape of a field, as channels."""
    channels = {}
    for i, channel in enumerate(("color", "shape")):
        scale = {"domain": list(styles), "range": [style[i] for style in styles.values()]}
        channels[channel] = {"field": field, "type": "nominal", "scale": scale, "legend": None}
    return channels


def layer(kind: str, options: Spec, data: list[Spec] | None = None, /, **channels: Any) -> Spec:
    """One mark. It is silent to screen readers unless it has a description channel; among many arms it
    carries its own, for `svg` to write where a script finds it.
    """
    silent: Spec = {} if "description" in channels else {"aria": False}
    colour = channels.get("color")
    if (
        silent
        and isinstance(colour, dict)
        and colour["field"] == "arm"
        and len(colour["scale"]["domain"]) > MANY
    ):
        silent = {"ariaRoleDescription": "arm"}
        channels = {**channels, "description": "arm"}
    encoding = {key: {"field": value} if isinstance(value, str) else value for key, value in channels.items()}
    spec: Spec = {"mark": {"type": kind, **silent, **options}, "encoding": encoding}
    return spec if data is None else {"data": {"values": data}, **spec}


def line_at(channel: str, value: float, **options: Any) -> Spec:
    """A dashed line across the chart."""
    look = {"color": MUTED, "strokeDash": [3, 3], **options}
    return layer("rule", look, **{channel: {"datum": value}})


def band(channel: str, margin: float) -> Spec:
    """The margin to both sides of zero, shaded."""
    return layer("rect", {"color": BAND}, **{channel: {"datum": -margin}, f"{channel}2": {"datum": margin}})


def chart(width: int, height: int, layers: list[Spec | None], data: list[Spec], **more: Any) -> Spec:
    """Layers over the same data, in a picture of exactly this size."""
    fit = {"type": "fit", "contains": "padding"}
    kept = [spec for spec in layers if spec is not None]
    return {
        "width": width,
        "height": height,
        "autosize": fit,
        "layer": kept,
        "data": {"values": data},
        **more,
    }
