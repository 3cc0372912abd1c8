"""The headline of a report: the verdicts of its claims, on every corpus of the experiment."""

from collections.abc import Sequence

from attnlab.report.schema import Report, Verdict

MAX_CORPORA = 4  # with more corpora, the headline counts the verdicts of all together


def build_headline(report: Report) -> str:
    """Build the headline: the verdicts on all corpora in the main report, else those of its own runs.

    The comparison over corpora omits counts and identities, which no corpus changes; they count on each.
    """
    if report.corpora is None or report.replication is None:
        return report.verdict.headline
    compared = {claim.says for claim in report.corpora.claims}
    common = [claim.verdict for claim in report.verdict.claims if claim.says not in compared]
    verdicts = {name: list(common) for name in report.corpora.names}
    for claim in report.corpora.claims:
        for row in claim.rows:
            verdicts[row.corpus].append(row.verdict)
    own = report.replication.name
    if not report.is_main:
        return f"{own}: {_count_verdicts(verdicts[own])}"
    if len(verdicts) > MAX_CORPORA:
        together = [verdict for on_corpus in verdicts.values() for verdict in on_corpus]
        return f"{len(verdicts)} corpora: {_count_verdicts(together)}"
    return "; ".join(f"{name}: {_count_verdicts(on_corpus)}" for name, on_corpus in verdicts.items())


def _count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Format the count of each verdict: `2 supported, 1 refuted`, or `5 of 5 supported` if all agree."""
    counts = [(verdict, verdicts.count(verdict)) for verdict in Verdict if verdict in verdicts]
    total = f" of {len(verdicts)}" if len(counts) == 1 else ""
    return ", ".join(f"{count}{total} {verdict.lower()}" for verdict, count in counts) or "no claim"
