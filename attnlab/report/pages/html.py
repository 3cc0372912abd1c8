"""report.json to one HTML file that asks for nothing: no request leaves it, and scripts only add comfort.

Whatever came from a corpus or a log goes through autoescape, and the data for scripts is JSON in an inert
element with every character escaped that could end it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attnlab.report.answer import primary, timed
from attnlab.report.charts import figures, series_figures
from attnlab.report.charts.drawing import Drawn, draw
from attnlab.report.charts.figures import Report
from attnlab.report.charts.paths import paths
from attnlab.report.pages.glossary import Glossary
from attnlab.report.tables import claimed, format, head_maps, looks, maps, ranking

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
    )
    env.filters["plainly"] = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False)
    env.filters["pretty"] = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False, indent=2)
    env.filters["letter"] = format.letter
    env.filters["on_record"] = format.on_record
    env.filters["explained"] = Glossary().explained
    env.filters["without"] = lambda sentence, start: sentence.removeprefix(start)
    env.filters["after_word"] = lambda sentence: sentence.partition(": ")[2]
    return env


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
    return _page("page.html", report, shown(report), drawn, head_maps.select(report, archive or {}))


def inspected(report: Report, archive: Archive, start: dict[str, Any]) -> str:
    """The heads of one model alone, as the section of a page that shows them, open at the head that `start`
    names (arm, seed, layer, head; head None: the mean of the layer's).

    Args:
        report: experiment (name, arms, baseline, seeds), runs and heads, as in report.json.
    """
    selected = head_maps.select(report, archive)
    return _page("inspect.html", report, {"strips": series_figures.strips(report)}, None, selected, start)


def _page(
    template: str,
    report: Report,
    places: dict[str, list[figures.Figure]],
    drawn: Drawn | None,
    selected: dict[str, Any] | None,
    start: dict[str, Any] | None = None,
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
            primary=primary(report) if "effects" in report else {},
            cited=claimed.declared(report) if "verdict" in report else [],
            many=len(report["experiment"]["arms"]) > ranking.MANY,
            timed=timed(report) if "answer" in report else {},
            columns=ranking.columns(report) if "answer" in report else [],
            equal_bytes=ranking.equal_bytes(report) if "answer" in report else [],
            maps=selected,
            gallery=gallery(selected) if selected else [],
            picked=picked(report, selected) if selected else [],
            data=inert(_explorer(report, selected) | {"start": start}),
            css=asset("page.css") + asset("explorer.css"),
            js=asset("page.js"),
            explorer=asset("explorer_draw.js") + asset("explorer.js"),
        )
    )


def picture(figure: figures.Figure, drawn: Drawn) -> Any:
    """The chart; in its place, where it could not be drawn, the words that stand for it."""
    if figure.name in drawn.svgs:
        return Markup(drawn.svgs[figure.name])
    return Markup('<p class="note">Not drawn: {}</p>').format(figure.label)


def _explorer(report: dict[str, Any], selected: dict[str, Any] | None) -> dict[str, Any]:
    """What a script needs to draw the maps large, and to say how a head scores."""
    heads = report["heads"] or {}
    scores = [
        {"name": score["name"], "label": score["label"], "chance": format.chances(score)}
        for score in heads.get("scores", [])
    ]
    chosen = selected or {}
    lots = chosen.get("picks") or {"top": [], "random": []}
    picked = [entry for top in lots["top"] for entry in top["heads"]] + lots["random"]
    kept = {key: chosen.get(key, []) for key in ("maps", "earlier", "seeds")}
    distinct = {_place(entry): entry for entry in picked}
    return {**kept, "picked": list(distinct.values()), "scores": scores}


def _place(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["arm"], entry["seed"], entry["layers"][0], entry["head_numbers"][0]


def gallery(selected: dict[str, Any]) -> list[dict[str, Any]]:
    """Per shown layer, each arm's heads as thumbnails, in boxes by KV group."""
    decoded = [(entry, *maps.decode(entry)) for entry in selected["maps"]]
    layers = sorted({layer for entry, *_ in decoded for layer in entry["layers"]})
    most = max(1, THUMBNAILS // max(1, sum(entry["heads"] for entry, *_ in decoded)))
    step = -(-len(layers) // most) or 1
    rows = []
    for layer in layers[::step]:
        arms = []
        for entry, weights, visible in decoded:
            if layer not in entry["layers"]:
                continue
            row = entry["layers"].index(layer)
            groups: dict[int, list[dict[str, Any]]] = {}
            for head in range(entry["heads"]):
                image = maps.data_uri(maps.thumbnail(weights[row, head], visible[row]))
                group = groups.setdefault(entry["groups"][row][head], [])
                names = entry["patterns"][row][head] if entry["patterns"] else []
                group.append({"head": head, "image": Markup(image), "names": names})
            arms.append({"arm": entry["arm"], "seed": entry["seed"], "groups": groups})
        rows.append({"layer": layer, "arms": arms})
    return rows


def picked(report: dict[str, Any], selected: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of single heads with their thumbnails: the top ones by a score, beside random ones."""
    lots = selected["picks"]
    if not lots:
        return []
    scores = {score["name"]: score for score in report["heads"]["scores"]}

    def row(heads: list[dict[str, Any]], score: str) -> list[dict[str, Any]]:
        drawn = []
        for entry in heads:
            weights, visible = maps.decode(entry)
            value = entry["scores"][score][0][0] if score in entry["scores"] else None
            image = Markup(maps.data_uri(maps.thumbnail(weights[0, 0], visible[0])))
            arm, seed, layer, head = _place(entry)
            names = entry["patterns"][0][0] if entry["patterns"] else []
            drawn.append(
                {"arm": arm, "seed": seed, "layer": layer, "head": head, "value": value, "image": image,
                 "names": names}
            )  # fmt: skip
        return drawn

    return [
        {
            "score": scores[top["score"]],
            "top": row(top["heads"], top["score"]),
            "random": row(lots["random"], top["score"]),
        }
        for top in lots["top"]
    ]
