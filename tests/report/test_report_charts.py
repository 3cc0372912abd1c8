"""Charts have text and shapes beside colors, follow the reader's color scheme, and are reproducible."""

import re

import pytest
from rendering import REFERENCES
from synthetic import replace_fields
from worlds import SyntheticReports

from attnlab.report.charts import comparison_figures, series_figures, tradeoff_figures, vega_layers
from attnlab.report.charts.svg import CSS_COLORS, render_svg
from attnlab.report.schema import Effect, Report, TradeoffPanel, load_report
from attnlab.report.section import Chart, Spec
from attnlab.report.tables.arm_columns import build_arm_columns
from attnlab.report.tables.wording import format_effect


def list_all_charts(report: Report) -> list[Chart]:
    return [
        *comparison_figures.build_verdict_charts(report),
        *comparison_figures.build_effect_charts(report),
        *comparison_figures.build_slope_charts(report),
        *tradeoff_figures.build_tradeoff_charts(report),
        *series_figures.build_curve_charts(report),
        *series_figures.build_length_charts(report),
        *series_figures.build_strip_charts(report),
    ]


def test_every_chart_has_a_description_and_follows_the_color_scheme(
    synthetic_reports: SyntheticReports,
) -> None:
    charts = list_all_charts(synthetic_reports["good"][0])
    assert [chart.name for chart in charts if chart.has_picture] == ["verdict", "effects"]
    for chart in charts:
        for name, spec in chart.list_specs().items():
            svg = render_svg(spec, name=name, label=chart.label)
            assert re.match(r'<svg [^>]*aria-label="[^"]{20,}"', svg), name
            assert "currentColor" in svg
            assert "var(--muted)" in svg
            assert not any(placeholder in svg for placeholder in CSS_COLORS)
            assert len(svg) < 60_000, name
            assert spec == chart.list_specs()[name], "drawing changes no data"


def test_arms_differ_in_color_or_shape_and_baseline_is_gray() -> None:
    arms = [f"arm{i}" for i in range(43)]
    styles = vega_layers.assign_styles(arms, "arm3")
    assert list(styles) == arms
    assert len(set(styles.values())) == 43
    assert styles["arm3"] == (vega_layers.GRAY, "circle")
    for values in ([], [None], [1.0], [0.0, 0.0]):
        low, high = vega_layers.compute_domain(values)
        assert low < high, "never a domain of zero width"


def test_many_heads_become_ranges(synthetic_reports: SyntheticReports) -> None:
    report = synthetic_reports["good"][0]
    heads = replace_fields(report.heads, scores=report.heads.scores[:1])
    report = replace_fields(report, heads=heads, runs=report.runs * 8)
    points = series_figures.build_strip_charts(report)[0].draw()["data"]["values"]
    assert len(points) == 3 * 2
    assert all(p["low"] <= p["q1"] <= p["value"] <= p["q3"] <= p["high"] for p in points)


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (0.01, 0.05, "[+0.010, +0.050]"),
        (0.01, None, "[+0.010, \N{INFINITY})"),
        (None, None, ""),
        (None, 0.05, "(\N{MINUS SIGN}\N{INFINITY}, +0.050]"),
    ],
)
def test_verdict_chart_shows_the_deciding_interval_unbounded_ones_to_the_edge(
    synthetic_reports: SyntheticReports, low: float | None, high: float | None, written: str
) -> None:
    report = synthetic_reports["good"][0]
    [claim, *others] = report.verdict.claims
    decision = replace_fields(claim.decision, estimate=0.03, low=low, high=high)
    open_ = replace_fields(claim, decision=decision)
    verdict = replace_fields(report.verdict, claims=[open_, *others])
    report = replace_fields(report, verdict=verdict)
    spec = comparison_figures.build_verdict_charts(report)[0].draw(width=640)
    row = spec["data"]["values"][0]
    left, right = spec["layer"][2]["encoding"]["x"]["scale"]["domain"]
    assert row["low"] == (left if low is None else low)
    assert row["high"] == (right if high is None else high)
    assert row["text"].endswith(written)


@pytest.mark.parametrize(("width", "ticks"), [(350, 4), (640, 6)])
def test_tick_labels_have_room(synthetic_reports: SyntheticReports, width: int, ticks: int) -> None:
    report = synthetic_reports["good"][0]
    builders = comparison_figures.build_effect_charts, comparison_figures.build_verdict_charts
    for spec in [chart.draw(width=width) for build in builders for chart in build(report)]:
        channels = [layer["encoding"].get("x", {}) for layer in spec["layer"]]
        axes = [channel["axis"] for channel in channels if "axis" in channel]
        assert {(axis["tickCount"], axis["labelSeparation"]) for axis in axes} == {(ticks, 4)}


