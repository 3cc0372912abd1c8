"""Render report.json as one HTML file without requests; scripts only add comfort.

Text from a corpus or a log is autoescaped. The data for scripts are JSON in an inert element, with every
character escaped that could end it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnlab.data.token_labels import CONTINUATION
from attnlab.report import number_format
from attnlab.report.answer import (
    build_answer,
    collect_timed_intervals,
    find_equal_byte_arms,
    get_primary_effects,
    has_corpora_first,
)
from attnlab.report.charts import comparison_figures, contrast_figures, series_figures
from attnlab.report.charts.chart_renderer import RenderedCharts, render_charts
from attnlab.report.charts.interim_figures import build_interim_figures
from attnlab.report.pages.glossary import Glossary
from attnlab.report.schema import (
    CorpusClaim,
    CurvesReport,
    Effect,
    HeadScore,
    HeadsReport,
    Report,
    TrainingEquivalent,
)
from attnlab.report.tables import (
    arm_columns,
    arm_options,
    claim_group_tables,
    claim_sources,
    effective_speedup,
    grid_layout,
    head_maps,
    headline,
    interim_analyses,
    map_archive,
    picked_rates,
    source_links,
    wording,
)
from attnlab.report.tables.head_maps import HeadPicks, MapEntry, MapSelection
from attnlab.report.verdicts.budget_check import describe_short_training

TEMPLATE_FOLDER = Path(__file__).parents[1] / "templates"
MAX_THUMBNAILS = 240  # on one page
FIGURE_WIDTHS = {"": 640, "-narrow": 350}  # suffix of a figure's name -> pixels, on a desktop and on a phone
MapArchive = Mapping[tuple[str, int], Mapping[str, Any]]  # (arm, seed) -> the arrays of that run's maps
JSON_ESCAPES: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def escape_json(value: Any) -> Markup:
    """JSON that is safe inside a script element of any type."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(str.maketrans(JSON_ESCAPES)))


def load_asset(name: str) -> Markup:
    """The text of a style sheet or script in the template folder."""
    return Markup((TEMPLATE_FOLDER / name).read_text("utf-8"))


def build_environment() -> Environment:
    """Jinja environment with the functions and filters of the templates; its glossary serves one page."""
    env = Environment(
        loader=PackageLoader("attnlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        lstrip_blocks=True,
    )
    env.globals.update(
        n=number_format.render_number,
        p=number_format.render_pvalue,
        interval=number_format.render_bounds,
        mark=comparison_figures.classify_budget_cell,
        zip=zip,
        cut_options=arm_options.cut_options,
        percent=number_format.format_percent,
        interim_analyses=interim_analyses,
        select_tradeoff_panels=comparison_figures.select_tradeoff_panels,
        CACHE_BYTE_KEYS=arm_columns.CACHE_BYTE_KEYS,
        get_chance_by_arm=number_format.get_chance_by_arm,
        get_selection_statistic=picked_rates.get_selection_statistic,
        average_trials=picked_rates.average_trials,
        describe_picked_rates=picked_rates.describe_picked_rates,
        difference=render_effect,
        training=render_training,
        explain_effect=wording.explain_effect,
        effect_level=wording.format_effect_level,
        explain_speedups=effective_speedup.explain_speedups,
        SPEEDUP_HEADER=effective_speedup.HEADER,
        describe=wording.describe_claim,
        find_claim_effect=wording.find_claim_effect,
        cite=source_links.render_source_html,
        threshold=wording.format_threshold,
        explain=wording.explain_verdict,
        preregistration_note=number_format.format_preregistration,
        required_seeds=wording.format_required_seeds,
        SUPPORTED_NOTE=wording.SUPPORTED_NOTE,
        DECISIONS_NOTE=wording.DECISIONS_NOTE,
        SENSITIVITY_NOTE=wording.SENSITIVITY_NOTE,
        SENSITIVITY_HEADER=wording.SENSITIVITY_HEADER,
        sensitivity_rows=wording.build_sensitivity_rows,
        describe_outliers=wording.describe_outliers,
        HOLM_OVER_ARMS=wording.HOLM_OVER_ARMS,
        HOLM_OVER_CLAIMS=wording.HOLM_OVER_CLAIMS,
        margin_reason=wording.format_margin_reason,
        interval_method=wording.format_interval_method,
        explain_wide_intervals=wording.explain_wide_intervals,
        EXPLORATORY_NOTE=grid_layout.EXPLORATORY_NOTE,
        name_grid=grid_layout.name_grid,
        name_group=claim_group_tables.name_group,
        explain_group=claim_group_tables.explain_group,
        build_group_table=claim_group_tables.build_group_table,
        GROUP_HEADER=claim_group_tables.GROUP_HEADER,
        list_cell_headings=grid_layout.list_cell_headings,
        build_cell_rows=grid_layout.build_cell_rows,
        format_best_cell=grid_layout.format_best_cell,
        build_effect_rows=grid_layout.build_effect_rows,
        explain_missing_effects=grid_layout.explain_missing_effects,
        list_reading_notes=grid_layout.list_reading_notes,
    )
    env.filters["plainly"] = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False)
    env.filters["pretty"] = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False, indent=2)
    env.filters["letter"] = number_format.get_layer_letter
    env.filters["compute_amount"] = number_format.format_compute_amount
    env.filters["whole_intervals"] = number_format.keep_intervals_whole
    env.filters["explained"] = Glossary().explain_terms
    return env


