"""The ledger of the reference reports: a row per claim, with its source, as Markdown and a page with filters.

`make ledger` writes both, a pure function of report.json and experiment files. Surprising: wording, source
and reason of a claim come from the current experiment file (`tables/claim_sources.py`), so that they can be
corrected without new training.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import ChoiceLoader, FileSystemLoader
from ledger_goals import GOALS_NOTE, GoalOption
from ledger_rows import Ledger, LedgerReport, LedgerRow, format_totals, format_verdict_counts, load_ledger
from markupsafe import Markup
from outdated import OUTDATED_PAGE

from attnlab.report.markdown_text import Markdown, ReadableMarkdown, format_code, format_table, join_lines
from attnlab.report.number_format import format_percent
from attnlab.report.pages.html import build_environment, load_asset
from attnlab.report.tables.source_links import find_bibliography, render_source_markdown
from attnlab.stats.evidence import CONFIDENCE_LEVEL

SITE = Path(__file__).resolve().parent
REFERENCES = SITE.parents[1] / "reports" / "reference"
HEADER = ReadableMarkdown("""# Ledger

The options for each goal, and every tested claim with the finding of its source and the result here.
`make ledger` generates this page and ledger.html, which has the same tables with filters, from the reports
beside it. The verdicts are explained in the
README and in docs/reports.md of the project. Papers are cited by author, year and arXiv id, other documents
by title.

{totals}

{outdated_note}""")
OUTDATED_NOTE = ReadableMarkdown(f"""\
Code that alters numbers has changed since the reports marked "outdated" were generated:
[{OUTDATED_PAGE}]({OUTDATED_PAGE}) lists the changes of each. Ladders may have outdated sizes.
""")
GOALS_SECTION = ReadableMarkdown("""
## Options by goal

{note}
""")
CLAIM_HEADERS = ("experiment", "claim", "tested")
SOURCE_HEADERS = ("source", "finding of the source", "verdict")
HYPOTHESES_SECTION = ReadableMarkdown("""
## Hypotheses

Claims that the measurements could refute: {tally}. Each effect has its {level}% confidence interval. The
interval in "decided on" has the confidence level of the alpha that Holm's method allocates to the claim. For
inconclusive claims: seeds needed for 80% power at the observed effect, and their training time, one run at a
time. More seeds than preregistered require a new experiment on fresh (held-out) seeds, unless
`looks: anytime` is preregistered.
""")
DISPUTED_SECTION = ReadableMarkdown("""
## Where sources disagree

Both sources, and the result here.
""")
CONFLICTS_SECTION = ReadableMarkdown("""
## Results that differ

Pairs of reports that test the same arms at the same size on the same corpus, with different results, and the
settings in which they differ.
""")
CONFLICT_HEADERS = ("difference", "first report", "second report")
IDENTITIES_SECTION = ReadableMarkdown("""
## Identities

Claims that hold by construction (a count, an equality or a theorem): {tally}. Only a bug can refute them.
""")
REPORTS_SECTION = ReadableMarkdown("""
## Reports
""")
FALSE_POSITIVES_SECTION = ReadableMarkdown("""
## False positives

