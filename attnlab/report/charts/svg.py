"""Render Vega-Lite specs to SVG (inline in the page) and PNG (beside it), the same bytes every time.

Colors that must follow the reader's light or dark scheme cannot be written in a spec. So specs use the
placeholder colors below; they become CSS variables in the SVG and literal colors in the PNG.

This file is also the program that `chart_renderer` starts. So it imports nothing of attnlab, and the renderer
only where it draws: modules that need only the colors do not load it.
"""

import base64
import io
import json
import re
import sys
from html import escape, unescape
from pathlib import Path
from typing import Any

INK = "#010101"
MUTED = "#010102"
GRID = "#010103"
BAND = "#010104"
PAPER = "#010105"
CSS_COLORS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    BAND: "var(--band)",
    PAPER: "var(--paper)",
}
LITERAL_COLORS = {INK: "#1b1f24", MUTED: "#59636e", GRID: "#e3e6ea", BAND: "#d9ecdf", PAPER: "#ffffff"}
FONT = "Roboto, Helvetica, Arial, sans-serif"

VEGA_CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": INK,
        "tickColor": GRID,
        "domainColor": GRID,
        "gridColor": GRID,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 180,
        "titleLimit": 320,
    },
    "title": {"color": INK, "fontSize": 12, "fontWeight": "bold", "anchor": "start", "limit": 420},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 11},
    "text": {"color": INK, "fontSize": 11},
}

_REDUNDANT_MARKUP = re.compile(
    r'<path class="(?:foreground|background)" aria-hidden="true" d="(?:M0,0h0v0h0Z)?"[^>]*/>'
    r'| opacity="1"| pointer-events="none"| class="[^"]*"| stroke-miterlimit="10"|<g></g>'
)


# XML does not allow these characters, and the renderer would abort.
_INVALID_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _replace_invalid_characters(value: Any) -> Any:
    if isinstance(value, str):
        return _INVALID_XML.sub("\ufffd", value)
    if isinstance(value, dict):
        return {
            _replace_invalid_characters(key): _replace_invalid_characters(item) for key, item in value.items()
        }
    return [_replace_invalid_characters(item) for item in value] if isinstance(value, list | tuple) else value


def _format_vega_spec(spec: dict[str, Any]) -> str:
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return json.dumps(
        {
            "$schema": schema,
            "config": VEGA_CONFIG,
            "padding": {"left": 10, "right": 6, "top": 5, "bottom": 4},
            **_replace_invalid_characters(spec),
        },
        sort_keys=True,
        allow_nan=False,
    )


def render_svg(spec: dict[str, Any], *, name: str, label: str) -> str:
    """The chart as an inline SVG; `name` makes its ids unique in the page, screen readers read `label`."""
    import vl_convert

    text = vl_convert.vegalite_to_svg(_format_vega_spec(spec))
    text = _REDUNDANT_MARKUP.sub("", text)
    for placeholder, css in CSS_COLORS.items():
        text = text.replace(placeholder, css)
    # Vega numbers its ids throughout a process; here they start from 0 in every chart
    for index, id in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', text))):
        text = re.sub(rf'(\bid="|url\(#){re.escape(id)}(?=["\)])', rf"\g<1>{name}-{index}", text)
    text = re.sub(r' font-family="[^"]*"', "", text)
    text = re.sub(  # a hundredth of a pixel is enough
        r'\b(?:d|transform|x2|y2)="[^"]*"',
        lambda attribute: re.sub(r"(\d\.\d{2})\d+", r"\1", attribute[0]),
        text,
    )
    text = re.sub(
        r'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="arm"',
        r'data-arm="\1" aria-hidden="true"',
        text,
    )
    # a mark's text for screen readers is also its hover text, without a script
    text = re.sub(
        r'<path aria-label="([^"]*)"([^>]*)/>', r'<path aria-label="\1"\2><title>\1</title></path>', text
    )
    width, height = re.search(r'width="([\d.]+)" height="([\d.]+)" viewBox', text).groups()  # type: ignore[union-attr]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" data-figure="{name}" '
        f'role="graphics-document" aria-roledescription="chart" aria-label="{escape(unescape(label))}">'
    )
    return head + text[text.index(">") + 1 :]


def render_png(spec: dict[str, Any]) -> bytes:
    """The chart as a PNG on white, at twice its size in points."""
    import vl_convert

    text = _use_literal_colors(_format_vega_spec({**spec, "background": LITERAL_COLORS[PAPER]}))
    return _quantize_png(vl_convert.vegalite_to_png(text, scale=2))


def _use_literal_colors(text: str) -> str:
    for placeholder, literal in LITERAL_COLORS.items():
        text = text.replace(placeholder, literal)
    return text


def _quantize_png(png: bytes) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main(tasks_file: Path, results_file: Path) -> None:
    """Render each task of a file and write a line for each: [kind, content] or ["error", reason]."""
    with results_file.open("w", encoding="utf-8") as output:
        for task in json.loads(tasks_file.read_text("utf-8")):
            result = _render_task(task)
            print(json.dumps(result), file=output, flush=True)


def _render_task(task: dict[str, Any]) -> tuple[str, Any]:
    try:
        if task["label"] is None:
            return "png", base64.b64encode(render_png(task["spec"])).decode()
        return "svg", render_svg(task["spec"], name=task["name"], label=task["label"])
    except BaseException as error:  # a panic of the renderer is no Exception
        message = " ".join(str(error).split())[:200]
        return "error", f"{type(error).__name__}: {message}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
