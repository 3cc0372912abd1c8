"""Files of a ladder: ladder.json, and the page and the Markdown that are rendered from it alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from attnlab.report import section
from attnlab.report.charts.vega_layers import assign_styles
from attnlab.report.ladder_schema import LADDER_FILE, Comparison, FloorMultiplier, LadderReport
from attnlab.report.number_format import NONE, format_number
from attnlab.report.pages.html import render_page
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.pages.report_files import format_json, update_index, write_atomically
from attnlab.report.replications import ladder_figures
from attnlab.report.replications.ladder_analysis import build_ladder_report
from attnlab.report.report_builder import to_plain_json
from attnlab.report.schema import MeanInterval, Report, TrainingEquivalent, Verdict
from attnlab.report.section import (
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Key,
    Link,
    Page,
    Row,
    Section,
    Table,
    Text,
    join_text,
    note,
)
from attnlab.report.sections.reproduce_section import DIRTY_WORDS
from attnlab.report.tables.claim_sources import Citation, load_ladder_citations, load_reworded_ladder
from attnlab.report.tables.source_links import find_bibliography, format_citation
from attnlab.report.tables.wording import build_training_cell, format_level
from attnlab.stats.replications.budget_verdict import BUDGET_RULE_TEXT
from attnlab.stats.replications.scaling_verdict import RULE_TEXT

DEVIATION_NOTE = "A report of this ladder deviates from the preregistration; it lists the deviations itself."
DIGITS = 3


def write_ladder(folder: Path, reports: Mapping[str, Report]) -> Path:
    """Write the ladder of these reports to its folder and return its page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / LADDER_FILE, format_json(to_plain_json(build_ladder_report(reports).to_dict())).encode()
    )
    return render_ladder(folder)


def render_ladder(folder: Path) -> Path:
    """Render report.html and ladder.md of the ladder in a folder, from its data alone; return the page."""
    render_ladder_files(folder)
    update_index(folder)
    return folder / "report.html"


def render_ladder_files(folder: Path) -> None:
    """Render the files of one ladder; the index of all reports is unchanged."""
    ladder = load_reworded_ladder(folder)
    page = build_ladder_page(ladder, load_ladder_citations(folder, ladder), find_bibliography(folder))
    write_atomically(folder / "ladder.md", render_markdown(page).encode())
    write_atomically(folder / "report.html", render_page(page).encode())


def build_ladder_page(
    ladder: LadderReport, citations: Sequence[Citation] = (), bibliography: str = ""
) -> Page:
    """The page of a ladder.

    Args:
        citations: of each claim.
        bibliography: the address of the bibliography, as of `find_bibliography`; empty links no entry of it.
    """
    provenance = ladder.reproduce
    name = f"{ladder.name}: {ladder.headline}"
    on_corpus = f", on {ladder.corpus}" if ladder.corpus else ""
    sections = [
        _build_verdicts(ladder),
        _build_losses(ladder),
        _build_claims(ladder, citations or [Citation()] * len(ladder.claims), bibliography),
        _build_sizes(ladder),
        _build_reproduction(ladder),
    ]
    return Page(
        ladder.name,
        f"{name} · attnlab",
        ladder.name,
        join_text(ladder.question or "", f"{ladder.scope_question}{on_corpus}?"),
        [section for section in sections if section.blocks],
        meta=[
            Text("attnlab / ", Link("reports", "../index.html"), f" / {ladder.name}"),
            Text(provenance.date or "date unknown"),
            Text(f"commit {(provenance.commit or 'unknown')[:10]} ({DIRTY_WORDS[provenance.dirty]})"),
            Text(Link("json", LADDER_FILE), " · ", Link("md", "ladder.md")),
        ],
        styles=assign_styles(ladder.arms, ladder.baseline),
        baseline=ladder.baseline,
    )


def format_ladder_lines(ladder: LadderReport) -> list[str]:
    """The terminal summary of a ladder."""
    lines = [f"{ladder.name}: {ladder.headline}"]
    lines += [f"  EXPLORATORY: {DEVIATION_NOTE}"] if ladder.exploratory else []
    table = build_comparison_table(ladder)
    for record, row in zip(table.iterate_records(), table.full_rows, strict=True):
        lines += ["  {verdict}: {comparison}: {result}".format(**record)]
        lines += [f"  {block.plain}" for block in row.details if isinstance(block, Text)]
    return [*lines, *([f"  {ladder.agreement.sentence}"] if ladder.agreement.sentence else [])]


