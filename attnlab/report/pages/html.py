"""report.json to one HTML file that asks for nothing: no request leaves it, and scripts only add comfort.

Whatever came from a corpus or a log goes through autoescape, and the data for scripts is JSON in an inert
element with every character escaped that could end it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnlab.report.answer import answer, equal_bytes, primary, timed
from attnlab.report.charts import figures, series_figures
from attnlab.report.charts.drawing import Drawn, draw
from attnlab.report.charts.paths import paths
from attnlab.report.pages.glossary import Glossary
from attnlab.report.schema import Effect, HeadScore, HeadsReport, Report, TextClaim
from attnlab.report.tables import claimed, format, head_maps, looks, maps, ranking, wording
from attnlab.report.tables.head_maps import Entry, Picks, Selection

TEMPLATES = Path(__file__).parents[1] / "templates"
THUMBNAILS = 240  # on one page
Archive = Mapping[tuple[str, int], Mapping[str, Any]]  # (arm, seed) -> the arrays of that run's maps
ESCAPES: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def inert(value: Any) -> Markup:
    """JSON that is safe inside a script element of any type."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(str.maketrans(ESCAPES)))


def asset(name: str) -> Markup:
    """A style sheet or a script of ours, as a page has it."""
    return Markup((TEMPLATES / name).read_text("utf-8"))


def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("attnlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        lstrip_blocks=True,
    )
    env.globals.update(
        n=format.data,
        p=format.data_p,
        interval=format.data_span,
        mark=figures.mark,
        zip=zip,
        percent=format.percent,
        looks=looks,
        traded=figures.traded,
        BYTES=ranking.BYTES,
        chances=format.chances,
        difference=data_effect,
        training=wording.format_training,
        meaning=wording.explain_effect,
        describe=wording.describe_claim,
        explain=wording.explain_verdict,
    )
    env.filters["plainly"] = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False)
    env.filters["pretty"] = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False, indent=2)
    env.filters["letter"] = format.letter
    env.filters["on_record"] = format.on_record
    env.filters["explained"] = Glossary().explained
    return env


def data_effect(of: Effect | TextClaim) -> Markup:
    """An effect for the page, with the full value of its estimate in the markup."""
    estimate = of.mean if isinstance(of, Effect) else of.effect
    if estimate is None:
        return escape(format.NONE)
    return Markup('<data value="{}">{}</data>').format(repr(estimate), wording.format_effect(of))


def shown(report: Report) -> dict[str, list[figures.Figure]]:
    """The figures of a page, by the place where they stand; `-narrow` is the same place on a phone."""
    return {
        "verdict": figures.verdicts(report, 640, "verdict"),
        "verdict-narrow": figures.verdicts(report, 350, "verdict-narrow"),
        "effects": figures.forests(report, 640, "effects"),
        "effects-narrow": figures.forests(report, 350, "effects-narrow"),
        "slopes": figures.slopes(report),
        "tradeoff": figures.tradeoffs(report),
        "curves": series_figures.curves(report),
        "length": series_figures.lengths(report),
        "positions": series_figures.positions(report),
        "strips": series_figures.strips(report),
        **paths(report, 560),
        **paths(report, 310, "-narrow"),
    }


def inline(report: Report) -> list[figures.Figure]:
    """All figures of a page."""
    return [figure for place in shown(report).values() for figure in place]


def html(report: Report, drawn: Drawn | None = None, archive: Archive | None = None) -> str:
    """The page.

    Args:
        drawn: the pictures that were drawn for it; drawn here where None.
        archive: the attention maps of its runs, as `maps.read` returns them. Without them the page shows the
            command that makes them in place of the explorer.
    """
    first = answer(report)
    return _page(
        "page.html",
        report,
        shown(report),
        drawn,
        head_maps.select(report, archive or {}),
        answer=first,
        primary=primary(report),
        cited=claimed.declared(report),
        timed=timed(report),
        columns=ranking.columns(report),
        equal_bytes=equal_bytes(report, first),
    )


def inspected(report: HeadsReport, archive: Archive, start: dict[str, Any]) -> str:
    """The heads of one model alone, as the section of a page that shows them, open at the head that `start`
    names (arm, seed, layer, head; head None: the mean of the layer's).
    """
    selected = head_maps.select(report, archive)
    places = {"strips": series_figures.strips(report)}
    return _page("inspect.html", report, places, None, selected, start=start)


