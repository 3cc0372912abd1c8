"""Attention maps: one run of each arm on the same text, which a script enlarges and compares."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from attnlab.data.token_labels import CONTINUATION
from attnlab.report import section
from attnlab.report.number_format import format_number, get_chance_by_arm
from attnlab.report.schema import HeadsReport, Report
from attnlab.report.section import Block, Code, Fold, Heading, Interactive, Section, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables import head_maps, map_archive
from attnlab.report.tables.arm_columns import MANY_ARMS
from attnlab.report.tables.head_maps import HeadPicks, MapEntry, MapSelection

PLACE: Final = 92
VIEWER: Final = Path(__file__).parents[1] / "templates" / "gallery.html"  # a script fills it
MAX_THUMBNAILS: Final = 240  # on one page


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of attention maps; without the maps it shows the command that makes them."""
    if context.maps and (maps := build_maps(report, context.maps)):
        return maps
    if not report.heads or not report.heads.layers:
        return None
    missing = (
        "The attention maps of the runs (attention.npz) are not in the folder of this page. This command "
        "trains the runs and generates a page with maps:"
    )
    return Section(
        "maps", "Attention maps", [Text(missing), Code(report.reproduce.command, "sh")], is_long=True
    )


def build_maps(
    report: HeadsReport, archive: map_archive.MapArchive, start: dict[str, Any] | None = None
) -> Section | None:
    """Build the section of the maps in an archive; None if no finished run has any.

    Args:
        start: the head at which it opens (arm, seed, layer, head; head None: the mean of the layer).
    """
    selected = head_maps.select_maps(report, archive)
    if selected is None:
        return None
    gallery = Interactive(_draw_gallery(selected))
    picks = [*_build_picks(report, selected.picks)] if selected.picks and selected.picks.top else []
    many = len(report.experiment.arms) > MANY_ARMS
    viewer = VIEWER.read_text("utf-8").replace("<details open>", "<details>" if many else "<details open>")
    blocks: list[Block] = [
        Interactive(viewer, _build_data(report, selected) | {"start": start}),
        section.note(" ".join(_explain_maps(report, selected))),
        Fold("Thumbnails of all arms", [gallery]) if many else gallery,
    ]
    blocks += [Fold("Top heads", picks)] if many and picks else picks
    blocks.append(Fold("Text of the maps", [Code("".join(selected.maps[0].tokens))]))
    return Section("maps", "Attention maps", blocks, is_long=True)


def _explain_maps(report: HeadsReport, selected: MapSelection) -> Iterator[str]:
    if len(report.experiment.arms) > 1:
        yield "One run of each arm on the same text."
    yield (
        "Rows are queries, columns are keys. One fixed square-root scale for all maps: dark is 0, yellow is "
        "1. Hatched, or blank in small cells: masked."
    )
    if CONTINUATION in selected.maps[0].tokens:
        yield f"{CONTINUATION} marks a token that continues the character of the token before."
    yield (
        "A box contains the query heads that share one KV head. Thumbnails show the largest weight of each "
        "block."
    )
    if selected.layers_shown < selected.layers:
        yield (
            f"{selected.layers_shown} of {selected.layers} layers are on this page; attention.npz has all."
        )
    yield from selected.left_out


def _build_data(report: HeadsReport, selected: MapSelection) -> dict[str, Any]:
    """Build the data from which a script draws the maps in full size and shows a head's scores."""
    scores = report.heads.scores if report.heads else ()
    picks = selected.picks or HeadPicks(0, [], [])
    entries = [entry for top in picks.top for entry in top.heads] + picks.random
    distinct = {(entry.arm, entry.seed, entry.layers[0], entry.head_numbers[0]): entry for entry in entries}
    return {
        "maps": [asdict(entry) for entry in selected.maps],
        "earlier": [asdict(weights) for weights in selected.earlier],
        "seeds": [asdict(weights) for weights in selected.seeds],
        "picked": [asdict(entry) for entry in distinct.values()],
        "scores": [
            {"name": score.name, "label": score.label, "chance": get_chance_by_arm(score)} for score in scores
        ],
    }


