"""Results of an experiment on several corpora: each arm and each claim on every corpus."""

from typing import Final
from urllib.parse import quote

from attnlab.report import section
from attnlab.report.answer import get_primary_effects
from attnlab.report.number_format import NONE, append_unit
from attnlab.report.schema import CorporaSection, Report
from attnlab.report.section import Block, Cell, Column, Fold, Items, Section, Table
from attnlab.report.sections import PageContext
from attnlab.report.tables.wording import DELTA, build_effect_cell, build_training_cell

PLACE: Final = 25
LONG_LIST = 4  # corpora, above which the table of claims is folded


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of corpora; None for an experiment on one corpus."""
    corpora = report.corpora
    if corpora is None or report.replication is None:
        return None
    own = report.replication.name
    blocks: list[Block] = [_build_arms(report, corpora, own)] if corpora.arms else []
    notes = [f"{claim.says}: {claim.heterogeneity}." for claim in corpora.claims if claim.heterogeneity]
    claims: list[Block] = [_build_claims(corpora, own), *([Items(notes)] if notes else [])]
    blocks += [Fold("Every claim on every corpus", claims)] if len(corpora.names) > LONG_LIST else claims
    return Section("corpora", "Corpora", blocks, "Results by corpus")


def _link(corpus: str, title: str, own: str) -> Cell:
    return Cell(corpus, href="" if corpus == own else f"../{quote(title)}/report.html")


def _build_arms(report: Report, corpora: CorporaSection, own: str) -> Table:
    """The mean of every arm on every corpus, with the verdict on its difference."""
    effect = next(iter(get_primary_effects(report).values()), None)
    label = append_unit(effect.label, effect.unit) if effect else report.experiment.metric
    arms = report.experiment.arms
    rows = [
        [
            _link(row.corpus, row.title, own),
            *(section.number(cell.mean, 3, note=cell.state or "") for cell in row.cells),
        ]
        for row in corpora.arms
    ]
    caption = (
        f"Mean {label} of every arm on every corpus, and the verdict on its difference from "
        f"{report.experiment.baseline} there, by the interval at the level of its claim."
    )
    return Table("corpus_arms", caption, [Column("corpus"), *map(Column, arms)], rows, by_arm=True)


def _build_claims(corpora: CorporaSection, own: str) -> Table:
    """Each claim on every corpus."""
    rows = []
    for claim in corpora.claims:
        for n, row in enumerate(claim.rows):
            rows.append(
                [
                    Cell("" if n else claim.says, claim.says, kind="prose"),
                    _link(row.corpus, row.title, own),
                    section.verdict(row.verdict),
                    build_effect_cell(row),
                    Cell(row.decision or NONE),
                    build_training_cell(row.training_equivalent),
                ]
            )
    columns = [
        Column("claim", "says"), Column("corpus"), Column("verdict"),
        Column(DELTA, "effect", ends=("low", "high")), Column("deciding interval", "decision"),
        Column("training compute", "training"),
    ]  # fmt: skip
    caption = (
        f"The same claims on every corpus, each with its own runs; this page covers {own}. {DELTA} is the "
        "arm minus the arm that it is compared with; the deciding interval has the level of the alpha "
        "allocated to the claim."
    )
    return Table("corpus_claims", caption, columns, rows, is_sortable=False)
