"""Every reference report: its data is stable, and its page and Markdown show the numbers of its data."""

import pytest
from rendering import REFERENCES, extract_text, render_html, render_markdown

from attnlab.report.number_format import NONE, TIMES, format_bound, format_number
from attnlab.report.pages.report_files import format_json
from attnlab.report.schema import ClaimResult, Report, load_report
from attnlab.report.section import list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables.wording import describe_claim, find_claim_effect, format_effect

PUBLISHED = sorted(path.parent.name for path in REFERENCES.glob("*/report.json"))


def list_numbers(report: Report, claim: ClaimResult) -> list[str]:
    """The estimate and the bounds of a claim's decision, as printed."""
    decision, sign = claim.decision, claim.compare == "difference"
    times = "" if sign else TIMES
    digits = None if decision.exact else claim.digits
    estimate = format_number(decision.estimate, digits, sign=sign)
    texts = [] if decision.estimate is None else [f"{estimate}{times or f' {claim.unit}'}".rstrip()]
    if not decision.exact:
        bounds = (decision.low, decision.high)
        texts += [f"{format_bound(bound, digits, sign=sign)}{times}" for bound in bounds if bound is not None]
    return [*texts, str(claim.verdict), describe_claim(claim, find_claim_effect(claim, report.effects))]


def check_reference(name: str) -> None:
    source = REFERENCES / name / "report.json"
    report = load_report(source)
    assert format_json(report.to_dict()) == source.read_text("utf-8")
    tables = list_tables(build_sections(report))
    effects = [*tables["effects"].iterate_records()] if report.effects else []
    for row, record in zip(report.effects, effects, strict=True):
        assert [record[key] for key in ("arm", "metric", "mean", "low", "high", "n", "verdict")] == [
            row.arm, row.metric, row.mean, row.low, row.high, row.n, row.verdict,
        ]  # fmt: skip
    claims = [*tables["claims"].iterate_records()] if report.verdict.claims else []
    for claim, record in zip(report.verdict.claims, claims, strict=True):
        decision = claim.decision
        assert [record[key] for key in ("estimate", "low", "high", "verdict", "p_holm")] == [
            decision.estimate,
            *((None, None) if decision.exact else (decision.low, decision.high)),
            claim.verdict, decision.p_holm,
        ]  # fmt: skip
    for text in (extract_text(render_html(report)), " ".join(render_markdown(report).split())):
        for row in report.effects:
            assert format_effect(row) in text
            assert str(row.verdict) in text
        for claim in report.verdict.claims:
            missing = [shown for shown in list_numbers(report, claim) if shown not in text and shown != NONE]
            assert missing == []


@pytest.mark.rare
@pytest.mark.parametrize("name", PUBLISHED)
def test_page_and_markdown_of_a_reference_show_its_effects_and_claims(name: str) -> None:
    check_reference(name)


@pytest.mark.parametrize("name", ["causal_leakage", "gqa_vs_mha", "lossy_caches"])
def test_page_and_markdown_show_effects_and_claims(name: str) -> None:
    check_reference(name)