def _draw_gallery(selected: MapSelection) -> Markup:
    """Draw the heads of each arm in each shown layer as thumbnails, in boxes by KV group."""
    maps = [(entry, *map_archive.unpack_maps(entry)) for entry in selected.maps]
    layers = sorted({layer for entry in selected.maps for layer in entry.layers})
    max_layers = max(1, MAX_THUMBNAILS // max(1, sum(entry.heads for entry in selected.maps)))
    step = -(-len(layers) // max_layers) or 1
    rows = [
        Markup('<div class="layer"><h4 class="note">layer {}</h4><div>{}</div></div>').format(
            layer,
            Markup("\n").join(_draw_layer(*shown, layer) for shown in maps if layer in shown[0].layers),
        )
        for layer in layers[::step]
    ]
    return Markup('<div id="gallery">{}</div>').format(Markup("\n").join(rows))


def _draw_layer(entry: MapEntry, weights: np.ndarray, visible: np.ndarray, layer: int) -> Markup:
    row = entry.layers.index(layer)
    groups: dict[int, list[Markup]] = {}
    for head, group in enumerate(entry.groups[row]):
        groups.setdefault(group, []).append(_draw_head(entry, weights, visible, row, head, head))
    boxes = (
        Markup('<div class="group" role="group" aria-label="{}, layer {}, KV group {}">{}</div>').format(
            entry.arm, layer, group, Markup("\n").join(heads)
        )
        for group, heads in groups.items()
    )
    return Markup(
        '<div class="arm-heads"><span class="note">{}, seed {}</span><div class="groups">{}</div></div>'
    ).format(entry.arm, entry.seed, Markup("").join(boxes))


def _draw_head(
    entry: MapEntry, weights: np.ndarray, visible: np.ndarray, row: int, column: int, caption: Markup | int
) -> Markup:
    """Draw a thumbnail of one head of an entry, which the script turns into a button."""
    picture = map_archive.render_thumbnail(weights[row, column], visible[row])
    layer, head = entry.layers[row], entry.head_numbers[column]
    names = ", ".join(entry.patterns[row][column] if entry.patterns else [])
    label = f"{entry.arm}, seed {entry.seed}, layer {layer}, head {head}{': ' if names else ''}{names}"
    return Markup(
        '<div class="head" data-arm="{}" data-seed="{}" data-layer="{}" data-head="{}" title="{label}">'
        '<img src="{image}" width="64" height="64" alt="Attention map of {label}">{caption}</div>'
    ).format(
        entry.arm, entry.seed, layer, head, label=label, caption=caption,
        image=map_archive.format_data_uri(picture),
    )  # fmt: skip


def _build_picks(report: HeadsReport, picks: HeadPicks) -> Iterator[Block]:
    """Build the top heads by each score, beside random ones."""
    scores = {score.name: score for score in (report.heads.scores if report.heads else ())}
    count = len(picks.top[0].heads)
    if picks.random:
        yield Heading(f"Top {count} and {len(picks.random)} random heads")
        yield section.note(
            f"Selected from all {picks.total} heads of all arms and seeds. The top heads look striking by "
            "selection alone; the random heads, sampled with a fixed seed, show typical heads."
        )
    else:
        yield Heading(f"All {count} heads by score")
    for top in picks.top:
        score = scores[top.score]
        chance = "" if score.chance is None else f"; chance is {format_number(score.chance, 3)}"
        groups = [(f"Top {len(top.heads)} by {score.label}", top.heads)]
        groups += [(f"Random {len(picks.random)}", picks.random)] if picks.random else []
        pictures = (
            Markup('<div><h4>{}</h4><div class="picked">{}</div></div>').format(
                title, Markup("\n").join(_draw_picks(entries, top.score))
            )
            for title, entries in groups
        )
        shown: list[Block] = [
            Interactive(Markup('<div class="picks">{}</div>').format(Markup("").join(pictures))),
            section.note(f"The number below each map is its {score.label} score{chance}."),
        ]
        if top is picks.top[0]:
            yield from shown
        else:
            yield Fold(f"Top heads by {score.label}", shown)


def _draw_picks(entries: Iterable[MapEntry], score: str) -> Iterator[Markup]:
    for entry in entries:
        value = entry.scores[score][0][0] if score in entry.scores else None
        caption = Markup("<span>{}</span>{}").format(entry.arm, format_number(value, 2))
        yield _draw_head(entry, *map_archive.unpack_maps(entry), 0, 0, caption)
