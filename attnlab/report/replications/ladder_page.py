"""Files of a ladder: ladder.json, and the page and the Markdown that are rendered from it alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attnlab.report.charts.vega_layers import assign_styles
from attnlab.report.ladder_schema import LADDER_FILE, Comparison, LadderReport
from attnlab.report.markdown_text import Markdown, format_code_block, format_table, join_lines
from attnlab.report.number_format import NONE, format_bounds, format_number
from attnlab.report.pages.html import FIGURE_WIDTHS, render_figure_page
from attnlab.report.pages.markdown import format_citation
from attnlab.report.pages.report_files import format_json, update_index, write_atomically
from attnlab.report.replications import ladder_figures
from attnlab.report.replications.ladder_analysis import build_ladder_report
from attnlab.report.report_builder import to_plain_json
from attnlab.report.schema import Report
from attnlab.report.tables.claim_sources import Citation, load_ladder_citations, load_reworded_ladder
from attnlab.report.tables.source_links import find_bibliography
from attnlab.report.tables.wording import format_level
from attnlab.stats.replications.budget_verdict import BUDGET_RULE_TEXT
from attnlab.stats.replications.scaling_verdict import RULE_TEXT

# A scaling or budget verdict has the color of a claim verdict: holds, changes for the worse, or unknown.
VERDICT_TONES = {
    "HOLDS": "SUPPORTED",
    "PERSISTS": "SUPPORTED",
    "GROWS": "SUPPORTED",
    "SHRINKS": "REFUTED",
    "SAME PLATEAU": "REFUTED",
    "FLIPS": "REFUTED",
}
DEFAULT_TONE = "INCONCLUSIVE"
DEVIATION_NOTE = "A report of this ladder deviates from the preregistration; it lists the deviations itself."
EFFECT_CAPTION = "Filled: mean at a ladder size with its 95% interval. Rings: single seeds. "
SIZE_CAPTION = (
    f"{EFFECT_CAPTION}Line and gray band: the fit over all seeds. Open diamond, dashed: extrapolation to ten "
    "times the compute of the largest size. Shaded: the margin."
)
BUDGET_CAPTION = (
    f"{EFFECT_CAPTION.replace('ladder size', 'budget')}Line and gray band: the mean of the seeds' lines and "
    "its 95% interval. Shaded: the margin."
)


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
    citations = load_ladder_citations(folder, ladder)
    bibliography = find_bibliography(folder)
    markdown = render_ladder_markdown(ladder, citations, bibliography)
    page = render_ladder_html(ladder, citations, bibliography)
    write_atomically(folder / "ladder.md", markdown.encode())
    write_atomically(folder / "report.html", page.encode())


def format_ladder_lines(ladder: LadderReport) -> list[str]:
    """The terminal summary of a ladder."""
    comparison_lines = []
    for row in ladder.comparisons:
        comparison_lines += [f"  {row.verdict}: {row.arm} against {row.against}: {row.sentence}"]
        caveats = (_format_reason(row), describe_learning_rate_caveat(ladder, row))
        comparison_lines += [f"  {caveat}" for caveat in caveats if caveat]
    notes = [f"  EXPLORATORY: {DEVIATION_NOTE}"] if ladder.exploratory else []
    agreement = [] if ladder.ladder.budgets else [f"  {ladder.agreement.sentence}"]
    return [f"{ladder.name}: {ladder.headline}", *notes, *comparison_lines, *agreement]


def render_ladder_html(
    ladder: LadderReport,
    citations: Sequence[Citation] = (),
    bibliography: str = "",
) -> str:
    """The page of a ladder.

    Args:
        citations: of each claim.
        bibliography: the address of the bibliography, as of `find_bibliography`; empty links no entry of it.
    """
    figures = [
        figure
        for suffix, width in FIGURE_WIDTHS.items()
        for figure in (
            *ladder_figures.build_ladder_effect_figures(ladder, width, suffix),
            *ladder_figures.build_loss_figures(ladder, width, suffix),
        )
    ]
    return render_figure_page(
        "ladder.html",
        figures,
        r=ladder,
        scope=describe_sizes_and_verdicts(ladder),
        styles=assign_styles(ladder.arms, ladder.baseline),
        tones={row.verdict: VERDICT_TONES.get(row.verdict, DEFAULT_TONE) for row in ladder.comparisons},
        intervals=describe_intervals(ladder),
        rule=describe_rule(ladder),
        caption=BUDGET_CAPTION if ladder.ladder.budgets else SIZE_CAPTION,
        learning_rates=describe_learning_rates(ladder),
        describe_caveat=describe_learning_rate_caveat,
        deviation_note=DEVIATION_NOTE,
        citations=citations,
        bibliography=bibliography,
    )


def describe_sizes_and_verdicts(ladder: LadderReport) -> str:
    """The sizes and the corpus, and the verdicts of all claims."""
    claims = [f"{claim.says}: {ladder.format_claim_verdicts(claim)}" for claim in ladder.claims]
    scope = ", ".join(filter(None, (f"{len(ladder.sizes)} {ladder.step_name}s", ladder.scope)))
    return " ".join(f"{sentence}." for sentence in (scope, "; ".join(claims)) if sentence)


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


def describe_rule(ladder: LadderReport) -> str:
    """The rule of the verdicts on its comparisons."""
    return BUDGET_RULE_TEXT if ladder.ladder.budgets else RULE_TEXT


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


def render_ladder_markdown(
    ladder: LadderReport,
    citations: Sequence[Citation] = (),
    bibliography: str = "",
) -> str:
    """The text of ladder.md; arguments as of `render_ladder_html`."""
    lines = [
        Markdown("# {}: {}").format(ladder.name, ladder.headline),
        "",
        ladder.question or "",
        "",
        describe_sizes_and_verdicts(ladder),
        "",
    ]
    lines += [Markdown("**EXPLORATORY**: {}").format(DEVIATION_NOTE), ""] if ladder.exploratory else []
    for row in ladder.comparisons:
        sentence = " ".join(
            filter(None, (row.sentence, _format_reason(row), describe_learning_rate_caveat(ladder, row)))
        )
        line = Markdown("- **{}**, {} against {}: {}")
        lines += [line.format(row.verdict, row.arm, row.against, sentence)]
    lines += ["", describe_intervals(ladder), ""]
    step = "budget" if ladder.ladder.budgets else "ladder size"
    names = [size.name for size in ladder.sizes]
    rows = [
        [
            f"{row.arm} against {row.against}",
            *(
                Markdown(
                    f"{format_number(effect.mean, 3, sign=True)} "
                    f"{format_bounds(effect.low, effect.high, 3)}, {effect.n} seeds"
                )
                for effect in row.effects
            ),
        ]
        for row in ladder.comparisons
    ]
    lines += [
        Markdown("## Effect at each {}").format(step),
        "",
        *format_table(["", *names], rows),
        describe_rule(ladder),
        "",
    ]
    rows = [[row.says, *(verdict or NONE for verdict in row.verdicts)] for row in ladder.claims]
    lines += [
        Markdown("## Claims"),
        "",
        *format_table(["claim", *names], rows),
        *_format_sources(ladder, citations, bibliography),
        *([] if ladder.ladder.budgets else [ladder.agreement.sentence, ""]),
    ]
    rows = [
        [
            size.name,
            *(format_number(value) for value in (size.parameters, size.tokens, size.steps)),
            ", ".join(f"{arm} {rate:g}" for arm, rate in size.learning_rates.items()),
            f"{size.finished} of {size.planned}",
        ]
        for size in ladder.sizes
    ]
    lines += [
        Markdown("## Budgets" if ladder.ladder.budgets else "## Ladder sizes"),
        "",
        *format_table([ladder.step_name, "parameters", "tokens", "steps", "learning rates", "runs"], rows),
    ]
    lines += [describe_learning_rates(ladder), "", *format_code_block(str(ladder.reproduce.command)), ""]
    return join_lines(lines)


def _format_sources(ladder: LadderReport, citations: Sequence[Citation], bibliography: str) -> list[str]:
    """The sources of the claims as a list, with an empty line after it."""
    texts = [format_citation(citation, bibliography) for citation in citations]
    lines = [
        Markdown("- {}. {}").format(claim.says, text)
        for claim, text in zip(ladder.claims, texts, strict=False)
        if text
    ]
    return [*lines, ""] if lines else []