def _build_verdicts(ladder: LadderReport) -> Section:
    """The answer, the chart of the first claim's comparison, and the verdict on every comparison."""
    step = ladder.step_name
    answer = f"{Verdict.NO_RESULT}: no pair of arms was compared"
    results: list[Block] = []
    if ladder.comparisons:
        answer = f"{ladder.claims[0].says}: {ladder.summary}" if ladder.claims else ladder.headline
        chart = ladder_figures.build_effect_charts(ladder).get(ladder.main_index)
        results = [*([chart] if chart else []), build_comparison_table(ladder)]
    blocks: list[Block] = [Text(f"{answer}.", style="answer")]
    blocks += [Text(f"EXPLORATORY: {DEVIATION_NOTE}", style="banner")] if ladder.exploratory else []
    blocks += results
    blocks += [
        note(
            f"Margin {format_number(ladder.margin)} {ladder.unit} at each {step}. ",
            ladder.margin_reason or "",
        ),
        note(describe_intervals(ladder)),
    ]
    has_budgets = bool(ladder.ladder.budgets)
    rule = Text(BUDGET_RULE_TEXT if has_budgets else RULE_TEXT)
    title = f"Rule of the {'budget' if has_budgets else 'scaling'} verdict, and effects by {step}"
    return Section("verdict", f"Across {step}s", [*blocks, Fold(title, [rule, _build_effects(ladder)])])


def describe_intervals(ladder: LadderReport) -> str:
    """The level of the intervals of a ladder, and their difference from those of its reports."""
    source = (
        "are of the seeds that were trained with every budget"
        if ladder.ladder.budgets
        else "are of its seeds alone, with at least the noise that all sizes together show there"
    )
    return (
        f"All intervals are {format_level(ladder.level)}s. Those at one {ladder.step_name} {source}. They "
        f"decide the verdicts below, without the correction for interim analyses that the report of each "
        f"{ladder.step_name} has."
    )


def _format_reason(comparison: Comparison) -> str:
    """The reason of the verdict as a sentence."""
    reason = comparison.reason or ""
    return f"{reason[:1].upper()}{reason[1:]}." if reason else ""


def build_comparison_table(ladder: LadderReport) -> Table:
    """The verdict on every comparison with its sentence; reasons, caveats and chart are details."""
    charts = ladder_figures.build_effect_charts(ladder)
    names = (
        "arm",
        "against",
        "change",
        "at_tenfold_compute",
        "at_tenfold_parameters",
        "predicted",
        "observed",
    )
    rows = []
    for i, row in enumerate(ladder.comparisons):
        holdout = row.holdout
        predicted, observed = (
            _render_mean(holdout),
            section.number(holdout and holdout.observed, DIGITS, sign=True),
        )
        notes = [
            _format_reason(row),
            f"Prediction of the largest size: {predicted.content}; observed {observed.text}."
            if holdout
            else "",
            describe_learning_rate_caveat(ladder, row),
        ]
        details: list[Block] = [*map(note, filter(None, notes))]
        details += [charts[i]] if i in charts and i != ladder.main_index else []
        cells: list[Cell | str] = [
            f"{row.arm} against {row.against}",
            Cell(row.verdict, row.verdict, note=ladder.get_meaning(row), kind="verdict"),
            Cell(row.sentence, kind="prose"),
            row.arm,
            row.against,
            *map(_render_mean, (row.change, row.extrapolation, row.at_tenfold_parameters)),
            predicted,
            observed,
        ]
        rows.append(Row(cells, details))
    columns = [*map(Column, ("comparison", "verdict", "result")), *(Column("", name) for name in names)]
    return Table("ladder", f"Verdicts across {ladder.step_name}s.", columns, rows)


def describe_learning_rate_caveat(ladder: LadderReport, comparison: Comparison) -> str:
    """Caveat that two arms transfer different rates to steps of a ladder without tuning; else empty."""
    transfer = ladder.ladder.rates
    tuned_size = next((size for size in ladder.sizes if transfer and size.name == transfer.rung), None)
    arm_rate, against_rate = (
        tuned_size.learning_rates.get(arm) if tuned_size else None
        for arm in (comparison.arm, comparison.against)
    )
    if tuned_size is None or arm_rate is None or against_rate is None or arm_rate == against_rate:
        return ""
    return (
        f"At {tuned_size.name}, the tuned learning rates are {arm_rate:g} for {comparison.arm} and "
        f"{against_rate:g} for {comparison.against}; they are not tuned at the other {ladder.step_name}s, so "
        "part of the effect there may be due to the learning rate."
    )


def _build_effects(ladder: LadderReport) -> Table:
    """A row per comparison and size or budget."""
    columns = [
        Column("arm"), Column("against"), Column(ladder.step_name, "step"), Column("", "flops"),
        Column("effect", "mean", ladder.unit, ("low", "high")), Column("seeds", "n"),
    ]  # fmt: skip
    rows: list[list[Cell | str]] = [
        [
            section.arm(row.arm),
            row.against,
            effect.size,
            section.number(effect.flops),
            _render_mean(effect),
            section.number(effect.n),
        ]
        for row in ladder.comparisons
        for effect in row.effects
    ]
    step = "budget" if ladder.ladder.budgets else "ladder size"
    return Table("ladder_effects", f"Effect at each {step}, paired by seed.", columns, rows)


def _render_mean(mean: MeanInterval | None) -> Cell:
    return (
        section.interval(mean.mean, mean.low, mean.high, DIGITS, sign=True) if mean else section.number(None)
    )


