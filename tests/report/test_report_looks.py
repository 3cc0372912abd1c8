"""A claim's path: every look, its boundary, and where it was passed, on the page, in Markdown and in W&B."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, claimed, experiment, provenance, write_runs

from attnlab import stats
from attnlab.report.build import build, waiting
from attnlab.report.charts.paths import paths
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import _deciding, markdown
from attnlab.report.schema import Report
from attnlab.report.tables import looks
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts import claims
from attnlab.report.verdicts.bases import BASES
from attnlab.report.verdicts.evidence import Found, Step
from attnlab.sweep import wandb_tables

LOOKS = [4, 8, 12, 16]
CLAIMS = [
    {"says": "gqa costs little", "arm": "gqa", "is": "below", "threshold": 0.03},
    {"says": "gqa is much the same", "arm": "gqa", "is": "within", "threshold": 0.03},
    {"says": "mqa costs something", "arm": "mqa", "is": "above", "threshold": 0.0},
    {"says": "mqa costs a lot", "arm": "mqa", "is": "above", "threshold": 0.05},
    {
        "says": "gqa has much the same loss",
        "arm": "gqa",
        "compare": "ratio",
        "is": "below",
        "threshold": 1.02,
    },
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """`told(looks)`: the report of one sweep under a plan of looks."""
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.018, seeds=list(range(16)))
    runs = write_runs(tmp_path_factory.mktemp("runs"), world)
    return lambda looks: build(experiment(world, looks=looks, claims=CLAIMS), runs, None, provenance())


@pytest.fixture(scope="module")
def report(told):
    return told(LOOKS)


def test_what_passes_the_boundary_of_a_look_is_what_its_interval_decides(report):
    decided = [claim.looks.decided for claim in report.verdict.claims]
    assert None in decided and 2 in decided, "a path that ends and one that stays open"  # noqa: PT018
    for claim in report.verdict.claims:
        for row in looks.rows(claim):
            if row.seen is None:
                assert row.support is row.refute is None
                continue
            impossible = None not in row.support and row.support[0] >= row.support[1]
            sides = [(row.refute, False, (-1, 1))]
            sides += [] if impossible else [(row.support, True, (1, -1))]
            for ends, holds, signs in sides:
                for end, sign in zip(ends, signs, strict=True):
                    if end is None:
                        continue
                    answers = [
                        stats.holds(claim.region, _moved(claim, row.seen, end + sign * nudge))
                        for nudge in (1e-9, -1e-9)
                    ]
                    assert answers == [holds, None]


def _moved(claim, look, to):
    """The interval of a look, had its estimate been another."""
    if claim.compare == "ratio":
        return look.low * to / look.estimate, look.high * to / look.estimate
    return look.low + to - look.estimate, look.high + to - look.estimate


def test_a_picture_has_every_look_and_fills_the_one_that_decided(report):
    drawn = paths(report, 560)
    assert list(drawn) == [f"looks{number}" for number in range(1, 6)]
    for claim, [figure] in zip(report.verdict.claims, drawn.values(), strict=True):
        made = claim.looks.made
        marks = figure.spec["data"]["values"]
        assert [(mark["seeds"], mark["estimate"]) for mark in marks] == [
            (look.seeds, look.estimate) for look in made
        ]
        filled = [mark["seeds"] for mark in marks if mark["decided"]]
        decided = claim.looks.decided
        assert filled == ([LOOKS[decided - 1]] if decided else [])
        assert (marks[-1]["low"], marks[-1]["high"]) == (made[-1].low, made[-1].high)
        assert describe_claim(claim) in figure.label
        last = looks.rows(claim)[-1]
        idle = [] if len(made) == 4 else [{"seeds": last.seeds, "state": last.state}]
        assert figure.spec["layer"][-1]["data"]["values"] == idle
        assert ("not needed" in figure.label) == bool(decided and decided < 4)


@pytest.mark.usefixtures("blank")
def test_the_page_and_the_markdown_tell_every_look(report):
    page, short = html(report), markdown(report, {}).replace("\\", "")
    for claim in report.verdict.claims:
        for row in looks.rows(claim):
            cells = looks.cells(claim, row)
            assert f"| {' | '.join(cells)} |" in short
            assert all(f">{words}</td>" in page for words in cells[3:])


@pytest.mark.usefixtures("blank")
def test_one_look_that_was_fixed_beforehand_has_no_path_and_one_at_any_time_has(told):
    report = told("anytime")
    assert all("one analysis, 16 seeds" in figure.label for [figure] in paths(report, 560).values())
    assert html(report).count("Interim analyses of claim") == len(CLAIMS)
    report = told(None)
    assert paths(report, 560) == {}
    assert "Interim analyses" not in html(report) + markdown(report, {})
    assert wandb_tables.paths(report)[1] == []


def test_an_interval_without_an_end_is_drawn_to_the_edge(report):
    claim = report.verdict.claims[2]
    last = claim.looks.made[-1].model_copy(update={"high": None})
    made = claim.looks.model_copy(update={"made": [*claim.looks.made[:-1], last]})
    claim = claim.model_copy(update={"looks": made})
    verdict = report.verdict.model_copy(update={"claims": [claim]})
    [[figure]] = paths(report.model_copy(update={"verdict": verdict}), 560).values()
    assert math.isfinite(figure.spec["data"]["values"][-1]["high"])
    assert looks.interval(claim, looks.rows(claim)[len(claim.looks.made) - 1]).startswith("at least +")


def test_w_and_b_gets_a_row_for_every_look_that_was_made(report):
    columns, rows = wandb_tables.paths(report)
    made = [look for claim in report.verdict.claims for look in claim.looks.made]
    assert len(rows) == len(made)
    at = columns.index("estimate")
    assert [row[at] for row in rows] == [look.estimate for look in made]
    assert {row[-1] for row in rows} == {"INCONCLUSIVE", "SUPPORTED"}


def test_no_seed_more_is_needed_for_what_is_counted_or_decided(tmp_path):
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.002, seeds=[0, 1, 2, 3])
    runs = [run if run.seed < 3 else replace(run, record=None) for run in write_runs(tmp_path, world)]
    kv = {"metric": "kv_bytes_per_token", "compare": "ratio", "is": "below", "threshold": 0.51}
    asked = experiment(world, looks=[3, 4], claims=[
        {"says": "surely", "arm": "gqa", "is": "below", "threshold": 1.0},
        {"says": "halved", "arm": "gqa", **kv},
        {"says": "perhaps", "arm": "mqa", "is": "above", "threshold": 0.06},
    ])  # fmt: skip
    rows = waiting(asked, runs)
    assert [(row.verdict, row.seeds, row.open) for row in rows] == [
        ("SUPPORTED", 3, False), ("SUPPORTED", 3, False), ("INCONCLUSIVE", 4, True),
    ]  # fmt: skip
    before = waiting(asked, [replace(run, record=None) for run in runs])
    assert [(row.seeds, row.open) for row in before] == [(3, True)] * 3, "they wait for their first look"


def few(folder: Path, world: World, **changes: Any) -> Report:
    asked = experiment(world, looks=[4, 8], claims=[], **changes)
    return build(asked, write_runs(folder, world), None, provenance())


@pytest.mark.parametrize(("finished", "told"), [(3, 3), (4, 4), (6, 4), (8, 8)])
def test_an_effect_has_the_seeds_of_the_last_look_whole(tmp_path: Path, finished: int, told: int) -> None:
    seeds = list(range(8))
    status = {("gqa", seed): "missing" for seed in seeds[finished:]}
    [row] = few(tmp_path, World({"mha": 0.0, "gqa": 0.004}, seeds=seeds, status=status)).effects
    assert row.n == told
    assert (row.low is None) == (finished < 4), "no interval is read before its look"


def test_runs_that_the_looks_did_not_come_to_are_in_no_figure(tmp_path: Path) -> None:
    """They lie in the store for another experiment, or as what others go on from."""
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=list(range(8)))
    found = few(tmp_path, world, wanted={"mha": 8, "gqa": 4})
    assert found.effects[0].n == 4
    assert len([run for run in found.runs if run.arm == "gqa"]) == 4


def test_an_open_claim_about_shares_says_how_many_seeds_would_decide_it():
    claim = claimed(0.0, 0.2, "INCONCLUSIVE", **{"is": "above", "threshold": 0.0, "metric": "val/accuracy"})
    sample = stats.Shares([0.25, 0.0, 0.25, 0.0])
    decision = stats.Decision(4, 0.125, *sample.interval(0.95), 0.95, 0.05, None, None, exact=False)
    found = Found(decision, sample, BASES["e-value"], (Step(4, decision),), [])
    told = claims._deciding(claim, found)
    assert told.ends == "support"
    assert 4 < told.seeds < 100
    words = "seeds in all would support it in 80 % of such sweeps, if the truth is as it was seen."
    assert _deciding(told) == f"about {told.seeds} {words}"
    assert claims._deciding(claim, replace(found, decision=replace(decision, holds=True))) is None