def render_effect(effect: Effect | CorpusClaim) -> Markup:
    """An effect for the page, with the full value of its estimate in the markup."""
    estimate = effect.mean if isinstance(effect, Effect) else effect.effect
    if estimate is None:
        return escape(number_format.NONE)
    return Markup('<data value="{}">{}</data>').format(
        repr(estimate), number_format.keep_intervals_whole(wording.format_effect(effect))
    )


def render_training(training: TrainingEquivalent) -> str:
    """An equivalent training compute, for a cell under a heading that names it."""
    return number_format.keep_intervals_whole(wording.format_training(training, ""))


def build_page_figures(report: Report) -> dict[str, list[comparison_figures.Figure]]:
    """The figures of a page, by place; `-narrow` is the same place on a phone."""
    return {
        "verdict": comparison_figures.build_verdict_figures(report, 640, "verdict"),
        "verdict-narrow": comparison_figures.build_verdict_figures(report, 350, "verdict-narrow"),
        "effects": comparison_figures.build_effect_figures(report, 640, "effects"),
        "effects-narrow": comparison_figures.build_effect_figures(report, 350, "effects-narrow"),
        "slopes": comparison_figures.build_slope_figures(report),
        "tradeoff": comparison_figures.build_tradeoff_figures(report),
        "curves": series_figures.build_curve_figures(report),
        "length": series_figures.build_length_figures(report),
        "positions": series_figures.build_position_figures(report),
        "strips": series_figures.build_strip_figures(report),
        **contrast_figures.build_contrast_figures(report, 640),
        **contrast_figures.build_contrast_figures(report, 350, "-narrow"),
        **build_interim_figures(report, 560),
        **build_interim_figures(report, 310, "-narrow"),
    }


def list_page_figures(report: Report) -> list[comparison_figures.Figure]:
    """All figures of a page."""
    return [figure for figures in build_page_figures(report).values() for figure in figures]


def render_html(
    report: Report,
    rendered: RenderedCharts | None = None,
    map_archive: MapArchive | None = None,
    bibliography: str = "",
) -> str:
    """The page of a report.

    Args:
        rendered: the rendered figures of the page; None renders them here.
        map_archive: the attention maps of its runs, as `read_archive` returns them. Without them the page
            shows the command that makes them in place of the explorer.
        bibliography: the address of the bibliography, as of `find_bibliography`; empty links no entry of it.
    """
    answer = build_answer(report)
    return _render_template(
        "page.html",
        report,
        build_page_figures(report),
        rendered,
        head_maps.select_maps(report, map_archive or {}),
        answer=answer,
        bibliography=bibliography,
        headline=headline.build_headline(report),
        short_training=describe_short_training(report.budget),
        corpora_first=has_corpora_first(report),
        primary=get_primary_effects(report),
        citations=claim_sources.build_citations(report),
        timed=collect_timed_intervals(report),
        columns=arm_columns.build_arm_columns(report),
        equal_bytes=find_equal_byte_arms(report, answer),
        speedups=effective_speedup.build_speedup_table(report),
    )


def render_inspect_html(
    report: HeadsReport, map_archive: MapArchive, start: dict[str, Any], text: str | None = None
) -> str:
    """The attention heads of one model as a page, like the section of a report.

    Args:
        start: the head at which it opens (arm, seed, layer, head; head None: the mean of the layer).
        text: the text of the maps, if it is one; with the model's name it is the title.
    """
    selected = head_maps.select_maps(report, map_archive)
    places = {"strips": series_figures.build_strip_figures(report)}
    return _render_template("inspect.html", report, places, None, selected, start=start, text=text)


def render_curves_html(report: CurvesReport) -> str:
    """The learning curves of a report as a page, like its section."""
    places = {
        "curves": series_figures.build_curve_figures(report),
        "positions": series_figures.build_position_figures(report),
    }
    return _render_template("curves.html", report, places, None, None)


def _render_template(
    template: str,
    report: HeadsReport,
    places: dict[str, list[comparison_figures.Figure]],
    rendered: RenderedCharts | None,
    selected: MapSelection | None,
    *,
    start: dict[str, Any] | None = None,
    **context: Any,
) -> str:
    if rendered is None:
        rendered = render_charts([figure for place in places.values() for figure in place])
    pictures = {
        place: [render_figure(figure, rendered) for figure in figures] for place, figures in places.items()
    }
    for place in [place for place in pictures if f"{place}-narrow" in pictures]:
        pictures[place] = list(zip(pictures[place], pictures.pop(f"{place}-narrow"), strict=True))
    return (
        build_environment()
        .get_template(template)
        .render(
            r=report,
            figures=pictures,
            figure_errors=rendered.error_messages,
            styles=comparison_figures.build_styles(report),
            many=len(report.experiment.arms) > arm_columns.MANY_ARMS,
            maps=selected,
            continuation=CONTINUATION,
            gallery=build_gallery(selected) if selected else [],
            head_selection=build_head_selection(report, selected) if selected else [],
            data=escape_json(_build_explorer_data(report, selected) | {"start": start}),
            css=Markup("").join(map(load_asset, ("page.css", "explorer.css"))),
            js=load_asset("page.js") + load_asset("save_charts.js"),
            explorer=load_asset("explorer_draw.js") + load_asset("explorer.js"),
            **context,
        )
    )


