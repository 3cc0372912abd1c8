"""Interim results of a claim: each analysis, its boundary, and the deciding one, on the page, in Markdown and
W&B.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, build_claim_result, build_context, build_provenance, write_runs

from attnlab import stats
from attnlab.report.charts.interim_figures import build_interim_chart
from attnlab.report.number_format import format_bounds, format_number, format_pvalue
from attnlab.report.pages.html import render_html
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.report_builder import build_report, compute_claim_statuses
from attnlab.report.schema import Report
from attnlab.report.tables import interim_analyses
from attnlab.report.tables.wording import (
    describe_claim,
    format_decision,
    format_interval_method,
    format_required_seeds,
)
from attnlab.report.verdicts import claim_results
from attnlab.report.verdicts.claim_decisions import AnalysisStep, ClaimDecision
from attnlab.report.verdicts.evidence_bases import BASES
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
def make_report(tmp_path_factory):
    """Return a function that reports one sweep under a plan of interim analyses."""
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.018, seeds=list(range(16)))
    runs = write_runs(tmp_path_factory.mktemp("runs"), world)
    return lambda looks: build_report(
        build_context(world, looks=looks, claims=CLAIMS), runs, None, build_provenance()
    )


@pytest.fixture(scope="module")
def report(make_report):
    return make_report(LOOKS)


def test_boundary_agrees_with_the_decision_of_the_interval(report):
    decided = [claim.interim_analyses.decided_at for claim in report.verdict.claims]
    assert None in decided and 2 in decided, "a path that ends and one that stays open"  # noqa: PT018
    for claim in report.verdict.claims:
        for row in interim_analyses.build_analysis_rows(claim):
            if row.analysis is None:
                assert row.support_bounds is row.refute_bounds is None
                continue
            impossible = None not in row.support_bounds and row.support_bounds[0] >= row.support_bounds[1]
            sides = [(row.refute_bounds, False, (-1, 1))]
            sides += [] if impossible else [(row.support_bounds, True, (1, -1))]
            for bounds, holds, signs in sides:
                for bound, sign in zip(bounds, signs, strict=True):
                    if bound is None:
                        continue
                    decisions = [
                        stats.is_inside_region(
                            claim.region, _shift_interval(claim, row.analysis, bound + sign * nudge)
                        )
                        for nudge in (1e-9, -1e-9)
                    ]
                    assert decisions == [holds, None]


def _shift_interval(claim, analysis, estimate):
    """Shift the interval of an analysis to another estimate."""
    if claim.compare == "ratio":
        return analysis.low * estimate / analysis.estimate, analysis.high * estimate / analysis.estimate
    return analysis.low + estimate - analysis.estimate, analysis.high + estimate - analysis.estimate


def test_figure_shows_every_analysis_and_fills_the_deciding_one(report):
    for number, claim in enumerate(report.verdict.claims, 1):
        chart = build_interim_chart(claim, number)
        completed, spec = claim.interim_analyses.completed, chart.draw(width=560)
        marks = spec["data"]["values"]
        assert [(mark["seeds"], mark["estimate"]) for mark in marks] == [
            (analysis.seeds, analysis.estimate) for analysis in completed
        ]
        filled = [mark["seeds"] for mark in marks if mark["decided"]]
        decided = claim.interim_analyses.decided_at
        assert filled == ([LOOKS[decided - 1]] if decided else [])
        assert (marks[-1]["low"], marks[-1]["high"]) == (completed[-1].low, completed[-1].high)
        assert describe_claim(claim) in chart.label
        last = interim_analyses.build_analysis_rows(claim)[-1]
        labels = [] if len(completed) == 4 else [{"seeds": last.seeds, "state": last.state}]
        assert spec["layer"][-1]["data"]["values"] == labels
        assert ("not needed" in chart.label) == bool(decided and decided < 4)


@pytest.mark.usefixtures("blank_charts")
def test_page_and_markdown_show_every_interim_analysis(report):
    page, markdown = render_html(report), render_markdown(report, {}).replace("\\", "")
    assert "95% interval (critical value of the interim analyses)" in page
    for claim in report.verdict.claims:
        for row in interim_analyses.build_analysis_rows(claim):
            cells = interim_analyses.build_analysis_cells(claim, row)
            assert f"| {' | '.join(cells)} |" in markdown
            assert all(f">{words}</td>" in page for words in cells[3:])


@pytest.mark.usefixtures("blank_charts")
@pytest.mark.parametrize(
    ("looks", "reason"),
    [(LOOKS, "allow for all interim analyses"), ("anytime", "are valid after any number of seeds")],
)
def test_arms_table_says_why_intervals_of_effects_are_wide(make_report, looks, reason):
    note = f"The 95% CIs of Δ {reason}, so they are wider than those of a single analysis; the CIs of the "
    note += "means are not widened."
    report = make_report(looks)
    markdown = render_markdown(report)
    assert note in render_html(report)
    assert markdown.index(note) < markdown.index("| arm | val/loss")
    assert "are wider than" not in render_markdown(make_report(None))


@pytest.mark.usefixtures("blank_charts")
def test_fixed_design_has_no_interim_results_and_anytime_valid_has(make_report):
    report = make_report("anytime")
    assert all(
        "single analysis, 16 seeds" in build_interim_chart(claim, 1).label for claim in report.verdict.claims
    )
    assert render_html(report).count("Interim analyses of claim") == len(CLAIMS)
    assert "95% interval (anytime-valid: it holds after any number of seeds)" in render_html(report)
    report = make_report(None)
    assert "95% interval (paired t)" in render_html(report)
    assert not any(build_interim_chart(claim, 1) for claim in report.verdict.claims)
    assert "Interim analyses" not in render_html(report) + render_markdown(report, {})
    assert wandb_tables.build_interim_rows(report)[1] == []


def test_unbounded_interval_is_drawn_to_the_edge(report):
    claim = report.verdict.claims[2]
    last = claim.interim_analyses.completed[-1].model_copy(update={"high": None})
    analyses = claim.interim_analyses.model_copy(
        update={"completed": [*claim.interim_analyses.completed[:-1], last]}
    )
    claim = claim.model_copy(update={"interim_analyses": analyses})
    assert math.isfinite(build_interim_chart(claim, 1).draw(width=560)["data"]["values"][-1]["high"])
    assert interim_analyses.format_analysis_interval(
        claim, interim_analyses.build_analysis_rows(claim)[len(claim.interim_analyses.completed) - 1]
    ).startswith("at least +")


def test_wandb_gets_a_row_for_every_completed_analysis(report):
    columns, rows = wandb_tables.build_interim_rows(report)
    completed = [analysis for claim in report.verdict.claims for analysis in claim.interim_analyses.completed]
    assert len(rows) == len(completed)
    index = columns.index("estimate")
    assert [row[index] for row in rows] == [analysis.estimate for analysis in completed]
    assert {row[-1] for row in rows} == {"INCONCLUSIVE", "SUPPORTED"}


def test_counted_or_decided_claims_need_no_more_seeds(tmp_path):
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.002, seeds=[0, 1, 2, 3])
    runs = [run if run.seed < 3 else replace(run, result=None) for run in write_runs(tmp_path, world)]
    cache_claim = {"metric": "kv_bytes_per_token", "compare": "ratio", "is": "below", "threshold": 0.51}
    context = build_context(world, looks=[3, 4], claims=[
        {"says": "surely", "arm": "gqa", "is": "below", "threshold": 1.0},
        {"says": "halved", "arm": "gqa", **cache_claim},
        {"says": "perhaps", "arm": "mqa", "is": "above", "threshold": 0.06},
    ])  # fmt: skip
    statuses = compute_claim_statuses(context, runs)
    assert [(status.verdict, status.required_seeds, status.is_pending) for status in statuses] == [
        ("SUPPORTED", 3, False), ("SUPPORTED", 3, False), ("INCONCLUSIVE", 4, True),
    ]  # fmt: skip
    assert [(status.completed_analyses, status.decided_by_seeds) for status in statuses] == [
        (1, True), (0, False), (1, True),
    ]  # fmt: skip
    statuses_before = compute_claim_statuses(context, [replace(run, result=None) for run in runs])
    assert [(status.required_seeds, status.is_pending) for status in statuses_before] == [(3, True)] * 3, (
        "they wait for their first look"
    )


def make_effects_report(folder: Path, world: World, **changes: Any) -> Report:
    context = build_context(world, looks=[4, 8], claims=[], **changes)
    return build_report(context, write_runs(folder, world), None, build_provenance())


@pytest.mark.parametrize(("finished", "counted"), [(3, 3), (4, 4), (6, 4), (8, 8)])
def test_effect_uses_the_seeds_of_the_last_complete_analysis(
    tmp_path: Path, finished: int, counted: int
) -> None:
    seeds = list(range(8))
    status = {("gqa", seed): "missing" for seed in seeds[finished:]}
    [row] = make_effects_report(
        tmp_path, World({"mha": 0.0, "gqa": 0.004}, seeds=seeds, status=status)
    ).effects
    assert row.n == counted
    assert (row.low is None) == (finished < 4), "no interval is read before its look"


def test_runs_beyond_the_reached_analyses_are_excluded(tmp_path: Path) -> None:
    """Such runs exist for another experiment, or as parents of others."""
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=list(range(8)))
    report = make_effects_report(tmp_path, world, required_seeds={"mha": 8, "gqa": 4})
    assert report.effects[0].n == 4
    assert len([run for run in report.runs if run.arm == "gqa"]) == 4


@pytest.mark.usefixtures("blank_charts")
def test_page_and_markdown_show_decisions_and_outlier_seeds(report):
    first, *others = report.verdict.claims
    identity = first.model_copy(update={"identity": True})
    claims = [first.model_copy(update={"outliers": [5, 11]}), *others, identity]
    verdict = report.verdict.model_copy(update={"claims": claims})
    page, markdown = (
        render(report.model_copy(update={"verdict": verdict})).replace("\\", "")
        for render in (render_html, render_markdown)
    )
    decision, left_out = first.decision, first.leave_one_out
    cells = [
        f"{decision.n} of {first.planned}",
        format_number(decision.estimate, 3, sign=True),
        format_decision(first),
    ]
    cells += [format_pvalue(decision.p), format_pvalue(decision.p_holm)]
    assert f"| 1. gqa vs mha, val/loss: margin +0.03 | {' | '.join(cells)} |" in markdown
    means = format_bounds(left_out.low, left_out.high, first.digits)
    sign_flip = f"{format_pvalue(first.sign_flip.p)} ({format_pvalue(first.sign_flip.floor)})"
    assert f"| 1. gqa vs mha | {sign_flip} | {means} |" in markdown
    assert "| 5, 11 |" in markdown
    assert "6. gqa vs mha, val/loss" not in markdown, "an identity is not tested"
    note = (
        "Outlier seeds, which count in every number: claim 1, gqa vs mha: 5, 11 (mean with any one seed left "
    )
    for text in (f"{note}out: {means}).", "Sensitivity analyses; they never change a verdict."):
        assert text in page
        assert text in markdown


@pytest.mark.usefixtures("blank_charts")
def test_adjusted_p_values_name_their_family(report):
    page, markdown = render_html(report), render_markdown(report)
    assert "| p of Δ = 0 (Holm over arms) |" in markdown
    headers = [
        f'<th scope="col" class="num">p{p} (Holm over {of})</th>'
        for p, of in ((" of Δ = 0", "arms"), ("", "claims"))
    ]
    assert [page.count(header) for header in headers] == [1, 1]
    assert "p (Holm)" not in page + markdown


def test_interval_method_names_what_replaces_t(report):
    effects = [report.effects[0].model_copy(update={"kind": kind}) for kind in ("share", "censored", "seeds")]
    replaced = "; for proportions e-values; for steps to a threshold ranks, of the median"
    assert format_interval_method([4, 8], effects) == f"critical value of the interim analyses{replaced}"
    assert format_interval_method(None, effects[2:]) == "paired t"


def test_inconclusive_claim_about_proportions_has_required_seeds():
    claim = build_claim_result(
        0.0, 0.2, "INCONCLUSIVE", **{"is": "above", "threshold": 0.0, "metric": "val/accuracy"}
    )
    evidence = stats.ProportionDifferences([0.25, 0.0, 0.25, 0.0])
    decision = stats.Decision(4, 0.125, *evidence.interval(0.95), 0.95, 0.05, None, None, exact=False)
    claim_decision = ClaimDecision(decision, evidence, BASES["e-value"], (AnalysisStep(4, decision),), [])
    required_seeds = claim_results._estimate_required_seeds(claim, claim_decision)
    assert required_seeds.ends == "support"
    assert 4 < required_seeds.seeds < 100
    text = "seeds in total would support it with 80% power at the observed effect."
    estimated = claim.model_copy(update={"required_seeds": required_seeds})
    assert format_required_seeds(estimated) == f"about {max(required_seeds.seeds, 7)} {text}"
    assert (
        claim_results._estimate_required_seeds(
            claim, replace(claim_decision, decision=replace(decision, holds=True))
        )
        is None
    )
