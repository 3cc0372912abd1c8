"""The attention explorer alone: one model, one text, as a page and as pictures. Never imports torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from attnlab.report.charts.vega_layers import assign_styles
from attnlab.report.pages.html import render_page
from attnlab.report.report_builder import build_run_row, summarize_experiment
from attnlab.report.schema import CurvesReport, HeadsReport
from attnlab.report.section import Page, Section, Text
from attnlab.report.sections import PageContext, curves_section, heads_section, maps_section
from attnlab.report.tables import map_archive
from attnlab.report.tables.head_scores import build_heads_section
from attnlab.report.verdicts.results import Run, SweepContext, SweepResults
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import RunResult

MAX_TITLE = 80  # characters of the text in a title
HEAD_PIXELS = 288  # of one head in the picture of a layer
Arrays = dict[str, np.ndarray]


def write_explorer(
    folder: Path,
    name: str,
    seed: int,
    text: str,
    arrays: Arrays,
    scores: dict[str, Any],
    kernels: dict[str, Any],
    layer: int | None = None,
    head: int | None = None,
) -> Path:
    """Write inspect.html and a PNG per layer, or of `layer` only; with `head`, of that head with its tokens.

    The page opens at the given layer and head; model and text are its title.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("layer*.png"):
        old.unlink()
    values = arrays["maps"][-1]
    visible = arrays["visible"]
    layers = map_archive.get_layers(arrays)
    for layer_number in layers if layer is None else [layer]:
        row = layers.index(layer_number)
        heads = range(values.shape[1]) if head is None else [head]
        tokens = [str(token) for token in arrays["tokens"]] if head is not None else []
        images = [
            draw_head(
                values[row, head_number], visible[row], tokens, f"layer {layer_number}, head {head_number}"
            )
            for head_number in heads
        ]
        suffix = "" if head is None else f"_head{head}"
        with replace_atomically(folder / f"layer{layer_number}{suffix}.png", sync=False) as temporary:
            _arrange_grid(images).save(temporary, "PNG", optimize=True)
    page = folder / "inspect.html"
    html = render_explorer(name, seed, arrays, scores, kernels, layer, head, text)
    with replace_atomically(page, sync=False) as temporary:
        temporary.write_text(html, "utf-8")
    return page


def render_explorer(
    name: str,
    seed: int,
    arrays: Mapping[str, Any],
    scores: dict[str, Any],
    kernels: dict[str, Any],
    layer: int | None = None,
    head: int | None = None,
    text: str | None = None,
) -> str:
    """Render the page of a model's heads. It opens at the given layer and head: by default at the first
    layer's mean.

    Args:
        arrays: as in the attention.npz of a run.
        scores: the head scores of a run's result.
        kernels: `max_abs_eager_fused` and `note` of a run's result.
        text: the text of the maps, for the title.
    """
    result = RunResult.model_construct(  # no metric: only its heads were measured
        id=name, status="done", seed=seed, config={}, head_scores=scores, kernels=kernels
    )
    experiment = Experiment(
        name=name, arms=[name], baseline=name, seeds=[seed], metric="", margin=0.0, margin_reason=""
    )
    sweep = SweepResults(SweepContext(experiment), [Run(name, seed, name, result, None, dict(arrays))])
    report = HeadsReport(
        experiment=summarize_experiment(sweep),
        runs=[build_run_row(run) for run in sweep.planned_runs],
        heads=build_heads_section(sweep),
    )
    first_layer = map_archive.get_layers(arrays)[0] if layer is None else layer
    start = {"arm": name, "seed": seed, "layer": first_layer, "head": head}
    title = f"Attention of {name}"
    if text:
        title += f" on “{text if len(text) <= MAX_TITLE else text[: MAX_TITLE - 2] + ' …'}”"
    shown = maps_section.build_maps(report, {(name, seed): arrays}, start)
    assert shown is not None
    return _render("inspect", title, report, [shown, heads_section.build(report, PageContext())])


def render_curves(report: CurvesReport) -> str:
    """Render the page of the learning curves of a report."""
    return _render("curves", report.experiment.name, report, [curves_section.build(report, PageContext())])


def _render(kind: str, title: str, report: HeadsReport, sections: list[Section]) -> str:
    experiment = report.experiment
    styles = assign_styles(experiment.arms, experiment.baseline)
    return render_page(
        Page(
            name=experiment.name,
            title=f"{title} · attnlab",
            heading=title,
            question="",
            sections=sections,
            meta=[Text(f"attnlab {kind}")],
            styles=styles,
            baseline=experiment.baseline,
        )
    )


def draw_head(weights: np.ndarray, visible: np.ndarray, tokens: list[str], title: str) -> Image.Image:
    """One head on white: query down, key across, the page's color scale, with its tokens where given."""
    size = len(weights)
    cell = max(1, (900 if tokens else HEAD_PIXELS) // size)
    cell, gap = (min(cell, 24), 90) if tokens and cell >= 9 else (cell, 4)
    side = size * cell
    font = ImageFont.load_default(min(14, max(9, cell)))
    canvas = Image.new("RGB", (gap + side + 8, gap + side + 28), "white")
    colors = np.where(visible[:, :, None], map_archive.build_cividis_palette(256)[weights], 255).astype(
        np.uint8
    )
    map_image = Image.frombytes("RGB", (size, size), colors.tobytes())
    canvas.paste(map_image.resize((side, side), Image.Resampling.NEAREST), (gap, gap + 20))
    pen = ImageDraw.Draw(canvas)
    is_hatched = ~visible & (
        cell >= map_archive.MIN_HATCHED_CELL
    )  # as a masked cell differs from a weight of 0
    for row, column in np.argwhere(is_hatched):
        if (row + column) % 3 == 0:
            x = gap + column * cell
            y = gap + 20 + row * cell
            pen.line((x, y + cell, x + cell, y), fill="#80868c")
    pen.text((gap, 4), title, fill="black", font=ImageFont.load_default(13))
    for i, token in enumerate(tokens if gap > 4 else []):
        label = repr(token)[1:-1][:12].replace(" ", "·") if token.strip() != token else token[:12]
        center = gap + i * cell + cell / 2
        pen.text((gap - 4, center + 20), label, fill="black", font=font, anchor="rm")
        label_image = Image.new("RGBA", (gap, cell + 4), (0, 0, 0, 0))
        ImageDraw.Draw(label_image).text((0, (cell + 4) / 2), label, fill="black", font=font, anchor="lm")
        rotated_label = label_image.rotate(90, expand=True)
        canvas.paste(rotated_label, (int(center - (cell + 4) / 2), gap + 18 - gap), rotated_label)
    return canvas


def _arrange_grid(pictures: list[Image.Image]) -> Image.Image:
    columns = min(4, len(pictures))
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    canvas = Image.new("RGB", (columns * width, rows * height), "white")
    for i, image in enumerate(pictures):
        canvas.paste(image, (i % columns * width, i // columns * height))
    return canvas
