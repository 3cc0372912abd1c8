"""The page of `python -m attnlab cost`: bytes and time by length, and the costs of layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attnlab.inference_cost.count_format import format_amount, format_byte_count
from attnlab.inference_cost.devices import DEVICES
from attnlab.inference_cost.layer_costs import ModelCost
from attnlab.inference_cost.serving_cost import Costs, Serving, ServingCost, compute_serving_cost
from attnlab.report import section
from attnlab.report.charts.series_figures import select_last_rows
from attnlab.report.charts.vega_layers import (
    Spec,
    Styles,
    assign_styles,
    build_chart,
    build_layer,
    build_quantitative_channel,
    build_style_channels,
)
from attnlab.report.pages.html import render_page
from attnlab.report.pages.report_files import write_atomically
from attnlab.report.section import Cell, Chart, Column, Page, Section, Table, Terms, Text, note

TITLE = "What serving costs · attnlab"  # of the page, by which an earlier one is recognized
N_LENGTHS = 9  # of the charts: the length, its half, ...
CHARTS: dict[
    str, tuple[str, str, Callable[[ServingCost], Any]]
] = {  # name -> title of the axis, caption, and the value of a cost
    "cache": (
        "cache of the batch, GiB",
        "Bytes of the cache, states included. A model whose state does not grow is a level line.",
        lambda cost: cost.cache_bytes / 2**30,
    ),
    "read": (
        "bytes read per step, GiB",
        "Bytes that a decoding step reads: the weights once, and the cache of every sequence.",
        lambda cost: cost.decode_bytes / 2**30,
    ),
    "time": (
        "shortest time of a step, ms",
        "Lower bound of the time of a decoding step: neither the bandwidth nor the arithmetic of the "
        "device is exceeded.",
        lambda cost: cost.minimum_ms,
    ),
}


COSTS: dict[str, tuple[str, Callable[[Any], str]]] = {  # key -> title of the column, and its text
    "window": ("window", "{:,}".format),
    "parameters": ("parameters", "{:,}".format),
    "cache_bytes_per_token": ("cache per token", "{:,} B".format),
    "state_bytes": ("state per sequence", format_byte_count),
    "cache_bytes": ("cache", format_byte_count),
    "decode_bytes": ("read per step", format_byte_count),
    "prefill_flops": ("prefill FLOPs", format_amount),
    "decode_flops": ("FLOPs per step", format_amount),
    "intensity": ("FLOPs per byte", "{:.3g}".format),
    "minimum_ms": ("shortest step", "{:.3g} ms".format),
    "largest_batch": ("largest batch", "{:,}".format),
}


def write_cost_page(path: Path, models: Mapping[str, ModelCost], serving: Serving) -> None:
    """Write the page of models, by their names; OSError if the file cannot be written."""
    write_atomically(path, render_page(build_cost_page(models, serving)).encode())


def build_cost_page(models: Mapping[str, ModelCost], serving: Serving) -> Page:
    """The page of models, by their names."""
    lengths = sorted({max(1, serving.length >> n) for n in range(N_LENGTHS)})
    costs_by_length = {
        name: [compute_serving_cost(model, replace(serving, length=length)) for length in lengths]
        for name, model in models.items()
    }
    costs = {name: row[-1] for name, row in costs_by_length.items()}
    baseline = next(iter(models))
    styles = assign_styles([*models], baseline)
    charts = [
        _build_chart(name, lengths, costs_by_length, styles)
        for name in CHARTS
        if name != "time" or serving.device is not None
    ]
    layers = [
        _build_table("layers", name, [(Cell(f"{row.count} {row.kind}"), row) for row in cost.layers])
        for name, cost in costs.items()
    ]
    by_model = [(section.arm(name), cost) for name, cost in costs.items()]
    models_table = _build_table("models", "The whole model, at this length and batch.", by_model)
    method = [
        (
            "counts",
            "Exact counts of the tensors that the config defines. Rows of layers are sums over all layers "
            "of a kind.",
        ),
        ("FLOPs", "Matrix products; a multiplication and an addition count as two."),
        ("read per step", "Weights that one token needs, once, and the cached tensors that it reads."),
    ]
    method += [("device", DEVICES[serving.device].source)] if serving.device else []
    return Page(
        "cost",
        TITLE,
        "What does serving cost?",
        f"{serving.batch:,} sequences of {serving.length:,} cached tokens, weights in {serving.dtype}, "
        f"cache in {serving.kv_dtype}{f', on {serving.device}' if serving.device else ''}.",
        [
            Section("models", "Models", [models_table, *_describe_models(costs, serving)]),
            Section("length", "By length", charts),
            Section("layers", "Layers", layers),
            Section("method", "Method", [Terms(method)]),
        ],
        meta=[Text("attnlab / cost")],
        styles=styles,
        baseline=baseline,
    )


def _build_table(name: str, caption: str, costs: Sequence[tuple[Cell, Costs]]) -> Table:
    """A row per model or kind of layer, a column per cost that any of them has."""
    known = {key: {getattr(cost, key, None) for _, cost in costs} for key in COSTS}
    keys = [key for key in COSTS if known[key] - ({None, 0} if key == "state_bytes" else {None})]
    rows = [[label, *(_render_cost(key, getattr(cost, key, None)) for key in keys)] for label, cost in costs]
    return Table(name, caption, [Column(name), *(Column(COSTS[key][0], key) for key in keys)], rows)


def _render_cost(key: str, value: float | None) -> Cell:
    return section.EMPTY if value is None else Cell(COSTS[key][1](value), value, kind="number")


def _describe_models(costs: Mapping[str, ServingCost], serving: Serving) -> list[Text]:
    """Models whose real costs differ from those in the table."""
    texts = []
    for name, cost in costs.items():
        if cost.quantization:
            weights = f"the checkpoint's {cost.quantization} weights are counted in {serving.dtype}"
            texts.append(note(f"{name}: {weights}. They need less memory and time."))
        if cost.transformers_repeats > 1:
            times = f"{cost.transformers_repeats} times these bytes"
            texts.append(note(f"{name}: transformers caches keys and values once per query head, {times}."))
    return texts


def _build_chart(
    name: str, lengths: list[int], costs: Mapping[str, list[ServingCost]], styles: Styles
) -> Chart:
    """A line per model over the length."""
    title, caption, get_value = CHARTS[name]
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
    ends = "; ".join(point["description"] for point in select_last_rows(points))
    draw = partial(_build_length_spec, points, lengths, title, styles)
    return Chart(name, f"{title}. {ends}", draw, caption)


def _build_length_spec(
    points: list[Spec], lengths: list[int], title: str, styles: Styles, *, width: int
) -> Spec:
    """Lines on logarithmic axes."""
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
    return build_chart(width, 260, layers, points)


def _pad(values: Sequence[float]) -> list[float]:
    return [min(values, default=1) / 1.1, max(values, default=1) * 1.1]