def _page(
    template: str,
    report: HeadsReport,
    places: dict[str, list[figures.Figure]],
    drawn: Drawn | None,
    selected: Selection | None,
    *,
    start: dict[str, Any] | None = None,
    **own: Any,
) -> str:
    if drawn is None:
        drawn = draw([figure for place in places.values() for figure in place])
    pictures = {place: [picture(figure, drawn) for figure in found] for place, found in places.items()}
    for place in [place for place in pictures if f"{place}-narrow" in pictures]:
        pictures[place] = list(zip(pictures[place], pictures.pop(f"{place}-narrow"), strict=True))
    return (
        environment()
        .get_template(template)
        .render(
            r=report,
            figures=pictures,
            undrawn=drawn.sentences,
            styles=figures.styles(report),
            many=len(report.experiment.arms) > ranking.MANY,
            maps=selected,
            gallery=gallery(selected) if selected else [],
            picked=picked(report, selected) if selected else [],
            data=inert(_explorer(report, selected) | {"start": start}),
            css=asset("page.css") + asset("explorer.css"),
            js=asset("page.js"),
            explorer=asset("explorer_draw.js") + asset("explorer.js"),
            **own,
        )
    )


def picture(figure: figures.Figure, drawn: Drawn) -> Any:
    """The chart; in its place, where it could not be drawn, the words that stand for it."""
    if figure.name in drawn.svgs:
        return Markup(drawn.svgs[figure.name])
    return Markup('<p class="note">Not drawn: {}</p>').format(figure.label)


def _explorer(report: HeadsReport, selected: Selection | None) -> dict[str, Any]:
    """What a script needs to draw the maps large, and to say how a head scores."""
    scores = [
        {"name": score.name, "label": score.label, "chance": format.chances(score)}
        for score in (report.heads.scores if report.heads else ())
    ]
    if selected is None:
        return {"maps": [], "earlier": [], "seeds": [], "picked": [], "scores": scores}
    picks = selected.picks or Picks(0, [], [])
    entries = [entry for top in picks.top for entry in top.heads] + picks.random
    distinct = {_place(entry): asdict(entry) for entry in entries}
    return {
        "maps": [asdict(entry) for entry in selected.maps],
        "earlier": [asdict(weights) for weights in selected.earlier],
        "seeds": [asdict(weights) for weights in selected.seeds],
        "picked": list(distinct.values()),
        "scores": scores,
    }


@dataclass(frozen=True)
class Thumbnail:
    """A head's map, small."""

    arm: str
    seed: int
    layer: int
    head: int
    value: float | None
    image: Markup
    names: list[str]


@dataclass(frozen=True)
class ArmHeads:
    """An arm's heads in one layer, by KV group."""

    arm: str
    seed: int
    groups: dict[int, list[Thumbnail]]


@dataclass(frozen=True)
class GalleryRow:
    """All arms in one layer."""

    layer: int
    arms: list[ArmHeads]


@dataclass(frozen=True)
class PickedRow:
    """The top heads by a score, and random ones."""

    score: HeadScore
    top: list[Thumbnail]
    random: list[Thumbnail]


def _place(entry: Entry) -> tuple[str, int, int, int]:
    return entry.arm, entry.seed, entry.layers[0], entry.head_numbers[0]


def gallery(selected: Selection) -> list[GalleryRow]:
    """Per shown layer, each arm's heads as thumbnails, in boxes by KV group."""
    decoded = [(entry, *maps.decode(entry)) for entry in selected.maps]
    layers = sorted({layer for entry, *_ in decoded for layer in entry.layers})
    most = max(1, THUMBNAILS // max(1, sum(entry.heads for entry, *_ in decoded)))
    step = -(-len(layers) // most) or 1
    rows = []
    for layer in layers[::step]:
        arms = []
        for entry, weights, visible in decoded:
            if layer not in entry.layers:
                continue
            row = entry.layers.index(layer)
            groups: dict[int, list[Thumbnail]] = {}
            for head in range(entry.heads):
                image = maps.data_uri(maps.thumbnail(weights[row, head], visible[row]))
                names = entry.patterns[row][head] if entry.patterns else []
                shown = Thumbnail(entry.arm, entry.seed, layer, head, None, Markup(image), names)
                groups.setdefault(entry.groups[row][head], []).append(shown)
            arms.append(ArmHeads(entry.arm, entry.seed, groups))
        rows.append(GalleryRow(layer, arms))
    return rows


def picked(report: HeadsReport, selected: Selection) -> list[PickedRow]:
    """Rows of single heads with their thumbnails: the top ones by a score, beside random ones."""
    if not selected.picks:
        return []
    scores = {score.name: score for score in (report.heads.scores if report.heads else ())}

    def thumbnail(entry: Entry, score: str) -> Thumbnail:
        weights, visible = maps.decode(entry)
        value = entry.scores[score][0][0] if score in entry.scores else None
        image = Markup(maps.data_uri(maps.thumbnail(weights[0, 0], visible[0])))
        names = entry.patterns[0][0] if entry.patterns else []
        return Thumbnail(*_place(entry), value, image, names)

    return [
        PickedRow(
            scores[top.score],
            [thumbnail(entry, top.score) for entry in top.heads],
            [thumbnail(entry, top.score) for entry in selected.picks.random],
        )
        for top in selected.picks.top
    ]
