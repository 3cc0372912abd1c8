"""report.json to Markdown for a pull request: verdict, budget, effects, failures, without pictures."""

from collections.abc import Iterable, Sequence

from attnlab.report.answer import (
    build_answer,
    build_arms_table,
    has_corpora_first,
)
from attnlab.report.charts.comparison_figures import classify_budget_cell
from attnlab.report.grid_schema import GridSection
from attnlab.report.markdown_text import Markdown, format_code, format_code_block, format_table, join_lines
from attnlab.report.number_format import (
    NONE,
    TIMES,
    format_compute_amount,
    format_number,
    format_preregistration,
    format_pvalue,
    get_layer_letter,
)
from attnlab.report.schema import ClaimResult, Report, Reproduce
from attnlab.report.tables import effective_speedup, grid_layout, interim_analyses
from attnlab.report.tables.claim_group_tables import (
    GROUP_HEADER,
    build_group_table,
    explain_group,
    name_group,
)
from attnlab.report.tables.claim_sources import Citation, build_citations
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.picked_rates import (
    average_trials,
    describe_picked_rates,
    get_selection_statistic,
)
from attnlab.report.tables.source_links import render_source_markdown
from attnlab.report.tables.wording import (
    DECISIONS_NOTE,
    DELTA,
    HOLM_OVER_ARMS,
    HOLM_OVER_CLAIMS,
    SENSITIVITY_HEADER,
    SENSITIVITY_NOTE,
    SUPPORTED_NOTE,
    build_sensitivity_rows,
    describe_claim,
    describe_outliers,
    explain_verdict,
    explain_wide_intervals,
    find_claim_effect,
    format_decision,
    format_effect,
    format_effect_level,
    format_required_seeds,
    format_threshold,
    format_training,
)
from attnlab.report.verdicts.budget_check import describe_short_training
from attnlab.report.verdicts.environment import RESULT_PACKAGES

BUDGET_SIGNS = {
    "equal": "✓",
    "differs, controlled": "✗ controlled",
    "unmatched by design": "† unmatched by design",
    "differs": "≠",
    "unknown": "?",
}
VERDICT_SIGNS = {
    "SUPPORTED": "✓",
    "REFUTED": "✗",
    "INCONCLUSIVE": "?",
    "NOT COMPARABLE": "≠",
    "UNTRAINED": "∅",
    "DEMONSTRATION": "∅",
    "NO RESULT": "∅",
}


def render_markdown(
    report: Report,
    notices: Sequence[str] = (),
    bibliography: str = "",
) -> str:
    """The short report; report.html beside it has the rest.

    Args:
        notices: sentences for the top of the page, such as messages about missing pictures.
        bibliography: the address of the bibliography, as of `find_bibliography`; empty links no entry of it.
    """
    experiment = report.experiment
    verdict = report.verdict
    lines = [
        Markdown("# {}: {}").format(report.title, build_headline(report)),
        "",
        experiment.question or "",
        "",
    ]
    if verdict.exploratory:
        reason = (
            "no preregistration"
            if verdict.not_preregistered
            else "the sweep deviates from its preregistration"
        )
        lines += [Markdown("**EXPLORATORY**: {}.").format(reason), ""]
        lines += [*_format_list(verdict.deviations), ""]
    lines += [line for sentence in (*notices, *verdict.run_warnings) for line in (format_bold(sentence), "")]
    answer = build_answer(report)
    lines += [*_format_grid(report.grid), Markdown("## Arms"), ""] if report.grid else []
    lines += [answer.sentence, ""]
    lines += [format_bold(sentence), ""] if (sentence := describe_short_training(report.budget)) else []
    corpus_arms = _format_corpus_arms(report, answer.label)
    lines += corpus_arms if has_corpora_first(report) else []
    lines += [note, ""] if (note := explain_wide_intervals(report)) else []
    header, rows = build_arms_table(report, answer)
    lines += format_table(header, rows)
    lines += _format_verdict(report, bibliography)
    lines += ([] if has_corpora_first(report) else corpus_arms) + _format_corpus_claims(report)
    lines += _format_claim_groups(report)
    lines += [Markdown("## Budget check"), "", *_format_budget(report), *_format_layers(report)]
    lines += [Markdown("## Effects"), "", *_format_effects(report), *_format_speedups(report)]
    lines += _format_token_categories(report)
    lines += [Markdown("## Failures and caveats"), "", *_format_failures(report)]
    if report.preregistration:
        citation = format_preregistration(report.preregistration, is_changed=verdict.exploratory)
        lines += [citation, ""]
    provenance = report.reproduce
    dirty = {True: "dirty", False: "clean", None: "unknown"}[provenance.dirty]
    lines += [Markdown("## Reproduce"), "", *format_code_block(provenance.command, "sh"), ""]
    lines += [
        Markdown(
            "Commit {} ({}), runs of {}, {}.{} The full report is in report.html and report.json."
        ).format(
            format_code(provenance.commit or "unknown"),
            dirty,
            provenance.date or "unknown date",
            provenance.device or "unknown device",
            _format_versions(provenance),
        ),
        "",
    ]
    return join_lines(lines)


