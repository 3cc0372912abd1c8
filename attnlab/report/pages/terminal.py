"""The terminal summary of a report: headline, answer, claims, and arms that are not comparable."""

from collections.abc import Iterator

from attnlab.report.answer import build_answer
from attnlab.report.schema import EffectVerdict, Report
from attnlab.report.section import Table
from attnlab.report.sections.grid import build_cells, format_best_cell
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import DELTA, describe_claim, find_claim_effect, format_effect


def format_terminal_lines(report: Report) -> Iterator[str]:
    """One line each, the headline first; of arms without a claim, those that are not comparable.

    A sweep without an experiment also has its grid, or with one axis its effects.
    """
    context = f" ({report.replication.name})" if report.replication and not report.corpora else ""
    yield f"{build_headline(report)}{context}: {report.experiment.question or report.experiment.name}"
    yield build_answer(report).sentence
    if report.grid:
        yield from _format_table(build_cells(report.grid))
        yield format_best_cell(report.grid)
    for claim in report.verdict.claims:
        yield f"  {describe_claim(claim, find_claim_effect(claim, report.effects))}"
    claimed = {(claim.arm, claim.metric) for claim in report.verdict.claims}
    for effect in (row for row in report.effects if row.primary and (row.arm, row.metric) not in claimed):
        prefix = f"  {effect.arm} vs {effect.against}"
        if effect.verdict == EffectVerdict.NOT_COMPARABLE:
            yield f"{prefix}: NOT COMPARABLE: {'; '.join(effect.reasons)}"
        elif effect.mean is not None and report.grid and len(report.grid.axes) == 1:
            yield f"{prefix}: {DELTA} {effect.label} = {format_effect(effect)}"
    if leakage := report.leakage:
        yield from (f"  {note}" for note in leakage.notes)
        if leakage.checked and not leakage.notes:
            yield f"  no arm sees future tokens ({len(leakage.checked)} checked)"


def _format_table(table: Table) -> Iterator[str]:
    """The columns for readers, each as wide as its longest cell."""
    lines = [[table.columns[i].heading for i in table.shown]]
    lines += [[row.cells[i].content for i in table.shown] for row in table.full_rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "    " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
