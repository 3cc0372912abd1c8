"""Vega-Lite specs to SVG (inline in the page) and PNG (beside it), at build time, the same bytes every
time.

Colours that must follow the reader's light or dark scheme cannot be written in a spec, so specs use the
placeholder colours below; they become CSS variables in the SVG and literal colours in the PNG.

Also a program, which draws all that `drawing` asks for. So it imports nothing of attnlab, and the renderer
where it draws: whoever only needs the colours does not load it.
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
CSS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    BAND: "var(--band)",
    PAPER: "var(--paper)",
}
LITERAL = {INK: "#1b1f24", MUTED: "#59636e", GRID: "#e3e6ea", BAND: "#d9ecdf", PAPER: "#ffffff"}
FONT = "Roboto, Helvetica, Arial, sans-serif"

CONFIG: dict[str, Any] = {
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

_NOISE = re.compile(
    r'<path class="(?:foreground|background)" aria-hidden="true" d="(?:M0,0h0v0h0Z)?"[^>]*/>'
    r'| opacity="1"| pointer-events="none"| class="[^"]*"| stroke-miterlimit="10"|<g></g>'
)


# No XML may have these characters, and the renderer would abort.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _fit(value: Any) -> Any:
    if isinstance(value, str):
        return _UNFIT.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_fit(key): _fit(item) for key, item in value.items()}
    return [_fit(item) for item in value] if isinstance(value, list | tuple) else value


def _with_config(spec: dict[str, Any]) -> str:
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return json.dumps(
        {
            "$schema": schema,
            "config": CONFIG,
            "padding": {"left": 10, "right": 6, "top": 5, "bottom": 4},
            **_fit(spec),
        },
        sort_keys=True,
        allow_nan=False,
    )


def svg(spec: dict[str, Any], *, name: str, label: str) -> str:
    """The chart as an inline SVG; `name` makes its ids unique in the page, screen readers say `label`."""
    import vl_convert

    text = vl_convert.vegalite_to_svg(_with_config(spec))
    text = _NOISE.sub("", text)
    for placeholder, css in CSS.items():
        text = text.replace(placeholder, css)
    # Vega counts its ids up as long as its process lives: here they count from 0 in every chart
    for n, id in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', text))):
        text = re.sub(rf'(\bid="|url\(#){re.escape(id)}(?=["\)])', rf"\g<1>{name}-{n}", text)
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
    # what a screen reader hears for a mark is also its hover text, without a script
    text = re.sub(
        r'<path aria-label="([^"]*)"([^>]*)/>', r'<path aria-label="\1"\2><title>\1</title></path>', text
    )
    width, height = re.search(r'width="([\d.]+)" height="([\d.]+)" viewBox', text).groups()  # type: ignore[union-attr]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        f'role="graphics-document" aria-roledescription="chart" aria-label="{escape(unescape(label))}">'
    )
    return head + text[text.index(">") + 1 :]


def png(spec: dict[str, Any]) -> bytes:
    """The chart as a PNG on white, at twice its size in points."""
    import vl_convert

    text = _with_config({**spec, "background": LITERAL[PAPER]})
    for placeholder, literal in LITERAL.items():
        text = text.replace(placeholder, literal)
    return _in_64_colors(vl_convert.vegalite_to_png(text, scale=2))


def sheet(text: str) -> bytes:
    """An SVG of ours as a PNG at one and a half times its size."""
    import vl_convert

    return _in_64_colors(vl_convert.svg_to_png(_UNFIT.sub("\ufffd", text), scale=1.5))


def _in_64_colors(png: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()


def main(asked: Path, answered: Path) -> None:
    """Draws what a file asks for: a line for each as it is done, [kind, content] or ["lost", why]."""
    with answered.open("w", encoding="utf-8") as out:
        for task in json.loads(asked.read_text("utf-8")):
            answer = _answer(task)
            print(json.dumps(answer), file=out, flush=True)


def _answer(task: dict[str, Any]) -> tuple[str, Any]:
    try:
        if "sheet" in task:
            return "png", base64.b64encode(sheet(task["sheet"])).decode()
        if task["label"] is None:
            return "png", base64.b64encode(png(task["spec"])).decode()
        return "svg", svg(task["spec"], name=task["name"], label=task["label"])
    except BaseException as error:  # a panic of the renderer's is no Exception
        words = " ".join(str(error).split())[:200]
        return "lost", f"{type(error).__name__}: {words}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