def render_figure(figure: comparison_figures.Figure, rendered: RenderedCharts) -> Any:
    """The chart, or its description in words where it could not be rendered."""
    if figure.name in rendered.svgs:
        return Markup(rendered.svgs[figure.name])
    return Markup('<p class="note">Figure not rendered: {}</p>').format(figure.label)


def render_figure_page(template: str, figures: Sequence[comparison_figures.Figure], **context: Any) -> str:
    """A page whose `figures` are the charts by name, wide and narrow, for the macro `wide_and_narrow`."""
    rendered = render_charts(figures)
    figure_by_name = {figure.name: figure for figure in figures}
    figure_pairs = {
        name: [(render_figure(wide, rendered), render_figure(figure_by_name[f"{name}-narrow"], rendered))]
        for name, wide in figure_by_name.items()
        if not name.endswith("-narrow")
    }
    return (
        build_environment()
        .get_template(template)
        .render(
            figures=figure_pairs,
            figure_errors=rendered.error_messages,
            css=load_asset("page.css"),
            js=load_asset("page.js") + load_asset("save_charts.js"),
            **context,
        )
    )


def _build_explorer_data(report: HeadsReport, selected: MapSelection | None) -> dict[str, Any]:
    """The data from which a script draws the maps in full size and shows a head's scores."""
    scores = [
        {"name": score.name, "label": score.label, "chance": number_format.get_chance_by_arm(score)}
        for score in (report.heads.scores if report.heads else ())
    ]
    if selected is None:
        return {"maps": [], "earlier": [], "seeds": [], "picked": [], "scores": scores}
    picks = selected.picks or HeadPicks(0, [], [])
    entries = [entry for top in picks.top for entry in top.heads] + picks.random
    distinct = {_locate_head(entry): asdict(entry) for entry in entries}
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
class HeadSelectionRow:
    """The top heads by a score, and random ones."""

    score: HeadScore
    top: list[Thumbnail]
    random: list[Thumbnail]


def _locate_head(entry: MapEntry) -> tuple[str, int, int, int]:
    return entry.arm, entry.seed, entry.layers[0], entry.head_numbers[0]


def build_gallery(selected: MapSelection) -> list[GalleryRow]:
    """Per shown layer, each arm's heads as thumbnails, in boxes by KV group."""
    decoded = [(entry, *map_archive.unpack_maps(entry)) for entry in selected.maps]
    layers = sorted({layer for entry, *_ in decoded for layer in entry.layers})
    max_layers = max(1, MAX_THUMBNAILS // max(1, sum(entry.heads for entry, *_ in decoded)))
    step = -(-len(layers) // max_layers) or 1
    rows = []
    for layer in layers[::step]:
        arms = []
        for entry, weights, visible in decoded:
            if layer not in entry.layers:
                continue
            row = entry.layers.index(layer)
            groups: dict[int, list[Thumbnail]] = {}
            for head in range(entry.heads):
                image = map_archive.format_data_uri(
                    map_archive.render_thumbnail(weights[row, head], visible[row])
                )
                names = entry.patterns[row][head] if entry.patterns else []
                thumbnail = Thumbnail(entry.arm, entry.seed, layer, head, None, Markup(image), names)
                groups.setdefault(entry.groups[row][head], []).append(thumbnail)
            arms.append(ArmHeads(entry.arm, entry.seed, groups))
        rows.append(GalleryRow(layer, arms))
    return rows


def build_head_selection(report: HeadsReport, selected: MapSelection) -> list[HeadSelectionRow]:
    """Rows of single heads with their thumbnails: the top ones by a score, beside random ones."""
    if not selected.picks:
        return []
    scores = {score.name: score for score in (report.heads.scores if report.heads else ())}

    def build_thumbnail(entry: MapEntry, score: str) -> Thumbnail:
        weights, visible = map_archive.unpack_maps(entry)
        value = entry.scores[score][0][0] if score in entry.scores else None
        image = Markup(map_archive.format_data_uri(map_archive.render_thumbnail(weights[0, 0], visible[0])))
        names = entry.patterns[0][0] if entry.patterns else []
        return Thumbnail(*_locate_head(entry), value, image, names)

    return [
        HeadSelectionRow(
            scores[top.score],
            [build_thumbnail(entry, top.score) for entry in top.heads],
            [build_thumbnail(entry, top.score) for entry in selected.picks.random],
        )
        for top in selected.picks.top
    ]
