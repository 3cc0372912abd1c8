"""The headline of a report: the verdicts of its tested claims, and whether its identities hold."""

from collections.abc import Sequence

from attnlab.report.schema import ClaimResult, Report, Verdict

MAX_CORPORA = 4  # with more corpora, the headline counts the verdicts of all together


def build_headline(report: Report) -> str:
    """Build the headline: the verdicts on all corpora in the main report, else those of its own runs."""
    if report.corpora is None or report.replication is None or not report.corpora.claims:
        return format_headline(report.verdict.claims, report.verdict.not_preregistered)
    verdicts: dict[str, list[Verdict]] = {name: [] for name in report.corpora.names}
    for claim in report.corpora.claims:
        for row in claim.rows:
            verdicts[row.corpus].append(row.verdict)
    own = report.replication.name
    if not report.is_main:
        headline = f"{own}: {_count_verdicts(verdicts[own])}"
    elif len(verdicts) > MAX_CORPORA:
        together = [verdict for on_corpus in verdicts.values() for verdict in on_corpus]
        headline = f"{len(verdicts)} corpora: {_count_verdicts(together)}"
    else:
        headline = "; ".join(f"{name}: {_count_verdicts(on_corpus)}" for name, on_corpus in verdicts.items())
    identities = _format_identities(report.verdict.claims)
    return "; ".join(filter(None, [headline, identities]))


def format_headline(claims: Sequence[ClaimResult], not_preregistered: bool) -> str:
    """Format the verdicts of the tested claims, one if all agree, and the outcome of the identities.

    Examples: `both claims SUPPORTED`, `2 SUPPORTED, 1 REFUTED; 2 identities hold`, `14 identities hold`.
    """
    if not_preregistered:
        return "EXPLORATORY"
    if all(claim.verdict == Verdict.NO_RESULT for claim in claims):
        return str(Verdict.NO_RESULT)
    tested = [claim.verdict for claim in claims if not claim.holds_by_construction]
    headline = ", ".join(f"{tested.count(verdict)} {verdict}" for verdict in Verdict if verdict in tested)
    if len(set(tested)) == 1:
        number = {1: "", 2: "both claims "}.get(len(tested), f"all {len(tested)} claims ")
        headline = f"{number}{tested[0]}"
    return "; ".join(filter(None, [headline, _format_identities(claims)]))


def _format_identities(claims: Sequence[ClaimResult]) -> str:
    """Format `2 identities hold`, or the count of each verdict if not all do; empty without identities."""
    verdicts = [claim.verdict for claim in claims if claim.holds_by_construction]
    if any(verdict != Verdict.SUPPORTED for verdict in verdicts):
        return f"identities: {_count_verdicts(verdicts)}"
    number = len(verdicts)
    return f"{number} {'identity holds' if number == 1 else 'identities hold'}" if verdicts else ""


def _count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Format the count of each verdict: `2 supported, 1 refuted`, or `5 of 5 supported` if all agree."""
    counts = [(verdict, verdicts.count(verdict)) for verdict in Verdict if verdict in verdicts]
    total = f" of {len(verdicts)}" if len(counts) == 1 else ""
    return ", ".join(f"{count}{total} {verdict.lower()}" for verdict, count in counts) or "no claim"