def _format_list(items: Iterable[str]) -> list[Markdown]:
    return [Markdown("- {}").format(item) for item in items]


def format_bold(text: str) -> Markdown:
    return Markdown("**{}**").format(text)


def _format_claim_groups(report: Report) -> list[str]:
    """The steps of staircases, interactions and parts left out."""
    lines: list[str] = [Markdown("## Steps and interactions"), ""] if report.claim_groups else []
    for group in report.claim_groups:
        lines += [Markdown("**{}.** {}").format(name_group(group), explain_group(group)), ""]
        lines += [line for note in group.notes for line in (f"{note}.", "")]
        lines += format_table(GROUP_HEADER, build_group_table(group))
    return lines


def _format_grid(grid: GridSection) -> list[str]:
    """The cells of a sweep without an experiment, and its main effects."""
    lines: list[str] = [Markdown("## Grid: {}").format(grid_layout.name_grid(grid)), ""]
    lines += [grid_layout.format_best_cell(grid), ""]
    lines += format_table(grid_layout.list_cell_headings(grid), grid_layout.build_cell_rows(grid))
    if effects := grid_layout.build_effect_rows(grid):
        header = ["axis", "option", f"mean {grid.label}", DELTA, f"range of {DELTA}"]
        lines += format_table(header, effects)
    missing = [axis for axis in grid.axes if not axis.effects]
    lines += [line for axis in missing for line in (grid_layout.explain_missing_effects(axis), "")]
    notes = [grid_layout.EXPLORATORY_NOTE, *grid_layout.list_reading_notes(grid)]
    return [*lines, *_format_list(notes), ""]


def _format_versions(provenance: Reproduce) -> str:
    """The runs' versions of the packages that affect a result."""
    versions = provenance.versions or {}
    packages = [f"{name} {' and '.join(versions[name])}" for name in RESULT_PACKAGES if name in versions]
    return f" Packages: {', '.join(packages)}." if packages else ""


def _format_layers(report: Report) -> list[str]:
    lines = []
    for row in report.config.layers:
        kinds = "; ".join(f"{get_layer_letter(n)} {kind}" for n, kind in enumerate(row.kinds))
        letters = "".join(get_layer_letter(n) for n in row.layers)
        lines += [
            f"Layers of {row.arm}, first layer on the left: {letters}. {kinds}.",
            "",
        ]
    return lines


def format_citation(citation: Citation, bibliography: str) -> Markdown:
    """A claim's source, its statement and the conflicting source, with links; empty without a source."""
    if not citation.source:
        return Markdown()
    pairs = [(citation.source, citation.source_says), (citation.other_source, citation.other_says)]
    first, *conflicting = [
        Markdown(": ").join(filter(None, (render_source_markdown(source, bibliography), says)))
        for source, says in pairs
        if source
    ]
    return Markdown(" ").join(
        [
            Markdown("Source: {}.").format(first),
            *(Markdown("Conflicting source: {}.").format(text) for text in conflicting),
        ]
    )


