"""The attention explorer alone: one model, one text, as a page and as pictures. Never imports torch."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from attnlab.report.build import row as row_of
from attnlab.report.build import summarize
from attnlab.report.pages import files
from attnlab.report.pages.html import inspected
from attnlab.report.schema import HeadsReport
from attnlab.report.tables import maps
from attnlab.report.tables.heads import heads
from attnlab.report.verdicts.runs import Asked, Run, Sweep
from attnlab.store.declarations import Experiment
from attnlab.store.schema import RunRecord

SIDE = 288  # pixels of one head in the picture of a layer
Arrays = dict[str, np.ndarray]


def write(
    folder: Path,
    name: str,
    seed: int,
    arrays: Arrays,
    scores: dict[str, Any],
    kernels: dict[str, Any],
    layer: int | None = None,
    head: int | None = None,
) -> Path:
    """inspect.html, open at the layer and head asked for, and a PNG per layer, or of that one; with a head,
    of it with its tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = RunRecord.model_construct(  # no metric: nothing was measured but its heads
        id=name, status="done", seed=seed, config={}, head_scores=scores, kernels=kernels
    )
    alone = Experiment(
        name=name, arms=[name], baseline=name, seeds=[seed], metric="", margin=0.0, margin_reason=""
    )
    sweep = Sweep(Asked(alone), [Run(name, seed, name, record, None, arrays)])
    report = HeadsReport(
        experiment=summarize(sweep), runs=[row_of(run) for run in sweep.planned], heads=heads(sweep)
    )
    for old in folder.glob("layer*.png"):
        old.unlink()
    values = arrays["maps"][-1]
    visible = arrays["visible"]
    known = maps.layers_of(arrays)
    for number in known if layer is None else [layer]:
        place = known.index(number)
        chosen = range(values.shape[1]) if head is None else [head]
        tokens = [str(token) for token in arrays["tokens"]] if head is not None else []
        pictures = [
            picture(values[place, head_number], visible[place], tokens, f"layer {number}, head {head_number}")
            for head_number in chosen
        ]
        part = "" if head is None else f"_head{head}"
        files.put(folder / f"layer{number}{part}.png", _png(_beside(pictures)))
    page = folder / "inspect.html"
    first = known[0] if layer is None else layer
    start = {"arm": name, "seed": seed, "layer": first, "head": head}
    files.put(page, inspected(report, {(name, seed): arrays}, start).encode())
    return page


def picture(weights: np.ndarray, visible: np.ndarray, tokens: list[str], title: str) -> Image.Image:
    """One head on white: query down, key across, the page's scale, with its tokens where they are given."""
    length = len(weights)
    cell = max(1, (900 if tokens else SIDE) // length)
    cell, gap = (min(cell, 24), 90) if tokens and cell >= 9 else (cell, 4)
    side = length * cell
    font = ImageFont.load_default(min(14, max(9, cell)))
    out = Image.new("RGB", (gap + side + 8, gap + side + 28), "white")
    colours = np.where(visible[:, :, None], maps.cividis(256)[weights], 255).astype(np.uint8)
    drawn = Image.frombytes("RGB", (length, length), colours.tobytes())
    out.paste(drawn.resize((side, side), Image.Resampling.NEAREST), (gap, gap + 20))
    pen = ImageDraw.Draw(out)
    for row, column in np.argwhere(~visible):  # hatched: a masked cell was not given a zero
        if (row + column) % 3 == 0:
            x = gap + column * cell
            y = gap + 20 + row * cell
            pen.line((x, y + cell, x + cell, y), fill="#80868c")
    pen.text((gap, 4), title, fill="black", font=ImageFont.load_default(13))
    for i, token in enumerate(tokens if gap > 4 else []):
        word = repr(token)[1:-1][:12].replace(" ", "·") if token.strip() != token else token[:12]
        at = gap + i * cell + cell / 2
        pen.text((gap - 4, at + 20), word, fill="black", font=font, anchor="rm")
        across = Image.new("RGBA", (gap, cell + 4), (0, 0, 0, 0))
        ImageDraw.Draw(across).text((0, (cell + 4) / 2), word, fill="black", font=font, anchor="lm")
        turned = across.rotate(90, expand=True)
        out.paste(turned, (int(at - (cell + 4) / 2), gap + 18 - gap), turned)
    return out


def _beside(pictures: list[Image.Image]) -> Image.Image:
    columns = min(4, len(pictures))
    wide, high = pictures[0].size
    rows = -(-len(pictures) // columns)
    out = Image.new("RGB", (columns * wide, rows * high), "white")
    for i, image in enumerate(pictures):
        out.paste(image, (i % columns * wide, i // columns * high))
    return out


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()
