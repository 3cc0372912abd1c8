"""summary.png, for slides and link previews: question, answer, arms, claims and their chart, at 1280 x 720.

A pure function of a report; `chart_renderer` makes the PNG. It uses one font and no characters that the font
may lack.
"""

import textwrap
from html import escape

from attnlab.report.answer import answer_question
from attnlab.report.charts.chart_renderer import PlacedChart, Sheet
from attnlab.report.charts.comparison_figures import build_verdict_charts
from attnlab.report.charts.svg import FONT, INK, LITERAL_COLORS, MUTED
from attnlab.report.charts.vega_layers import VERDICT_STYLES
from attnlab.report.schema import ClaimResult, Report
from attnlab.report.section import Chart
from attnlab.report.sections.answer import build_arms_table
from attnlab.report.tables.headline import build_headline

WIDTH = 1280
HEIGHT = 720
EDGE_MARGIN = 48
LETTER_WIDTH = 0.5  # average width of a letter, in font sizes
MAX_ARMS = 8
MAX_COLUMNS = 6
MAX_CELL = 48  # characters
MAX_CLAIMS = 6  # on the slide
CLAIM_SIZE = 14
LINE_HEIGHT = 1.3 * CLAIM_SIZE
MIN_ARMS = 3  # arms give way to claims and charts
CLAIMS_GAP = 20  # above the claims
FOOTER_TOP = HEIGHT - 48
CHART_WIDTH = 560
MAX_CHART_SCALE = 1.25
MIN_CHART_SCALE = 0.75  # smaller text is illegible


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

    def add_paragraph(self, text: str, size: float, max_lines: int, color: str = LITERAL_COLORS[INK]) -> None:
        """Add a paragraph over the whole width, truncated after `max_lines`."""
        for line in _wrap_text(text, WIDTH - 2 * EDGE_MARGIN, size, max_lines):
            self.y += 1.35 * size
            self.add_text(EDGE_MARGIN, line, size, color)


def _wrap_text(text: str, width: float, size: float, max_lines: int) -> list[str]:
    """Wrap a text to `width` pixels, truncated after `max_lines`."""
    letters = int(width / (LETTER_WIDTH * size))
    return textwrap.wrap(text, letters, max_lines=max_lines, placeholder=" …")


def render_slide(report: Report) -> Sheet:
    """The page as SVG, and the charts that `chart_renderer` draws on it."""
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
    sheet.add_paragraph(answer_question(report), 20, 3)
    sheet.y += 16
    _draw_arms(sheet, report)
    sheet.y += CLAIMS_GAP
    charts = _place_charts(report, sheet.y)
    _draw_claims(sheet, verdict.claims, WIDTH - 2 * EDGE_MARGIN - (CHART_WIDTH + 24 if charts else 0))
    _draw_footer(sheet, report)
    source = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}"><rect width="{WIDTH}" height="{HEIGHT}" '
        f'fill="#ffffff"/>{"".join(sheet.parts)}</svg>'
    )
    return Sheet(source, charts)


def _draw_arms(sheet: _TextSheet, report: Report) -> None:
    """The table of arms: the header muted, as many arms as fit."""
    columns, rows = _list_arms(report)
    rows = [[textwrap.shorten(cell, MAX_CELL, placeholder=" …") for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *rows[:MAX_ARMS]]) for i in range(len(columns))]
    size = min(16.0, (WIDTH - 2 * EDGE_MARGIN) / (0.54 * sum(widths) + 1.2 * len(widths)))
    free_lines = (FOOTER_TOP - CLAIMS_GAP - sheet.y - _estimate_claims_height(report)) / (1.6 * size)
    omitted = len(rows) - min(MAX_ARMS, max(MIN_ARMS, int(free_lines) - 2))
    rows = rows[: len(rows) - omitted] if omitted > 0 else rows
    for number, line in enumerate([columns, *rows]):
        sheet.y += 1.6 * size
        x = float(EDGE_MARGIN)
        for cell, width in zip(line, widths, strict=True):
            sheet.add_text(x, cell, size, LITERAL_COLORS[INK] if number else LITERAL_COLORS[MUTED])
            x += (0.54 * width + 1.2) * size
    if omitted > 0:
        sheet.y += 1.6 * size
        sheet.add_text(
            EDGE_MARGIN,
            f"and {omitted} more {'arm' if omitted == 1 else 'arms'} in the report",
            size,
            LITERAL_COLORS[MUTED],
        )


