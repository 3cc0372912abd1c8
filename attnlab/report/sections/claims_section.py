"""The claims: a row each with verdict, effect and deciding interval, and what decided it folded below."""

from dataclasses import replace
from typing import Final

from attnlab.report import section
from attnlab.report.charts.comparison_figures import build_verdict_charts
from attnlab.report.charts.interim_figures import build_interim_chart
from attnlab.report.number_format import NONE, TIMES, format_compute_amount, format_number, format_percent
from attnlab.report.schema import ClaimResult, Report
from attnlab.report.section import Block, Cell, Column, Fold, Items, Row, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables import interim_analyses
from attnlab.report.tables.claim_sources import Citation, build_citations
from attnlab.report.tables.source_links import format_citation
from attnlab.report.tables.wording import (
    DECISIONS_NOTE,
    HOLM_OVER_CLAIMS,
    SENSITIVITY_HEADER,
    SENSITIVITY_NOTE,
    SUPPORTED_NOTE,
    build_sensitivity_rows,
    describe_claim,
    explain_verdict,
    find_claim_effect,
    format_interval,
    format_margin_reason,
    format_required_seeds,
    format_threshold,
)

PLACE: Final = 20
CLAIM_KEYS = (  # of a claim, for programs alone
    "arm", "against", "metric", "compare", "is", "threshold", "unit", "identity", "exploratory", "reason",
)  # fmt: skip


def build(report: Report, context: PageContext) -> Section:
    """Build the section of claims."""
    claims = report.verdict.claims
    if not claims:
        return Section("claims", "Claims", [Text("No preregistered claim.")])
    citations = build_citations(report)
    rows = [
        _build_row(report, number, claim, citation, context.bibliography)
        for number, (claim, citation) in enumerate(zip(claims, citations, strict=True), 1)
    ]
    columns = [
        Column("verdict"),
        Column("claim", "says"),
        Column("estimate"),
        Column("deciding interval", "decision", ends=("low", "high")),
        Column("seeds", "n"),
        *(Column("", key) for key in (*CLAIM_KEYS, "level", "p", "p_holm")),
        Column("", "training"),
        Column("", "outcome"),
    ]  # fmt: skip
    blocks: list[Block] = [section.note(SUPPORTED_NOTE)]
    blocks.append(Table("claims", "Claims, each decided by its interval.", columns, rows))
    blocks += build_verdict_charts(report)[1:]
    blocks += [section.note(sentence) for sentence in _describe_margin(report)]
    if needed := [
        f"Claim {number}: {text}"
        for number, claim in enumerate(claims, 1)
        if (text := format_required_seeds(claim))
    ]:
        blocks += [section.Heading("Seeds needed for inconclusive claims"), Items(needed)]
    blocks.append(Fold("Decisions and sensitivity analyses", _build_decisions(claims)))
    return Section("claims", "Claims", blocks)


def _build_row(report: Report, number: int, claim: ClaimResult, citation: Citation, bibliography: str) -> Row:
    decision, is_ratio = claim.decision, claim.compare == "ratio"
    effect = find_claim_effect(claim, report.effects)
    outcome = describe_claim(claim, effect)
    estimate = format_number(decision.estimate, None if decision.exact else claim.digits, sign=not is_ratio)
    if decision.estimate is not None:
        estimate += TIMES if is_ratio else f" {claim.unit}".rstrip()
    bounds = format_interval(
        decision.low, decision.high, claim.digits, sign=not is_ratio, unit=TIMES if is_ratio else ""
    )
    level = f"{format_percent(decision.level)}%" if decision.level is not None else ""
    planned = f"of {claim.planned}" if claim.planned not in (None, decision.n) else ""
    plain = claim.to_dict()
    training = claim.training_equivalent
    details: list[Block] = [
        Text(outcome),
        section.note(f"{explain_verdict(claim)} ", *format_citation(citation, bibliography)),
    ]
    if interim_analyses.has_interim_results(claim):
        chart = build_interim_chart(claim, number)
        details += [chart] if chart else []
        details.append(interim_analyses.build_analyses_table(claim, number))
    return Row(
        [
            replace(section.verdict(claim.verdict), note="exploratory" if claim.exploratory else ""),
            Cell(f"{number}. {claim.says}", claim.says, kind="prose"),
            Cell(estimate, decision.estimate, kind="number"),
            Cell("exact", kind="number")
            if decision.exact
            else Cell(bounds, None, decision.low, decision.high, level if bounds != NONE else "", "number"),
            Cell("exact", kind="number") if decision.exact else section.number(decision.n, note=planned),
            *(Cell("", plain[key]) for key in CLAIM_KEYS),
            *(Cell("", value, kind="number") for value in (decision.level, decision.p, decision.p_holm)),
            Cell("", training.compute_change if training else None, kind="number"),
            Cell(outcome),
        ],
        details,
    )  # fmt: skip


def _describe_margin(report: Report) -> list[str]:
    """The margin with its reason, and the calibration that gives its value."""
    experiment, calibration = report.experiment, report.compute_calibration
    sentences = []
    if calibration:
        uncertainty = (
            ""
            if calibration.reason
            else "Changes in training compute have 95% intervals that include the uncertainty of this slope; "
            "below half and above twice the compute they are extrapolated."
        )
        sentences.append(section.join_text(f"{calibration.summary}.", uncertainty))
    reason = format_margin_reason(report)
    is_fixed = not report.verdict.exploratory
    if experiment.margin_text:
        fixed = (
            ", preregistered and fixed in nats before the comparison"
            if is_fixed and experiment.margin is not None
            else ""
        )
        margin = f"Margin: {format_compute_amount(experiment.margin_text)}{fixed}"
        sentences.append(f"{margin}. {reason}." if reason else f"{margin}.")
    elif experiment.margin is not None:
        margin = f"Margin {format_number(experiment.margin)}{', preregistered' if is_fixed else ''}"
        sentences.append(f"{margin}: {reason}." if reason else f"{margin}.")
    return sentences


def _build_decisions(claims: list[ClaimResult]) -> list[Block]:
    """The decision and the sensitivity analyses of each claim."""
    rows = []
    for number, claim in enumerate(claims, 1):
        decision, sign = claim.decision, claim.compare == "difference"
        label = f"{claim.label} ({claim.unit})" if claim.unit else claim.label
        planned = f"of {claim.planned}" if claim.planned else ""
        exact = Cell("exact", kind="number")
        rows.append(
            [
                f"{number}. {claim.comparison_text}, {label}: {format_threshold(claim)}",
                exact if decision.exact else section.number(decision.n, note=planned),
                section.number(decision.estimate, None if decision.exact else claim.digits, sign=sign),
                exact
                if decision.exact
                else section.bounds(decision.low, decision.high, claim.digits, sign=sign),
                section.number(decision.level, 3),
                section.pvalue(decision.p),
                section.pvalue(decision.p_holm),
            ]
        )
    columns = [
        Column("claim"), Column("seeds", "n"), Column("estimate"), Column("interval", ends=("low", "high")),
        Column("confidence level", "level"), Column("p"), Column(HOLM_OVER_CLAIMS, "p_holm"),
    ]  # fmt: skip
    tables: list[Block] = [Table("decisions", DECISIONS_NOTE, columns, rows)]
    if sensitivity := build_sensitivity_rows(claims):
        columns = [Column(title) for title in SENSITIVITY_HEADER]
        tables.append(Table("sensitivity", SENSITIVITY_NOTE, columns, sensitivity))
    return tables
