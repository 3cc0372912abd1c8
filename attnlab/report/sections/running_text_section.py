"""Running text: losses by token category, and samples that the arms generate after the same prompt."""

from typing import Final

from attnlab.report import section
from attnlab.report.schema import Report, RunningTextSection, SeedRange
from attnlab.report.section import Block, Cell, Code, Column, Fold, Heading, Section, Table
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import MANY_ARMS
from attnlab.report.tables.wording import DELTA

PLACE: Final = 95


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of running text; None if no run measured any."""
    text = report.text
    if not text or not (text.token_categories or text.samples):
        return None
    many = len(report.experiment.arms) > MANY_ARMS
    blocks: list[Block] = []
    if text.token_categories:
        losses = _build_losses(text, report.experiment.baseline)
        title = "Loss by token category"
        blocks += [Fold(title, [losses])] if many else [Heading(title), losses]
    if text.samples:
        reading = section.note(
            "One run of each arm continues the same prompt, with the same random numbers at temperature 0.8 "
            "and a context of at most the trained length. A single sample does not show which model is "
            "better."
        )
        first, samples = text.samples[0], _build_samples(text)
        shown: list[Block] = [
            Code(first.prompt), samples, Fold("Original continuation", [Code(first.rest)]),
        ]  # fmt: skip
        blocks += [Heading("Generated samples"), reading]
        blocks += [Fold("Samples of all arms", shown)] if many else shown
    return Section("text", "Running text", blocks)


def _build_losses(text: RunningTextSection, baseline: str) -> Table:
    """A row per category and arm."""
    columns = [
        Column("category", "kind"),
        Column("arm"),
        Column("tokens", "targets"),
        Column("seeds"),
        Column("loss", "loss_mean", "nats", ends=("loss_low", "loss_high")),
        Column(
            f"{DELTA} to {baseline}", "difference_mean", "nats", ends=("difference_low", "difference_high")
        ),
    ]
    rows: list[list[Cell | str]] = [
        [
            category.label,
            section.arm(row.arm),
            section.number(category.targets),
            section.number(row.seeds),
            _build_range(row.loss),
            _build_range(row.difference, sign=True),
        ]
        for category in text.token_categories
        for row in category.arms
    ]
    caption = (
        "Mean and range over seeds on the same validation tokens in every run, and of the paired differences "
        f"to {baseline}. Each token belongs to one category by its characters, and to one of the two pair "
        "categories. The categories are not preregistered, so they decide no claim."
    )
    return Table("token_losses", caption, columns, rows)


def _build_range(values: SeedRange | None, *, sign: bool = False) -> Cell:
    if values is None:
        return section.number(None)
    return section.interval(values.mean, values.low, values.high, 3, sign=sign)


def _build_samples(text: RunningTextSection) -> Table:
    """A row per arm."""
    has_reason = any(row.reason for row in text.samples)
    columns = [
        Column("arm"),
        Column("seed"),
        Column("", "run"),
        Column("", "prompt"),
        Column("sample"),
        Column("", "rest"),
        Column("reason for no sample" if has_reason else "", "reason"),
    ]
    rows: list[list[Cell | str]] = [
        [
            section.arm(row.arm),
            section.number(row.seed),
            row.run,
            row.prompt,
            section.EMPTY if row.sample is None else section.code(row.sample),
            row.rest,
            Cell(row.reason) if row.reason else section.EMPTY,
        ]
        for row in text.samples
    ]
    return Table("samples", "Text that each arm generates.", columns, rows, is_long=True)