def make_points(arms: list[str], spread: float) -> list[Spec]:
    ends = dict.fromkeys(("x_low", "x_high", "y_low", "y_high"))
    return [
        {"arm": arm, "x": 1.0 + spread * i, "y": 2.0 + 0.001 * (i % 3), **ends} for i, arm in enumerate(arms)
    ]


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.3])
def test_labels_overlap_neither_each_other_nor_other_points(spread: float) -> None:
    arms = ["mha", "gqa_with_half_the_heads", "mqa", "a_latent", "a_gated_delta_rule", "linear"]
    rows = make_points([*arms, "unlabeled"], spread)
    xs, ys = (vega_layers.compute_domain([row[key] for row in rows], 0.18) for key in "xy")
    placed, top = tradeoff_figures._place_labels(rows, xs, ys, arms)
    width, height = tradeoff_figures.PLOT_SIZE
    points, labels = {}, {}
    for row in placed:
        x, start = ((row[key] - xs[0]) / (xs[1] - xs[0]) * width for key in ("x", "start"))
        y, tag = ((row[key] - ys[0]) / (top - ys[0]) * height for key in ("y", "tag"))
        points[row["arm"]] = (x - 4, x + 4, y - 4, y + 4)
        if row["label"]:
            end = start + vega_layers.LETTER_WIDTH * len(row["label"])
            labels[row["label"]] = (start, end, tag + 5.5, tag + 16.5)
            assert -1e-9 <= start <= end <= width + 1e-9
            assert tag + 16.5 <= height
    overlaps = [
        (one, other)
        for one, a in labels.items()
        for other, b in (*labels.items(), *points.items())
        if a is not b and a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
    ]
    assert overlaps == []


def test_stacked_labels_take_no_space_from_the_plot() -> None:
    arms = [f"arm_{i}" for i in range(40)]
    rows = [row | {"y": 2.0 + i / 100} for i, row in enumerate(make_points(arms, 0.0))]
    panel = TradeoffPanel(
        key="x", label="x", unit="", digits=3, lower_is_better=True, note="", points=[], pareto_front=[]
    )
    styles = vega_layers.assign_styles(arms, arms[0])
    spec = tradeoff_figures.draw_tradeoff(panel, rows, [], styles, y_title="y", labeled_arms=arms[:9])
    labeled = [row for row in spec["data"]["values"] if row["label"]]
    assert [row["arm"] for row in labeled] == arms[:9]
    [low, high] = spec["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert low < min(row["y"] for row in rows)
    assert max(row["tag"] for row in labeled) < high


def test_chart_does_not_depend_on_earlier_charts() -> None:
    spec = {
        "data": {"values": [{"a": 1, "b": 2}]}, "mark": {"type": "point", "clip": True},
        "encoding": {"x": {"field": "a", "type": "quantitative"}},
    }  # fmt: skip
    first, repeated, other = (render_svg(spec, name=name, label="a point") for name in ("one", "one", "two"))
    assert "url(#one-0)" in first, "the chart has an id to keep"
    assert first == repeated
    assert "one-0" not in other, "ids are unique in a page"


@pytest.fixture(scope="module")
def report_of_three_seeds() -> Report:
    """A stored report with an accuracy whose t intervals end beyond 1."""
    return load_report(REFERENCES / "heads_by_task" / "report.json")


def test_intervals_of_proportions_stay_between_zero_and_one(report_of_three_seeds: Report) -> None:
    report = report_of_three_seeds
    [column] = [column for column in build_arm_columns(report) if column.label == "val/accuracy"]
    cells = column.cells.values()
    assert all(0 <= cell.low <= cell.mean <= cell.high <= 1 for cell in cells if cell.low is not None)
    assert column.cells["tpa"].high == 1, "its t interval ends at 1.73"
    [effect] = [row for row in report.effects if (row.metric, row.arm) == ("val/accuracy", "tpa")]
    assert -1 < effect.low < effect.high < 1
    by_t = replace_fields(effect, low=-1.2)
    assert "[−1.0" in format_effect(by_t)
    assert "[−1.2" in format_effect(replace_fields(by_t, kind="seeds"))
    spec = series_figures.build_length_charts(report)[0].draw()
    ends = [row[key] for row in spec["data"]["values"] for key in ("low", "high")]
    assert all(0 <= end <= 1 for end in ends if end is not None)
    assert Effect.model_validate(effect.to_dict()) == effect


def test_charts_show_each_of_three_seeds_and_none_of_more(
    report_of_three_seeds: Report, synthetic_reports: SyntheticReports
) -> None:
    report = report_of_three_seeds
    for [chart, *_] in (
        tradeoff_figures.build_tradeoff_charts(report),
        series_figures.build_length_charts(report),
    ):
        rings = chart.draw()["layer"][-1]["data"]["values"]
        assert {row["arm"] for row in rings} == set(report.experiment.arms)
        [x, *_] = (row["x"] for row in rings if row["arm"] == "tpa")
        assert len([row for row in rings if row["arm"] == "tpa" and row["x"] == x]) == 3
    more = tradeoff_figures.build_tradeoff_charts(synthetic_reports["good"][0])[0].draw()
    assert all("seed" not in str(layer.get("data")) for layer in more["layer"])