def _build_losses(ladder: LadderReport) -> Section:
    """The loss of every arm by compute, and the compute that an arm saves."""
    charts = ladder_figures.build_loss_charts(ladder)
    blocks: list[Block] = [Key(), *charts] if charts else []
    columns = [
        Column("arm"),
        Column("assumed floor"),
        Column("floor", unit=ladder.unit),
        Column("training compute", "compute_change"),
    ]
    rows: list[list[Cell | str]] = [
        [
            section.arm(row.arm),
            name.replace(" %", "%") + ("" if name == "fitted" else " of the lowest loss"),
            section.number(multiplier.floor, 2),
            _render_multiplier(multiplier, ladder.level),
        ]
        for row in ladder.losses
        if row.multiplier
        for name, multiplier in row.multiplier.floors.items()
    ]
    if rows:
        caption = (
            f"Training compute that {ladder.baseline} needs to match the loss of an arm at the largest "
            "size, relative to the compute of the arm: at +25% it needs 1.25 times as much, so the arm "
            f"saves 1 − 1/1.25 = 20%. The estimate uses a power law through the losses of {ladder.baseline} "
            "above an unknown floor, so the table has several floors."
        )
        blocks.append(Table("ladder_compute", caption, columns, rows))
    return Section("losses", "Loss and compute", blocks)


def _render_multiplier(multiplier: FloorMultiplier, level: float) -> Cell:
    """A compute multiplier as the relative change of training compute that it is: 1.25 is +25%."""
    low, high = (None if end is None else end - 1 for end in (multiplier.low, multiplier.high))
    change = multiplier.value - 1
    return build_training_cell(TrainingEquivalent(compute_change=change, low=low, high=high, level=level))


def _build_claims(ladder: LadderReport, citations: Sequence[Citation], bibliography: str) -> Section:
    """The verdict on every claim at each size or budget."""
    step = "budget" if ladder.ladder.budgets else "ladder size"
    rows: list[list[Cell | str]] = [
        [
            Cell(claim.says, kind="prose"),
            *(section.verdict(verdict) if verdict else section.EMPTY for verdict in claim.verdicts),
            section.links(*format_citation(citation, bibliography)),
        ]
        for claim, citation in zip(ladder.claims, citations, strict=True)
    ]
    titles = ["claim", *(size.name for size in ladder.sizes), "source"]
    table = Table(
        "ladder_claims", f"Verdict at each {step}, from its own report.", [*map(Column, titles)], rows
    )
    agreement = [Text(ladder.agreement.sentence)] if ladder.agreement.sentence else []  # not of budgets
    return Section("claims", "Claims", [*agreement, table], f"Claims at each {step}")


def _build_sizes(ladder: LadderReport) -> Section:
    """Resources, learning rates and results of each size or budget."""
    columns = [
        Column(ladder.step_name, "step"), Column("parameters"),
        Column("without embeddings", "parameters_non_embedding"), Column("tokens"), Column("steps"),
        Column("FLOPs per run", "flops"), Column("learning rates", "learning_rates"),
        Column("runs", "finished"), Column("", "planned"), Column("verdict"),
    ]  # fmt: skip
    rows: list[list[Cell | str]] = [
        [
            Cell(size.name, href=f"../{quote(size.title)}/report.html"),
            *map(section.number, (size.parameters, size.parameters_non_embedding, size.tokens, size.steps)),
            Cell(f"{size.flops:.2g}" if size.flops else NONE, size.flops, kind="number"),
            ", ".join(f"{arm} {rate:g}" for arm, rate in size.learning_rates.items()),
            Cell(f"{size.finished} of {size.planned}", size.finished, kind="number"),
            section.number(size.planned),
            size.headline,
        ]
        for size in ladder.sizes
    ]
    title, caption = "Ladder sizes", f"Budget of {ladder.baseline} at each size."
    if ladder.ladder.budgets:
        title = "Budgets"
        caption = "All budgets share their seeds and, with schedule=wsd, the steps before the first decay."
    table = Table("ladder_sizes", f"{caption} {describe_learning_rates(ladder)}", columns, rows)
    return Section("sizes", title, [table])


def describe_learning_rates(ladder: LadderReport) -> str:
    """The origin of the learning rates of its sizes or budgets."""
    transfer = ladder.ladder.rates
    if transfer is None:
        return f"Learning rates are tuned at every {ladder.step_name}, or set by the experiment."
    if not transfer.power:
        return (
            f"The learning rate of each arm is tuned at {ladder.step_name} {transfer.rung}; the others have "
            "the same."
        )
    return (
        f"The learning rate of each arm is tuned at size {transfer.rung}; at the other sizes it is scaled by "
        f"the ratio of the training FLOPs of {ladder.baseline} to the power {format_number(transfer.power)}."
    )


def _build_reproduction(ladder: LadderReport) -> Section:
    device = note(f"Device: {ladder.reproduce.device or 'unknown'}. Finished runs are cached.")
    return Section("reproduce", "Reproduce", [Code(str(ladder.reproduce.command)), device])