def _format_verdict(report: Report, bibliography: str) -> list[str]:
    lines = [SUPPORTED_NOTE, ""] if report.verdict.claims else []
    claims = zip(report.verdict.claims, build_citations(report), strict=True)
    for number, (claim, citation) in enumerate(claims, 1):
        outcome = describe_claim(claim, find_claim_effect(claim, report.effects))
        source = format_citation(citation, bibliography)
        line = Markdown("{}. {} **{}** {} {}").format(
            number, VERDICT_SIGNS[claim.verdict], outcome, explain_verdict(claim), source
        )
        lines += [line.rstrip()]
    lines += [""] if report.verdict.claims else ["No preregistered claim.", ""]
    if report.compute_calibration:
        lines += [f"{report.compute_calibration.summary}.", ""]
    if margin_text := report.experiment.margin_text:  # a margin in training compute
        lines += [f"Margin: {format_compute_amount(margin_text)}.", ""]
    for number, claim in enumerate(report.verdict.claims, 1):
        if required_seeds := format_required_seeds(claim):
            lines += [f"Claim {number}: {required_seeds}", ""]
    lines += _format_decisions(report.verdict.claims)
    for number, claim in enumerate(report.verdict.claims, 1):
        if interim_analyses.has_interim_results(claim):
            rows = [
                interim_analyses.build_analysis_cells(claim, row)
                for row in interim_analyses.build_analysis_rows(claim)
            ]
            title = interim_analyses.format_analyses_title(claim)
            lines += [
                f"Interim analyses of claim {number}, {title}:",
                "",
                *format_table([*interim_analyses.HEADER], rows),
            ]
    return lines


def _format_decisions(claims: Sequence[ClaimResult]) -> list[str]:
    """Decisions and sensitivity analyses of the tested claims; empty without any."""
    rows = [
        [
            Markdown("{}. {}, {}: {}").format(
                number, claim.comparison_text, claim.label, format_threshold(claim)
            ),
            f"{claim.decision.n}" + (f" of {claim.planned}" if claim.planned else ""),
            format_number(claim.decision.estimate, claim.digits, sign=claim.compare == "difference"),
            format_decision(claim) or NONE,
            Markdown(format_pvalue(claim.decision.p)),
            Markdown(format_pvalue(claim.decision.p_holm)),
        ]
        for number, claim in enumerate(claims, 1)
        if not claim.holds_by_construction
    ]
    if not rows:
        return []
    header = ["claim", "seeds", "estimate", "deciding interval", "p", HOLM_OVER_CLAIMS]
    lines = [DECISIONS_NOTE, "", *format_table(header, rows)]
    if sensitivity_rows := build_sensitivity_rows(claims):
        lines += [SENSITIVITY_NOTE, "", *format_table(SENSITIVITY_HEADER, sensitivity_rows)]
    return lines


def _format_corpus_arms(report: Report, label: str) -> list[str]:
    """Each arm on every corpus, where the experiment has several."""
    section = report.corpora
    if section is None or not section.arms:
        return []
    mean_rows = [
        [
            row.corpus,
            *(
                " ".join([format_number(corpus_cell.mean, 3), *filter(None, [corpus_cell.state])])
                for corpus_cell in row.cells
            ),
        ]
        for row in section.arms
    ]
    return format_table([label, *report.experiment.arms], mean_rows)


def _format_corpus_claims(report: Report) -> list[str]:
    """Each claim on every corpus, where the experiment has several."""
    section = report.corpora
    if section is None:
        return []
    rows = [
        [
            claim.says,
            row.corpus,
            row.verdict,
            format_effect(row),
            row.decision or NONE,
        ]
        for claim in section.claims
        for row in claim.rows
    ]
    heterogeneity = [
        f"{claim.says}: {claim.heterogeneity}." for claim in section.claims if claim.heterogeneity
    ]
    lines = format_table(["claim", "corpus", "verdict", DELTA, "deciding interval"], rows) if rows else []
    return [*lines, *_format_list(heterogeneity), ""] if lines else []