def _list_arms(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the first columns of the table of arms, without the options of the arms."""
    table = build_arms_table(report)
    shown = table.shown[:MAX_COLUMNS]
    rows = [[row.typed[i] for i in shown] for row in table.full_rows]
    texts = [[cells[0].text, *(cell.content for cell in cells[1:])] for cells in rows]
    return [table.columns[i].heading for i in shown], texts


def _estimate_claims_height(report: Report) -> float:
    """Pixels for the claims in two lines each, and for their charts somewhat reduced."""
    n_claims = len(report.verdict.claims)
    list_height = LINE_HEIGHT * (2.3 * min(n_claims, MAX_CLAIMS) + (n_claims > MAX_CLAIMS))
    chart_height = sum(_measure_charts(report)[:2])
    return max(list_height, MIN_CHART_SCALE * chart_height)


def _list_charts(report: Report) -> list[Chart]:
    return build_verdict_charts(report, max_claims=MAX_CLAIMS)


def _measure_charts(report: Report) -> list[float]:
    """The heights of the charts of the claims on the slide."""
    return [float(chart.draw(width=CHART_WIDTH)["height"]) for chart in _list_charts(report)]


def _place_charts(report: Report, top: float) -> tuple[PlacedChart, ...]:
    """Place the verdict charts of the listed claims right of them, and omit the last ones without room."""
    heights = _measure_charts(report)
    while heights and (FOOTER_TOP - top) / sum(heights) < MIN_CHART_SCALE:
        heights.pop()
    if not heights:
        return ()
    scale = min(MAX_CHART_SCALE, (FOOTER_TOP - top) / sum(heights))
    width = round(CHART_WIDTH / scale)
    return tuple(
        PlacedChart(
            chart.draw(width=width), WIDTH - EDGE_MARGIN - CHART_WIDTH, top + scale * sum(heights[:i]), scale
        )
        for i, chart in enumerate(_list_charts(report)[: len(heights)])
    )


def _draw_claims(sheet: _TextSheet, claims: list[ClaimResult], width: float) -> None:
    """The list of claims, numbered as in their chart, in a column of `width` pixels."""
    listed = claims[:MAX_CLAIMS]
    n_lines = int((FOOTER_TOP - sheet.y) / LINE_HEIGHT) - (len(claims) > MAX_CLAIMS)
    max_lines = max(1, int(n_lines / max(1, len(listed)) - 0.3))
    for number, claim in enumerate(listed, 1):
        color = VERDICT_STYLES[claim.verdict][0]
        top = sheet.y
        sheet.y += LINE_HEIGHT
        sheet.parts.append(f'<circle cx="{EDGE_MARGIN + 6}" cy="{sheet.y - 5:g}" r="6" fill="{color}"/>')
        sheet.add_text(EDGE_MARGIN + 20, f"{number}", CLAIM_SIZE)
        sheet.add_text(EDGE_MARGIN + 36, claim.verdict, CLAIM_SIZE, color)
        sheet.y = top
        for line in _wrap_text(claim.says, width - 175, CLAIM_SIZE, max_lines):
            sheet.y += LINE_HEIGHT
            sheet.add_text(EDGE_MARGIN + 175, line, CLAIM_SIZE)
        sheet.y += 0.3 * LINE_HEIGHT
    omitted = len(claims) - len(listed)
    if omitted:
        sheet.y += LINE_HEIGHT
        words = f"and {omitted} more {'claim' if omitted == 1 else 'claims'} in the report"
        sheet.add_text(EDGE_MARGIN, words, CLAIM_SIZE, LITERAL_COLORS[MUTED])


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
