"""Charts carry words and shapes beside colours, follow the reader's scheme, and repeat exactly."""

import re

import pytest
from worlds import Made

from attnlab.report.charts import charts, figures, marks, series_figures
from attnlab.report.charts.svg import CSS, svg
from attnlab.report.schema import Report


def everything(report: Report) -> list[figures.Figure]:
    along = [getattr(series_figures, name) for name in ("curves", "positions", "lengths", "strips")]
    draw = [figures.slopes, figures.tradeoffs, *along]
    found = [figure for one in draw for figure in one(report)]
    return [*figures.verdicts(report, 700), *figures.forests(report, 700), *found]


def test_every_chart_says_what_it_shows_and_follows_the_scheme(made: Made) -> None:
    for figure in everything(made["good"][0]):
        drawn = figure.svg()
        assert re.match(r'<svg [^>]*aria-label="[^"]{20,}"', drawn), figure.name
        assert "currentColor" in drawn
        assert "var(--muted)" in drawn
        assert not any(placeholder in drawn for placeholder in CSS)
        assert len(drawn) < 60_000, figure.name


def test_the_same_chart_is_the_same_bytes(made: Made) -> None:
    figure = figures.tradeoffs(made["good"][0])[0]
    assert figure.svg() == figure.svg()


def test_ids_are_told_apart_by_the_charts_name() -> None:
    spec = {
        "data": {"values": [{"x": 1}]},
        "mark": {"type": "line", "clip": True},
        "encoding": {"x": {"field": "x"}},
    }
    names = [set(re.findall(r'id="([^"]+)"', svg(spec, name=name, label="a label"))) for name in ("a", "b")]
    assert names[0]
    assert not names[0] & names[1]


def test_what_is_drawn_for_a_claim_is_the_interval_that_decided_it(made: Made) -> None:
    report = made["good"][0]
    rows = figures.verdicts(report, 700)[0].spec["data"]["values"]
    for row, claim in zip(rows, report.verdict.claims, strict=False):
        assert (row["low"], row["high"]) == (claim.decision.low, claim.decision.high)


def test_arms_differ_in_colour_or_shape_and_the_baseline_is_grey() -> None:
    arms = [f"arm{i}" for i in range(13)]
    found = marks.style(arms, "arm3")
    assert list(found) == arms
    assert len(set(found.values())) == 13
    assert found["arm3"] == (marks.GREY, "circle")


@pytest.mark.parametrize("values", [[], [None], [1.0], [0.0, 0.0]])
def test_a_domain_never_has_zero_width(values: list) -> None:
    low, high = marks.span(values)
    assert low < high


def test_too_many_heads_become_ranges(made: Made) -> None:
    report = made["good"][0]
    [score, *_] = report.heads.scores
    many = score.model_copy(update={"runs": score.runs * 8})
    heads = report.heads.model_copy(update={"scores": [many]})
    report = report.model_copy(update={"heads": heads})
    drawn = series_figures.strips(report)[0].spec["data"]["values"]
    assert len(drawn) == 3 * 2
    assert all(p["low"] <= p["q1"] <= p["value"] <= p["q3"] <= p["high"] for p in drawn)


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (0.01, None, "[+0.010, \N{INFINITY})"),
        (None, None, ""),
        (None, 0.05, "(\N{MINUS SIGN}\N{INFINITY}, +0.050]"),
    ],
)
def test_an_interval_without_an_end_is_drawn_to_the_edge_and_written_as_open(
    made: Made, low: float | None, high: float | None, written: str
) -> None:
    report = made["good"][0]
    [claim, *others] = report.verdict.claims
    decision = claim.decision.model_copy(update={"estimate": 0.03, "low": low, "high": high})
    open_ = claim.model_copy(update={"decision": decision})
    verdict = report.verdict.model_copy(update={"claims": [open_, *others]})
    report = report.model_copy(update={"verdict": verdict})
    [figure] = [one for one in figures.verdicts(report, 640) if one.name == "verdict0"]
    row = figure.spec["data"]["values"][0]
    left, right = figure.spec["layer"][2]["encoding"]["x"]["scale"]["domain"]
    assert row["low"] == (left if low is None else low)
    assert row["high"] == (right if high is None else high)
    assert row["text"].endswith(written)


def test_labels_of_points_that_crowd_are_told_apart() -> None:
    rows = [
        {"arm": arm, "x": x, "x_low": None, "x_high": None, "y": y, "y_low": None, "y_high": None}
        for arm, x, y in (("a", 1.0, 2.0), ("b", 1.0, 2.0), ("c", 1.0, 2.001), ("d", 5.0, 2.0))
    ]
    titles = {"x_title": "x", "y_title": "y"}
    spec = charts.tradeoff(rows, [], marks.style(list("abcd"), "a"), lower_x=True, named="abcd", **titles)
    tags = {row["arm"]: row["tag"] for row in spec["data"]["values"]}
    assert len({tags["a"], tags["b"], tags["c"]}) == 3
    assert tags["d"] == 2.0


def test_labels_of_many_points_at_one_place_take_no_room_from_the_plot() -> None:
    arms = [f"arm_{i}" for i in range(40)]
    rows = [
        {"arm": arm, "x": 1.0, "y": 2.0 + i / 100, **dict.fromkeys(("x_low", "x_high", "y_low", "y_high"))}
        for i, arm in enumerate(arms)
    ]
    titles = {"x_title": "x", "y_title": "y"}
    spec = charts.tradeoff(rows, [], marks.style(arms, arms[0]), lower_x=True, named=arms[:9], **titles)
    labelled = [row for row in spec["data"]["values"] if row["label"]]
    assert [row["arm"] for row in labelled] == arms[:9]
    [low, high] = spec["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert low < min(row["y"] for row in rows)
    assert max(row["tag"] for row in labelled) < high


def test_a_chart_is_the_same_whatever_was_drawn_before_it_in_this_process() -> None:
    spec = {
        "data": {"values": [{"a": 1, "b": 2}]}, "mark": {"type": "point", "clip": True},
        "encoding": {"x": {"field": "a", "type": "quantitative"}},
    }  # fmt: skip
    first, again = svg(spec, name="one", label="a point"), svg(spec, name="one", label="a point")
    assert "url(#one-0)" in first, "the chart has an id to keep"
    assert first == again
