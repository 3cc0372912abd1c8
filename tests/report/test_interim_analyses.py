"""Interim results of a claim: each analysis, its boundary, and the deciding one, on the page, in Markdown and
W&B.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from rendering import make_report as make_world_report
from rendering import read_table, render_texts
from synthetic import (
    World,
    build_claim_result,
    build_context,
    declare_claim,
    replace_fields,
    write_runs,
)

from attnlab import stats
from attnlab.report.charts.interim_figures import build_interim_chart
from attnlab.report.number_format import format_bounds, format_number, format_pvalue
from attnlab.report.report_builder import compute_claim_statuses
from attnlab.report.tables import interim_analyses
from attnlab.report.tables.wording import (
    describe_claim,
    format_interval_method,
    format_required_seeds,
)
from attnlab.report.verdicts import claim_results
from attnlab.report.verdicts.claim_decisions import AnalysisStep, ClaimDecision
from attnlab.report.verdicts.evidence_bases import BASES

LOOKS = [4, 8, 12, 16]
CLAIMS = [
    declare_claim("gqa costs little", "gqa", "below", 0.03),
    declare_claim("gqa is much the same", "gqa", "within", 0.03),
    declare_claim("mqa costs something", "mqa", "above", 0.0),
    declare_claim("mqa costs a lot", "mqa", "above", 0.05),
    declare_claim("gqa has much the same loss", "gqa", "below", 1.02, compare="ratio"),
]


@pytest.fixture(scope="module")
def make_report(tmp_path_factory):
    """Return a function that reports one sweep under a plan of interim analyses."""
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.018, seeds=list(range(16)))
    runs = write_runs(tmp_path_factory.mktemp("runs"), world)
    return lambda looks: make_world_report(runs, world, looks=looks, claims=CLAIMS)


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
        assert (marks[-1]["low"], marks[-1]["high"]) == (completed[-1].low, completed[-1].high)
        decided = claim.interim_analyses.decided_at
        assert [mark["seeds"] for mark in marks if mark["decided"]] == [LOOKS[i - 1] for i in [decided] if i]
        assert describe_claim(claim) in chart.label
        last = interim_analyses.build_analysis_rows(claim)[-1]
        labels = [] if len(completed) == 4 else [{"seeds": last.seeds, "state": last.state}]
        assert spec["layer"][-1]["data"]["values"] == labels
        assert ("not needed" in chart.label) == bool(decided and decided < 4)
        unbounded = replace_fields(completed[-1], high=None)
        claim = replace_fields(claim, interim_analyses__completed=[*completed[:-1], unbounded])
        drawn = build_interim_chart(claim, number).draw(width=560)["data"]["values"][-1]
        assert math.isfinite(drawn["high"]), "an unbounded interval ends at the edge"
        row = interim_analyses.build_analysis_rows(claim)[len(completed) - 1]
        assert interim_analyses.format_analysis_interval(claim, row).startswith("at least ")


def test_tables_hold_every_interim_analysis(report):
    _, markdown = render_texts(report)
    for number, claim in enumerate(report.verdict.claims, 1):
        completed = claim.interim_analyses.completed
        records = read_table(report, f"interim_analyses.{number}")
        assert [record["seeds"] for record in records] == LOOKS
        for record, analysis in zip(records, completed, strict=False):
            keys = ("estimate", "low", "high", "level")
            assert [record[key] for key in keys] == [getattr(analysis, key) for key in keys]
            boundary = f"| {record['supported_if']} | {record['refuted_if']} | "
            assert (
                format_number(analysis.estimate, claim.digits, sign=claim.compare == "difference") in markdown
            )
            assert boundary in markdown
        decided = claim.interim_analyses.decided_at
        outcomes = [record["outcome"] for record in records]
        assert outcomes[: len(completed)] == [
            claim.verdict if decided == index else "inconclusive" for index in range(1, len(completed) + 1)
        ]
        assert {record["estimate"] for record in records[len(completed) :]} <= {None}


@pytest.mark.parametrize(
    ("looks", "reason", "method"),
    [
        (LOOKS, "allow for all interim analyses", "critical value of the interim analyses"),
        (
            "anytime",
            "are valid after any number of seeds",
            "anytime-valid: it holds after any number of seeds",
        ),
        (None, "", "paired t"),
    ],
)  # fmt: skip
def test_design_is_told_beside_its_intervals(make_report, looks, reason, method):
    report = make_report(looks)
    note = f"The 95% CIs of Δ {reason}, so they are wider than those of a single analysis; the CIs of the "
    note += "means are not widened."
    page, markdown = render_texts(report)
    assert f"95% interval ({method})" in page
    for text in (page, markdown):
        assert (note in text) == bool(looks)
        assert ("are wider than" in text) == bool(looks)
        assert ("Interim analyses of claim" in text) == bool(looks)
    assert len(read_table(report, "interim_analyses.5")) == (4 if looks == LOOKS else looks == "anytime")
    charts = [build_interim_chart(claim, 1) for claim in report.verdict.claims]
    assert all("single analysis, 16 seeds" in chart.label for chart in charts if looks == "anytime")
    assert all(charts) if looks else not any(charts)


def test_counted_or_decided_claims_need_no_more_seeds(tmp_path):
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.002, seeds=[0, 1, 2, 3])
    runs = [run if run.seed < 3 else replace(run, result=None) for run in write_runs(tmp_path, world)]
    cache_claim = {"metric": "kv_bytes_per_token", "compare": "ratio", "is": "below", "threshold": 0.51}
    context = build_context(world, looks=[3, 4], claims=[
        declare_claim("surely", "gqa", "below", 1.0),
        {"says": "halved", "arm": "gqa", **cache_claim},
        declare_claim("perhaps", "mqa", "above", 0.06),
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


@pytest.mark.parametrize(("finished", "required", "counted"), [(3, 8, 3), (6, 8, 4), (8, 8, 8), (8, 4, 4)])
def test_effect_uses_the_seeds_of_the_last_complete_analysis(
    tmp_path: Path, finished: int, required: int, counted: int
) -> None:
    """Runs beyond it may exist for another experiment, or as parents of others."""
    status = {("gqa", seed): "missing" for seed in range(finished, 8)}
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=list(range(8)), status=status)
    needed = {"required_seeds": {"mha": 8, "gqa": required}}
    report = make_world_report(tmp_path, world, looks=[4, 8], claims=[], **needed)
    [row] = report.effects
    assert row.n == counted
    assert (row.low is None) == (finished < 4), "no interval is read before its look"
    assert len([run for run in report.runs if run.arm == "gqa"]) == required


def test_decisions_and_outlier_seeds_are_shown(report):
    first, *others = report.verdict.claims
    identity = replace_fields(first, identity=True)
    claims = [replace_fields(first, outliers=[5, 11]), *others, identity]
    verdict = replace_fields(report.verdict, claims=claims)
    report = replace_fields(report, verdict=verdict)
    decision, left_out = first.decision, first.leave_one_out
    record = read_table(report, "decisions")[0]
    assert record["claim"] == "1. gqa vs mha, val/loss (nats): margin +0.03"
    keys = {"n": "n", "estimate": "estimate", "low": "low", "high": "high", "level": "level", "p": "p"}
    assert {key: record[key] for key in keys} == {key: getattr(decision, key) for key in keys}
    assert record["p_holm"] == decision.p_holm
    means = format_bounds(left_out.low, left_out.high, first.digits)
    sign_flip = f"{format_pvalue(first.sign_flip.p)} ({format_pvalue(first.sign_flip.floor)})"
    outliers = f"claim 1, gqa vs mha: 5, 11 (mean with any one seed left out: {means})."
    page, markdown = render_texts(report)
    assert f"| 1. gqa vs mha | {sign_flip} | {means} |" in markdown
    assert "| 5, 11 |" in markdown
    for text in (page, markdown):
        assert f"Outlier seeds, which count in every number: {outliers}" in text
        assert "Sensitivity analyses; they never change a verdict." in text
        assert "p of Δ = 0 (Holm over arms)" in text
        assert "p (Holm over claims)" in text
        assert "p (Holm)" not in text
    effects = [replace_fields(report.effects[0], kind=kind) for kind in ("share", "censored", "seeds")]
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
    estimated = replace_fields(claim, required_seeds=required_seeds)
    assert format_required_seeds(estimated) == f"about {max(required_seeds.seeds, 7)} {text}"
    assert (
        claim_results._estimate_required_seeds(
            claim, replace(claim_decision, decision=replace(decision, holds=True))
        )
        is None
    )
