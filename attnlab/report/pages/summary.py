"""summary.png, for slides and link previews: question, answer, arms and claims, as an SVG of 1280 x 720. A
pure function of a report; `drawing` makes the PNG of it.

Surprising: one font throughout, and no characters that it may lack.
"""

import textwrap
from html import escape

from attnlab.report.answer import Answer, answer, arms_table
from attnlab.report.charts.marks import VERDICTS
from attnlab.report.charts.svg import FONT, INK, LITERAL, MUTED
from attnlab.report.schema import ClaimResult, Report

WIDTH = 1280
HEIGHT = 720
EDGE = 48
LETTER = 0.5  # of the font size: an average letter's width
ARMS = 8
CLAIMS = 6  # on the page


class _Sheet:
    """Lines of text from the top down."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 40.0

    def put(self, x: float, said: str, size: float, colour: str = LITERAL[INK], **more: str) -> None:
        look = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
        self.parts.append(
            f'<text x="{x:g}" y="{self.y:g}" font-size="{size:g}" fill="{colour}"{look}>{escape(said)}</text>'
        )

    def lines(self, said: str, size: float, most: int, colour: str = LITERAL[INK], **more: str) -> None:
        """A paragraph over the whole width, cut after so many lines."""
        letters = int((WIDTH - 2 * EDGE) / (LETTER * size))
        for line in textwrap.wrap(said, letters, max_lines=most, placeholder=" …"):
            self.y += 1.35 * size
            self.put(EDGE, line, size, colour, **more)


def slide(report: Report) -> str:
    """The page."""
    sheet = _Sheet()
    experiment = report.experiment
    verdict = report.verdict
    sheet.put(EDGE, f"{experiment.name}: {verdict.headline}", 26)
    if verdict.exploratory:
        sheet.put(WIDTH - EDGE, "EXPLORATORY", 20, VERDICTS["REFUTED"][0], text_anchor="end")
    sheet.lines(experiment.question or "", 17, 2, LITERAL[MUTED])
    sheet.y += 6
    first = answer(report)
    sheet.lines(first.sentence, 20, 4)
    sheet.y += 16
    _arms(sheet, report, first)
    sheet.y += 12
    _claims(sheet, verdict.claims)
    _foot(sheet, report)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}"><rect width="{WIDTH}" height="{HEIGHT}" '
        f'fill="#ffffff"/>{"".join(sheet.parts)}</svg>'
    )


def _arms(sheet: _Sheet, report: Report, first: Answer) -> None:
    """The table of arms: the first in ink, as many as fit."""
    columns, rows = arms_table(report, first, whole=False)
    left_out = len(rows) - ARMS
    rows = rows[:ARMS]
    widths = [max(len(line[i]) for line in [columns, *rows]) for i in range(len(columns))]
    size = min(18.0, (WIDTH - 2 * EDGE) / (0.54 * sum(widths) + 1.2 * len(widths)))
    for number, line in enumerate([columns, *rows]):
        sheet.y += 1.6 * size
        x = float(EDGE)
        for cell, width in zip(line, widths, strict=True):
            sheet.put(x, cell, size, LITERAL[INK] if number else LITERAL[MUTED])
            x += (0.54 * width + 1.2) * size
    if left_out > 0:
        sheet.y += 1.6 * size
        sheet.put(EDGE, f"and {left_out} more arms in the report", size, LITERAL[MUTED])


def _claims(sheet: _Sheet, claims: list[ClaimResult]) -> None:
    size = 17
    letters = int((WIDTH - 2 * EDGE - 210) / (LETTER * 17))
    for claim in claims[:CLAIMS]:
        sheet.y += 1.7 * size
        word = claim.verdict
        sheet.parts.append(f'<circle cx="{EDGE + 6}" cy="{sheet.y - 6:g}" r="6" fill="{VERDICTS[word][0]}"/>')
        sheet.put(EDGE + 24, word, size, VERDICTS[word][0])
        sheet.put(EDGE + 210, textwrap.shorten(claim.says, letters, placeholder=" …"), size)
    if len(claims) > CLAIMS:
        sheet.y += 1.7 * size
        sheet.put(EDGE, f"and {len(claims) - CLAIMS} more claims in the report", size, LITERAL[MUTED])


def _foot(sheet: _Sheet, report: Report) -> None:
    made = report.reproduce
    verdict = report.verdict
    said = [
        "attnlab",
        made.date or "date unknown",
        f"commit {(made.commit or 'unknown')[:10]}{' (dirty)' if made.dirty else ''}",
        f"{verdict.finished} of {verdict.planned} runs finished",
        "intervals of 95 %, paired by seed",
    ]
    sheet.y = HEIGHT - 24
    sheet.put(EDGE, " · ".join(said), 13, LITERAL[MUTED])
