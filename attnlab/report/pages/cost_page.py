"""The page of `python -m attnlab cost`: bytes and time by length, and the costs of layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnlab.inference_cost.count_format import format_amount, format_byte_count
from attnlab.inference_cost.devices import DEVICES
from attnlab.inference_cost.layer_costs import ModelCost
from attnlab.inference_cost.serving_cost import Serving, ServingCost, compute_serving_cost
from attnlab.report.charts.comparison_figures import Figure
from attnlab.report.charts.series_charts import select_last_rows
from attnlab.report.charts.vega_layers import (
    Spec,
    assign_styles,
    build_chart,
    build_layer,
    build_quantitative_channel,
    build_style_channels,
)
from attnlab.report.pages.html import FIGURE_WIDTHS, render_figure_page
from attnlab.report.pages.report_files import write_atomically

TITLE = "What serving costs · attnlab"  # of the page, by which an earlier one is recognized
N_LENGTHS = 9  # of the charts: the length, its half, ...
CHARTS: dict[
    str, tuple[str, Callable[[ServingCost], Any]]
] = {  # name -> title of the axis, and the value of a cost
    "cache": ("cache of the batch, GiB", lambda cost: cost.cache_bytes / 2**30),
    "read": ("bytes read per step, GiB", lambda cost: cost.decode_bytes / 2**30),
    "time": ("shortest time of a step, ms", lambda cost: cost.minimum_ms),
}


def write_cost_page(path: Path, models: Mapping[str, ModelCost], serving: Serving) -> None:
    """Write the page of models, by their names; OSError if the file cannot be written."""
    lengths = sorted({max(1, serving.length >> n) for n in range(N_LENGTHS)})
    costs = {
        name: [compute_serving_cost(model, replace(serving, length=length)) for length in lengths]
        for name, model in models.items()
    }
    styles = assign_styles([*models], next(iter(models)))
    names = [name for name in CHARTS if name != "time" or serving.device is not None]
    page = render_figure_page(
        "cost.html",
        [_build_figure(name, suffix, lengths, costs, styles) for suffix in FIGURE_WIDTHS for name in names],
        page_title=TITLE,
        serving=serving,
        costs={name: row[-1] for name, row in costs.items()},
        styles=styles,
        has_state=any(row[-1].state_bytes for row in costs.values()),
        source=None if serving.device is None else DEVICES[serving.device].source,
        amount=format_amount,
        bytes=format_byte_count,
    )
    write_atomically(path, page.encode())


def _build_figure(
    name: str,
    suffix: str,
    lengths: list[int],
    costs: Mapping[str, list[ServingCost]],
    styles: dict[str, tuple[str, str]],
) -> Figure:
    """A line per model over the length, both on logarithmic axes."""
    title, get_value = CHARTS[name]
    points: list[Spec] = [
        {
            "arm": model,
            "length": length,
            "value": get_value(cost),
            "description": f"{model}: {get_value(cost):.4g} at {length:,} tokens",
        }
        for model, row in costs.items()
        for length, cost in zip(lengths, row, strict=True)
        if get_value(cost) > 0
    ]
    x = build_quantitative_channel(
        "length", _pad(lengths), "cached tokens", values=lengths, format=",d", grid=False
    )
    y = build_quantitative_channel(
        "value", _pad([point["value"] for point in points]), title, format="~g", tickCount=4
    )
    x["scale"]["type"] = y["scale"]["type"] = "log"
    code = build_style_channels("arm", styles)
    dot = {"filled": True, "size": 60, "opacity": 1}
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.8}, x=x, y=y, color=code["color"]),
        build_layer("point", dot, x=x, y=y, description="description", **code),
    ]
    ends = "; ".join(point["description"] for point in select_last_rows(points))
    return Figure(
        f"{name}{suffix}", build_chart(FIGURE_WIDTHS[suffix], 260, layers, points), f"{title}. {ends}"
    )


def _pad(values: Sequence[float]) -> list[float]:
    return [min(values, default=1) / 1.1, max(values, default=1) * 1.1]
