"""Steps and interactions: claims in one short form, estimated over common seeds, with a picture each."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from attnlab.report import section
from attnlab.report.charts import vega_layers
from attnlab.report.charts.svg import INK
from attnlab.report.charts.vega_layers import Spec, build_layer, build_nominal_channel
from attnlab.report.number_format import MINUS, append_unit, format_difference, format_number
from attnlab.report.schema import ClaimGroup, GroupEffect, Report
from attnlab.report.section import Block, Cell, Chart, Column, Heading, Row, Section, Table
from attnlab.report.sections import PageContext
from attnlab.report.tables.wording import format_estimate
from attnlab.store.experiment_schema import format_sides

PLACE: Final = 30
ROW_HEIGHT = 56
FRAME = 82  # height of axis, legend and title
EXPLANATIONS = {
    "chain": "Each bar starts where the step before ends, and the last is the difference of both ends, "
    "the sum of the steps",
    "interaction": "Each change alone, and beside the other; the interaction is the difference between "
    "the two. Parallel lines mean that the changes add up",
    "leave_one_out": "The effect of leaving out one part, the most harmful omission first",
}
EFFECT_STYLES = {
    "better": (vega_layers.GREEN, "circle"),
    "worse": (vega_layers.VERMILION, "cross"),
    "not distinguishable from 0": (vega_layers.GRAY, "diamond"),
    "lower": (vega_layers.BLUE, "triangle-down"),
    "higher": (vega_layers.PURPLE, "triangle-up"),
}


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of claims in short form, if there are any."""
    groups = enumerate(report.claim_groups, 1)
    blocks = [block for number, group in groups for block in _build_group(group, number)]
    return Section("contrasts", "Steps and interactions", blocks) if blocks else None


def _build_group(group: ClaimGroup, number: int) -> list[Block]:
    """Heading, explanation, chart where there is an estimate, and table."""
    heading = {
        "chain": f"Steps from {group.arms[0]} to {group.arms[-1]}",
        "interaction": "Alone and together: " + " and ".join(group.arms[1:3]),
        "leave_one_out": f"{group.arms[0]} with one part left out",
    }[group.kind]
    heading = f"{heading}: {group.label}"
    n = len(group.seeds)
    explanation = (
        f"{EXPLANATIONS[group.kind]}. Means over the {n} seed{'' if n == 1 else 's'} that all of these arms "
        f"have finished, with {100 * group.level:.0f}% intervals; the claims have the verdicts, which "
        "control the error over all of them."
    )
    effects = _rank_effects(group)
    label = f"{heading}. " + "; ".join(
        f"{effect.name}: {_format_effect(group, effect)}" for effect in effects
    )
    draw = partial(_draw_interaction, group) if group.kind == "interaction" else partial(_draw_bars, group)
    rows = [
        Row(
            [
                effect.name,
                format_difference(*format_sides(effect.weights)),
                Cell(_format_effect(group, effect), effect.mean, effect.low, effect.high, kind="number"),
                section.number(group.level),
                section.number(n),
            ]
        )
        for effect in effects
    ]
    columns = [
        Column("effect"), Column("difference"), Column("estimate"), Column("", "level"), Column("", "n"),
    ]  # fmt: skip
    return [
        Heading(heading),
        section.note(explanation),
        *(section.note(f"{note}.") for note in group.notes),
        *([Chart(f"contrasts{number}", label, draw)] if any(e.mean is not None for e in effects) else []),
        Table(f"contrasts.{number}", append_unit(heading, group.unit), columns, rows, is_sortable=False),
    ]


def _format_effect(group: ClaimGroup, effect: GroupEffect) -> str:
    """An effect with its interval, as in `-0.012 nats, 95% CI [-0.020, -0.004]`."""
    return format_estimate(effect.mean, effect.low, effect.high, group.level, group.digits, unit=group.unit)


def _rank_effects(group: ClaimGroup) -> Sequence[GroupEffect]:
    """The effects of a group, those of parts left out by size, the most harmful omission first."""
    if group.kind != "leave_one_out":
        return group.effects
    sign = -1 if group.direction == "higher" else 1
    return sorted(group.effects, key=lambda effect: -sign * (effect.mean or 0.0))


def _classify(group: ClaimGroup, effect: GroupEffect) -> str:
    if effect.low is None or effect.high is None or effect.low <= 0 <= effect.high:
        return "not distinguishable from 0"
    is_lower = effect.high < 0
    if group.direction is None:
        return "lower" if is_lower else "higher"
    return "better" if is_lower == (group.direction == "lower") else "worse"


