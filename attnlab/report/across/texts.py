"""What an experiment says on each of its texts, side by side, in the report of each."""

import math
from collections.abc import Mapping
from statistics import mean, stdev

from attnlab.report.across.pairs import about, differences
from attnlab.report.answer import answer, primary
from attnlab.report.schema import ClaimResult, Place, Report, TextArms, TextCell, TextClaim, TextClaims, Texts
from attnlab.report.tables.ranking import STATES
from attnlab.stats.across.texts import Text, texts

LEVEL = 0.95


def add_texts(reports: Mapping[str, Report]) -> dict[str, Report]:
    """Each report, by title, with what all of them say; no counts, since no text changes them."""
    found = Texts(
        names=[_place(report).name for report in reports.values()],
        claims=_claims(reports),
        arms=[_arms(title, report) for title, report in reports.items()],
    )
    return {title: report.model_copy(update={"texts": found}) for title, report in reports.items()}


def _place(report: Report) -> Place:
    assert report.place is not None, "a report of one of several texts says of which"
    return report.place


def _arms(title: str, report: Report) -> TextArms:
    """What each arm reached on a text, and how it stands to the baseline there."""
    words = {arm: STATES.get(row.word) for arm, row in primary(report).items()}
    known = {row.arm: row.reached.mean for row in answer(report).arms}
    cells = [TextCell(arm=arm, mean=known[arm], state=words.get(arm)) for arm in report.experiment.arms]
    return TextArms(text=_place(report).name, title=title, cells=cells)


def _claims(reports: Mapping[str, Report]) -> list[TextClaims]:
    found: dict[str, list[TextClaim]] = {}
    together: dict[str, str] = {}
    for title, report in reports.items():
        for claim in report.verdict.claims:
            if not claim.decision.exact and not claim.identity:
                found.setdefault(claim.says, []).append(_row(title, report, claim))
    first = next(iter(reports.values()))
    for claim in first.verdict.claims:
        if claim.says in found and about(claim, first):
            together[claim.says] = _together(reports, claim)
    return [TextClaims(says=says, rows=rows, together=together.get(says, "")) for says, rows in found.items()]


def _row(title: str, report: Report, claim: ClaimResult) -> TextClaim:
    return TextClaim(
        text=_place(report).name,
        title=title,
        verdict=claim.verdict,
        compare=claim.compare,
        effect=claim.decision.estimate,
        low=claim.interval.low if claim.interval else None,
        high=claim.interval.high if claim.interval else None,
        unit=claim.unit,
        digits=claim.digits,
        training=claim.training,
    )


def _together(reports: Mapping[str, Report], claim: ClaimResult) -> str:
    """How the effects of the texts differ, in a sentence; empty where a text has no spread to go by."""
    known = []
    for report in reports.values():
        found = differences(report, claim.arm, claim.against, claim.metric)
        spread = stdev(found) if len(found) > 1 else 0.0
        if not spread:
            return ""
        known.append(Text(_place(report).name, mean(found), spread / math.sqrt(len(found)), len(found) - 1))
    return texts(known, LEVEL).says