def _format_budget(report: Report) -> list[str]:
    budget = report.budget
    rows = []
    for row in budget.rows:
        name = Markdown.escape(row.label + (f" ({row.unit})" if row.unit else "")) + (
            Markdown(" **controlled**") if row.controlled else ""
        )
        cells = []
        for entry in row.cells:
            ratio = (
                f" ({format_number(entry.ratio, 3)}{TIMES})"
                if entry.ratio is not None and entry.ratio != 1
                else ""
            )
            sign = BUDGET_SIGNS[classify_budget_cell(budget, row, entry)]
            cells.append(f"{format_number(entry.value)}{ratio} {sign}")
        rows.append([name, *cells])
    rows.append(
        [
            "finished seeds of required",
            *(f"{count.finished} of {count.planned}" for count in budget.seeds),
        ]
    )
    return [
        *format_table(["", *report.experiment.arms], rows),
        *([describe_picked_rates(report), ""] if budget.tuning else []),
        f"Learning-rate tuning: {budget.lr_tuning}.",
        "",
        *(
            [f"Compute calibration: {report.compute_calibration.cost}.", ""]
            if report.compute_calibration
            else []
        ),
        *_format_tuning(report),
    ]


def _format_tuning(report: Report) -> list[str]:
    tuning = report.budget.tuning
    if tuning is None:
        return []
    statistic = get_selection_statistic(report)
    rows = [
        [
            entry.arm,
            format_number(row.lr),
            *(format_number(value, 3) for value in (*row.values, average_trials(row, statistic))),
            format_bold(row.outcome) if row.picked else row.outcome,
        ]
        for entry in tuning.arms
        for row in entry.rows
    ]
    seeds = [f"seed {seed}" for seed in tuning.seeds]
    header = ["arm", "learning rate", *seeds, f"{statistic} {tuning.metric}", ""]
    return format_table(header, rows)


def _format_effects(report: Report) -> list[str]:
    rows = [
        [
            row.arm,
            row.label,
            f"{row.n} of {row.planned}",
            format_effect(row),
            *(
                [Markdown(format_training(row.training_equivalent, "")) if row.training_equivalent else NONE]
                if report.compute_calibration
                else []
            ),
            Markdown(format_pvalue(row.p_holm)),
            f"{row.verdict}{format_effect_level(row, report.experiment.direction)}",
        ]
        for row in report.effects
    ]
    if not rows:
        return ["The baseline is the only arm.", ""]
    against = f"{DELTA} to {report.experiment.baseline}"
    training = ["training compute"] if report.compute_calibration else []
    return format_table(["arm", "metric", "seeds", against, *training, HOLM_OVER_ARMS, "verdict"], rows)


def _format_speedups(report: Report) -> list[str]:
    """The effective speed-up of each arm, where training compute was calibrated and the arms were timed."""
    rows = effective_speedup.build_speedup_table(report)
    if not rows:
        return []
    note = effective_speedup.explain_speedups(report)
    return [note, "", *format_table(effective_speedup.HEADER, rows)]


def _format_token_categories(report: Report) -> list[str]:
    """Loss of each arm by token category, where the runs measured it."""
    categories = report.text.token_categories if report.text else []
    if not categories:
        return []
    arms = report.experiment.arms
    rows = []
    for category in categories:
        losses = {row.arm: row.loss.mean for row in category.arms if row.loss}
        rows.append(
            [
                category.label,
                format_number(category.targets),
                *(format_number(losses.get(arm), 3) for arm in arms),
            ]
        )
    return format_table(["loss by token category (nats)", "targets", *arms], rows)


def _format_failures(report: Report) -> list[str]:
    lines = list[str]()
    for run in report.failures.runs:
        message = f": {run.message}" if run.message else ""
        lines += [Markdown("- **{}, seed {}** {}{}").format(run.arm, run.seed, run.status_label, message)]
    lines += [""] if lines else ["Every required run finished.", ""]
    caveats = filter(None, (describe_outliers(report), *report.failures.caveats, *report.warnings))
    return [*lines, *_format_list(caveats), ""]