def _build_bars(group: ClaimGroup) -> list[Spec]:
    """A row per effect, which starts at 0, or in a chain where the step before ends."""
    rows = list[Spec]()
    start = 0.0
    for i, effect in enumerate(_rank_effects(group)):
        if effect.mean is None:
            continue
        is_step = group.kind == "chain" and i < len(group.effects) - 1
        begin = start if is_step else 0.0
        rows.append(
            {
                "label": effect.name,
                "begin": begin,
                "end": begin + effect.mean,
                "low": None if effect.low is None else begin + effect.low,
                "high": None if effect.high is None else begin + effect.high,
                "state": _classify(group, effect),
                "text": format_number(effect.mean, group.digits, sign=True),
                "description": f"{effect.name}: {_format_effect(group, effect)}",
            }
        )
        start = begin + effect.mean if is_step else start
    return rows


def _draw_bars(group: ClaimGroup, *, width: int) -> Spec:
    """Horizontal bars with intervals; the number stands above the end of the bar."""
    rows = _build_bars(group)
    values = [row[key] for row in rows for key in ("begin", "end", "low", "high")]
    domain = vega_layers.compute_domain([*values, 0.0], pad=0.12)
    for row in rows:
        row["place"] = vega_layers.place_text(row["text"], row["end"], domain, width - 150)
    x = vega_layers.build_quantitative_channel(
        "begin",
        domain,
        append_unit(f"{group.label} {MINUS} that of {group.arms[0]}", group.unit),
        tickCount=vega_layers.count_ticks(width),
    )
    y = build_nominal_channel("label", labelLimit=130 if width < 400 else 200)
    present = {row["state"] for row in rows}
    states = {state: style for state, style in EFFECT_STYLES.items() if state in present}
    color = vega_layers.build_style_channels("state", states)["color"]
    color = {**color, "legend": {"title": None, "orient": "top"}}
    bar = {"opacity": 0.45, "height": {"band": 0.5}}
    tick = {"thickness": 3, "height": 22, "color": INK}
    layers: list[Spec | None] = [
        vega_layers.build_reference_line("x", 0),
        build_layer("bar", bar, x=x, x2="end", y=y, color=color),
        build_layer("rule", {"strokeWidth": 2}, x={**x, "field": "low"}, x2="high", y=y),
        build_layer("tick", tick, x={**x, "field": "end"}, y=y, description="description"),
        build_layer("text", {"dy": -19, "color": INK}, x={**x, "field": "place"}, y=y, text="text"),
    ]
    return vega_layers.build_chart(width, FRAME + ROW_HEIGHT * len(rows), layers, rows)


def _draw_interaction(group: ClaimGroup, *, width: int) -> Spec:
    """Means of the four arms: parallel lines mean that the changes add up."""
    both, one, other, baseline = group.arms
    names = [f"without {one}", f"with {one}"]
    rows = [
        {
            "at": names[has_one],
            "line": f"with {other}" if has_other else f"without {other}",
            "value": group.means[arm],
            "text": format_number(group.means[arm], group.digits + 1),
            "description": f"{arm}: {format_number(group.means[arm], group.digits + 1)}",
        }
        for arm, has_one, has_other in (
            (baseline, False, False), (one, True, False), (other, False, True), (both, True, True),
        )
        if group.means[arm] is not None
    ]  # fmt: skip
    x = {**build_nominal_channel("at", labelAngle=0), "scale": {"domain": names, "padding": 0.35}}
    domain = vega_layers.compute_domain([*group.means.values()], pad=0.2)
    y = vega_layers.build_quantitative_channel("value", domain, append_unit(group.label, group.unit))
    styles = {
        f"without {other}": (vega_layers.GRAY, "circle"),
        f"with {other}": (vega_layers.BLUE, "square"),
    }
    legend = {"title": None, "orient": "top"}
    channels = vega_layers.build_style_channels("line", styles)
    code = {channel: {**encoding, "legend": legend} for channel, encoding in channels.items()}
    dot = {"filled": True, "size": 90, "opacity": 1}
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 2}, x=x, y=y, color=code["color"]),
        build_layer("point", dot, x=x, y=y, description="description", **code),
        build_layer("text", {"dy": -12, "color": INK}, x=x, y=y, text="text"),
    ]
    return vega_layers.build_chart(min(width, 420), 270, layers, rows)
