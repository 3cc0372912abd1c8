"""summary.png, for slides and link previews: question, answer, arms and claims, as an SVG of 1280 x 720.

A pure function of a report; `chart_renderer` makes the PNG. It uses one font and no characters that the font
may lack.
"""

import textwrap
from html import escape

from attnlab.report.answer import Answer, build_answer, build_arms_table
from attnlab.report.charts.svg import FONT, INK, LITERAL_COLORS, MUTED
from attnlab.report.charts.vega_layers import VERDICT_STYLES
from attnlab.report.schema import ClaimResult, Report
from attnlab.report.tables.headline import build_headline

WIDTH = 1280
HEIGHT = 720
EDGE_MARGIN = 48
LETTER_WIDTH = 0.5  # average width of a letter, in font sizes
MAX_ARMS = 8
MAX_CELL = 48  # characters
MAX_CLAIMS = 6  # on the slide


class _TextSheet:
    """Lines of text from the top down."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 40.0

    def add_text(
        self, x: float, text: str, size: float, color: str = LITERAL_COLORS[INK], **attributes: str
    ) -> None:
        """Add text at the current height; `attributes` are SVG attributes with `_` for `-`."""
        extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.parts.append(
            f'<text x="{x:g}" y="{self.y:g}" font-size="{size:g}" fill="{color}"{extra}>{escape(text)}</text>'
        )

    def add_paragraph(
        self, text: str, size: float, max_lines: int, color: str = LITERAL_COLORS[INK], **attributes: str
    ) -> None:
        """Add a paragraph over the whole width, truncated after `max_lines`."""
        letters = int((WIDTH - 2 * EDGE_MARGIN) / (LETTER_WIDTH * size))
        for line in textwrap.wrap(text, letters, max_lines=max_lines, placeholder=" …"):
            self.y += 1.35 * size
            self.add_text(EDGE_MARGIN, line, size, color, **attributes)


def render_slide(report: Report) -> str:
    """The page as SVG."""
    sheet = _TextSheet()
    experiment = report.experiment
    verdict = report.verdict
    title = f"{report.title}: {build_headline(report)}"
    title_width = WIDTH - 2 * EDGE_MARGIN - 180 * verdict.exploratory
    sheet.add_text(EDGE_MARGIN, title, min(26.0, title_width / (0.54 * len(title))))
    if verdict.exploratory:
        sheet.add_text(
            WIDTH - EDGE_MARGIN, "EXPLORATORY", 20, VERDICT_STYLES["REFUTED"][0], text_anchor="end"
        )
    sheet.add_paragraph(experiment.question or "", 17, 2, LITERAL_COLORS[MUTED])
    sheet.y += 6
    answer = build_answer(report)
    is_long = len(answer.sentence) > 4 * (WIDTH - 2 * EDGE_MARGIN) / (LETTER_WIDTH * 20)
    sheet.add_paragraph(answer.sentence, *((17, 5) if is_long else (20, 4)))
    sheet.y += 16
    _draw_arms(sheet, report, answer)
    sheet.y += 12
    _draw_claims(sheet, verdict.claims)
    _draw_footer(sheet, report)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}"><rect width="{WIDTH}" height="{HEIGHT}" '
        f'fill="#ffffff"/>{"".join(sheet.parts)}</svg>'
    )


def _draw_arms(sheet: _TextSheet, report: Report, best_answer: Answer) -> None:
    """The table of arms: the header muted, as many arms as fit."""
    columns, rows = build_arms_table(report, best_answer, include_rankings=False)
    rows = [[textwrap.shorten(cell, MAX_CELL, placeholder=" …") for cell in row] for row in rows]
    omitted = len(rows) - MAX_ARMS
    rows = rows[:MAX_ARMS]
    widths = [max(len(line[i]) for line in [columns, *rows]) for i in range(len(columns))]
    size = min(18.0, (WIDTH - 2 * EDGE_MARGIN) / (0.54 * sum(widths) + 1.2 * len(widths)))
    for number, line in enumerate([columns, *rows]):
        sheet.y += 1.6 * size
        x = float(EDGE_MARGIN)
        for cell, width in zip(line, widths, strict=True):
            sheet.add_text(x, cell, size, LITERAL_COLORS[INK] if number else LITERAL_COLORS[MUTED])
            x += (0.54 * width + 1.2) * size
    if omitted > 0:
        sheet.y += 1.6 * size
        sheet.add_text(EDGE_MARGIN, f"and {omitted} more arms in the report", size, LITERAL_COLORS[MUTED])


def _draw_claims(sheet: _TextSheet, claims: list[ClaimResult]) -> None:
    size = 17
    letters = int((WIDTH - 2 * EDGE_MARGIN - 210) / (LETTER_WIDTH * 17))
    for claim in claims[:MAX_CLAIMS]:
        sheet.y += 1.7 * size
        verdict = claim.verdict
        sheet.parts.append(
            f'<circle cx="{EDGE_MARGIN + 6}" cy="{sheet.y - 6:g}" r="6" fill="{VERDICT_STYLES[verdict][0]}"/>'
        )
        sheet.add_text(EDGE_MARGIN + 24, verdict, size, VERDICT_STYLES[verdict][0])
        sheet.add_text(EDGE_MARGIN + 210, textwrap.shorten(claim.says, letters, placeholder=" …"), size)
    if len(claims) > MAX_CLAIMS:
        sheet.y += 1.7 * size
        sheet.add_text(
            EDGE_MARGIN,
            f"and {len(claims) - MAX_CLAIMS} more claims in the report",
            size,
            LITERAL_COLORS[MUTED],
        )


def _draw_footer(sheet: _TextSheet, report: Report) -> None:
    provenance = report.reproduce
    verdict = report.verdict
    facts = [
        "attnlab",
        provenance.date or "date unknown",
        f"commit {(provenance.commit or 'unknown')[:10]}{' (dirty)' if provenance.dirty else ''}",
        f"{verdict.finished} of {verdict.planned} runs finished",
        "95% intervals, paired by seed",
    ]
    sheet.y = HEIGHT - 24
    sheet.add_text(EDGE_MARGIN, " · ".join(facts), 13, LITERAL_COLORS[MUTED])