The {runs} different runs of `aa_null`, paired at random {rounds} times: how often each rule accepts a false
claim (a true difference of zero, or of exactly the margin). The nominal rate is at most 5%. So few runs leave
the rate uncertain: a rule fails if its lower bound, over bootstrap samples of the runs, is above 5%.
""")


def write_ledger(folder: Path) -> list[Path]:
    """Write README.md and ledger.html next to the reports.

    Raises:
        ValueError: there is no report, or one cannot be read.
    """
    ledger = load_ledger(folder)
    pages = {
        folder / "README.md": render_ledger_markdown(ledger, folder),
        folder / "ledger.html": render_ledger_html(ledger, folder),
    }
    for path, content in pages.items():
        path.write_bytes(content.encode(errors="backslashreplace"))  # names that are not UTF-8
    return list(pages)


def render_ledger_markdown(ledger: Ledger, folder: Path) -> str:
    """Render README.md."""
    hypotheses = ledger.select_rows(identity=False)
    identities = ledger.select_rows(identity=True)
    false_positives = ledger.false_positive_rates
    bibliography = find_bibliography(folder)
    level = format_percent(CONFIDENCE_LEVEL)
    parts = [
        HEADER.format(
            totals=format_totals(ledger),
            outdated_note=OUTDATED_NOTE if ledger.outdated else "",
        ),
        *_build_goals_section(ledger),
        HYPOTHESES_SECTION.format(tally=format_verdict_counts(hypotheses), level=level),
        *([ReadableMarkdown("{}\n").format(ledger.agreement)] if ledger.agreement else []),
        _format_table(
            (
                *CLAIM_HEADERS,
                "rationale",
                *SOURCE_HEADERS,
                f"effect, {level}% CI",
                "decided on",
                "seeds",
                "across sizes or budgets",
                "on other corpora",
            ),
            [
                (
                    *_build_claim_cells(row, ledger),
                    row.reason,
                    *_build_source_cells(row, bibliography),
                    _format_effect_cell(row),
                    row.decision_interval,
                    row.seeds,
                    row.ladder_verdict,
                    row.corpora,
                )
                for row in hypotheses
            ],
        ),
        *_build_disputed_section(ledger, bibliography),
        *_build_conflicts_section(ledger),
        IDENTITIES_SECTION.format(tally=format_verdict_counts(identities)),
        _format_table(
            (*CLAIM_HEADERS, *SOURCE_HEADERS, "result", "seeds"),
            [
                (
                    *_build_claim_cells(row, ledger),
                    *_build_source_cells(row, bibliography),
                    row.effect,
                    row.seeds,
                )
                for row in identities
            ],
        ),
        REPORTS_SECTION,
        _format_table(
            ("experiment", "question", "verdicts", "cost", "command", "commit"),
            [
                (
                    _format_report_link(report, ledger),
                    report.question,
                    report.headline,
                    report.cost,
                    format_code(report.command),
                    format_code(report.commit),
                )
                for report in ledger.reports
            ],
        ),
    ]
    if false_positives:
        rules = _format_table(("rule", "false-positive rate", "lower bound"), false_positives.rules)
        parts += [
            FALSE_POSITIVES_SECTION.format(runs=false_positives.runs, rounds=false_positives.rounds),
            rules,
        ]
    return ReadableMarkdown("\n").join(parts)


def _build_goals_section(ledger: Ledger) -> list[str]:
    """Build a table of options per goal; empty if no report has a goal."""
    parts: list[str] = [GOALS_SECTION.format(note=Markdown(GOALS_NOTE))] if ledger.goals else []
    for table in ledger.goals:
        headers = ["experiment", "option", *(header for header, _ in table.columns)]
        rows = [
            (
                _format_report_link(option, ledger),
                f"{option.arm} vs {option.against}",
                *values,
            )
            for option, *values in zip(table.options, *(values for _, values in table.columns), strict=True)
        ]
        title = ReadableMarkdown("### {}\n").format(table.title)
        parts += [title, _format_table(headers, rows)]
    return parts


def _build_disputed_section(ledger: Ledger, bibliography: str) -> list[str]:
    """Build the claims that another source contradicts; empty if there are none."""
    rows = [
        (
            *(
                _format_report_link(row, ledger),
                row.says,
                _format_source("; ".join(row.sources), bibliography) + ": " + row.source_says,
                _format_source(row.conflicting_source, bibliography) + ": " + row.conflicting_says,
            ),
            *(row.verdict, _format_effect_cell(row), row.ladder_verdict),
        )
        for row in ledger.select_rows(identity=False)
        if row.conflicting_source
    ]
    head = (
        "experiment",
        "claim",
        "source",
        "conflicting source",
        "verdict",
        "effect",
        "across sizes or budgets",
    )
    return [DISPUTED_SECTION, _format_table(head, rows)] if rows else []


def _build_conflicts_section(ledger: Ledger) -> list[str]:
    """Build the pairs of reports that differ on the same arms; empty if there are none."""
    rows = list[tuple[str, ...]]()
    for name, conflict in ledger.conflicts:
        rows += [
            (
                "report",
                *(_format_link(folder, quote(os.fsencode(folder))) for folder in (name, conflict.folder)),
            )
        ]
        rows += [(row.label, row.here, row.there) for row in (*conflict.results, *conflict.settings)]
    return [CONFLICTS_SECTION, _format_table(CONFLICT_HEADERS, rows)] if rows else []


def _format_effect_cell(row: LedgerRow) -> str:
    training = f"; equivalent to {row.training_equivalent}" if row.training_equivalent else ""
    return f"{row.effect}{training}"


def _build_claim_cells(row: LedgerRow, ledger: Ledger) -> tuple[str, ...]:
    return _format_report_link(row, ledger), row.says, row.comparison


def _format_source(source: str, bibliography: str) -> Markdown:
    return render_source_markdown(source, bibliography, ReadableMarkdown)


def _build_source_cells(row: LedgerRow, bibliography: str) -> tuple[str, ...]:
    verdict = row.verdict + (f" on {row.corpus}" if row.corpus else "")
    verdict += " (exploratory)" if row.exploratory else ""
    return _format_source("; ".join(row.sources), bibliography), row.source_says, verdict


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markdown:
    return join_lines(format_table(head, rows, ReadableMarkdown))


def _format_report_link(row: LedgerRow | LedgerReport | GoalOption, ledger: Ledger) -> Markdown:
    mark = Markdown(f" ([outdated]({OUTDATED_PAGE}))" if row.folder in ledger.outdated else "")
    return _format_link(row.experiment, row.folder) + mark


def _format_link(text: str, address: str) -> Markdown:
    return ReadableMarkdown("[{}]({}/report.md)").format(text, Markdown(address))


def render_ledger_html(ledger: Ledger, folder: Path) -> str:
    """Render ledger.html: the same rows with filters that a script adds; without it all rows are shown."""
    choices = {
        "goal": {table.title for table in ledger.goals},
        "axis": {row.axis for row in ledger.rows},
        "verdict": {row.verdict for row in ledger.rows},
        "source": {source for row in ledger.rows for source in row.sources},
    }
    environment = build_environment()
    assert environment.loader
    environment.loader = ChoiceLoader([environment.loader, FileSystemLoader(SITE)])
    return environment.get_template("ledger.html").render(
        ledger=ledger,
        totals=format_totals(ledger),
        goals_note=GOALS_NOTE,
        bibliography=find_bibliography(folder),
        tally=format_verdict_counts,
        level=format_percent(CONFIDENCE_LEVEL),
        choices={name: sorted(values) for name, values in choices.items()},
        css=[load_asset("page.css"), Markup((SITE / "ledger.css").read_text("utf-8"))],
        js=[load_asset("page.js"), Markup((SITE / "ledger.js").read_text("utf-8"))],
    )


if __name__ == "__main__":
    print(*write_ledger(REFERENCES), sep="\n")
