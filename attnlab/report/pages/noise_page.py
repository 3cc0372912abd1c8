"""The noise of an experiment as Markdown, in a file and on the terminal."""

from collections.abc import Sequence

from attnlab.report.markdown_text import Markdown, ReadableMarkdown, format_code
from attnlab.report.noise_schema import DifferenceNoise, NoiseReport, NoiseSources
from attnlab.report.number_format import append_unit, format_number

DIGITS = 4  # decimals of standard deviations and effects


def format_noise(report: NoiseReport) -> str:
    """Format a report of `attnlab noise` as Markdown; its tables are aligned for a terminal."""
    sources = [_format_sources(each) for each in (*report.arms, *report.differences)]
    size = f" at size {report.size}" if report.size else ""
    blocks: list[str] = [
        ReadableMarkdown("# Noise of {}{}").format(report.title, size),
        ReadableMarkdown(
            "Standard deviations of {0} from {1} initialization seeds, each with {1} data-order seeds. `all` "
            "is the standard deviation of one run, with its 95% interval. `evaluation` is the standard error "
            "over the validation windows; more seeds do not lower it, and claims are about these windows."
        ).format(append_unit(report.metric, report.unit), report.levels),
        _format_table(
            ["", "mean", "initialization", "data order", "rest", "all", "95% CI", "evaluation"], sources
        ),
    ]
    blocks += [_format_truncation(each) for each in (*report.arms, *report.differences) if each.truncated]
    if report.differences:
        blocks += [
            "The smallest effect that a t test of paired seeds detects with "
            f"{report.power:.0%} power, in one analysis after all seeds: at a two-sided alpha of "
            f"{report.alpha:g}, and in parentheses at {report.alpha:g}/{report.family}, the first Holm step "
            f"of {report.family} claims.",
            _format_table(
                ["seeds", "minutes", *(each.name for each in report.differences)],
                [
                    [str(rows[0].seeds), f"{rows[0].minutes:.1f}"]
                    + [f"{row.single:.{DIGITS}f} ({row.holm:.{DIGITS}f})" for row in rows]
                    for rows in zip(*(each.detectable for each in report.differences), strict=True)
                ],
            ),
            *(_format_thresholds(each, report) for each in report.differences),
        ]
    seconds = ", ".join(f"{arm} {value:.1f} s" for arm, value in report.seconds.items())
    blocks.append(
        f"Minutes are for all arms of the experiment on {report.slots} slots, at these mean times of a run: "
        f"{seconds}."
    )
    blocks.append(ReadableMarkdown("Command: {}").format(format_code(report.command)))
    return ReadableMarkdown("\n\n").join(blocks) + "\n"


def _format_sources(sources: NoiseSources) -> list[str]:
    values = (sources.initialization, sources.data_order, sources.rest, sources.sd)
    return [
        sources.name,
        format_number(sources.mean, DIGITS, sign=len(sources.weights) > 1),
        *(f"{value:.{DIGITS}f}" for value in values),
        f"[{sources.low:.{DIGITS}f}, {sources.high:.{DIGITS}f}]",
        format_number(sources.evaluation, DIGITS),
    ]


def _format_truncation(sources: NoiseSources) -> str:
    names = " and ".join(sources.truncated)
    return f"{sources.name}: the estimated variance of {names} is negative, and shown as 0."


def _format_thresholds(difference: DifferenceNoise, report: NoiseReport) -> str:
    margin = (
        f"{report.margin_text}, not yet known in {report.unit or 'numbers'}"
        if report.margin is None
        else f"{format_number(report.margin, DIGITS)}, which requires "
        f"{difference.seeds_for_margin or 'more than 10,000'} seeds for equal arms"
    )
    thresholds = ", ".join(format_number(value, DIGITS, sign=True) for value in difference.thresholds)
    return f"{difference.name}: margin {margin}; thresholds of its claims: {thresholds or 'none'}."


def _format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markdown:
    table = [[ReadableMarkdown.escape(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        for cells in table
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return Markdown("\n".join(lines))
