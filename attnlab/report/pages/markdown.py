"""report.json to Markdown for a pull request: verdict, budget, effects, failures, without pictures."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any
from urllib.parse import quote

from attnlab.report.answer import build_answer, build_arms_table, has_corpora_first
from attnlab.report.charts.comparison_figures import classify_budget_cell
from attnlab.report.number_format import (
    NONE,
    TIMES,
    format_compute_amount,
    format_number,
    format_preregistration,
    format_pvalue,
    get_layer_letter,
)
from attnlab.report.schema import Report, Reproduce, RequiredSeeds
from attnlab.report.tables import interim_analyses
from attnlab.report.tables.conflicts import Conflict
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.picked_rates import (
    average_trials,
    describe_picked_rates,
    get_selection_statistic,
)
from attnlab.report.tables.wording import (
    DELTA,
    describe_claim,
    explain_verdict,
    find_claim_effect,
    format_effect,
    format_training,
)
from attnlab.report.verdicts.environment import RESULT_PACKAGES

BUDGET_SIGNS = {"equal": "✓", "differs, controlled": "✗ controlled", "differs": "≠", "unknown": "?"}
VERDICT_SIGNS = {
    "SUPPORTED": "✓",
    "REFUTED": "✗",
    "INCONCLUSIVE": "?",
    "NOT COMPARABLE": "≠",
    "UNTRAINED": "∅",
    "NO RESULT": "∅",
}


def escape_cell(value: Any) -> str:
    """Text that cannot leave its table cell, nor become markup."""
    text = str(value)
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


def format_table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table as lines, with an empty line after it."""
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)] + [""]


def render_markdown(
    report: Report, figure_errors: Sequence[str] = (), conflicts: Sequence[Conflict] = ()
) -> str:
    """The short report; report.html beside it has the rest.

    Args:
        figure_errors: messages about missing pictures.
        conflicts: reports of the same folder that differ in their results.
    """
    experiment = report.experiment
    verdict = report.verdict
    lines = [
        f"# {escape_cell(report.title)}: {escape_cell(build_headline(report))}",
        "",
        escape_cell(experiment.question or ""),
        "",
    ]
    if verdict.exploratory:
        reason = (
            "no preregistration"
            if verdict.not_preregistered
            else "the sweep deviates from its preregistration"
        )
        lines += [f"**EXPLORATORY**: {reason}.", ""]
        lines += [f"- {escape_cell(item)}" for item in verdict.deviations] + [""]
    lines += [
        line
        for sentence in (*verdict.run_warnings, *figure_errors)
        for line in (f"**{escape_cell(sentence)}**", "")
    ]
    answer = build_answer(report)
    lines += [escape_cell(answer.sentence), ""]
    lines += [line for conflict in conflicts for line in _format_conflict(conflict)]
    corpus_arms = _format_corpus_arms(report, answer.label)
    lines += corpus_arms if has_corpora_first(report) else []
    header, rows = build_arms_table(report, answer)
    lines += format_table(
        [escape_cell(label) for label in header], [[escape_cell(label) for label in row] for row in rows]
    )
    lines += _format_verdict(report)
    lines += ([] if has_corpora_first(report) else corpus_arms) + _format_corpus_claims(report)
    lines += ["## Budget check", "", *_format_budget(report), *_format_layers(report)]
    lines += ["## Effects", "", *_format_effects(report), *_format_token_categories(report)]
    lines += ["## Failures and caveats", "", *_format_failures(report)]
    if report.preregistration:
        lines += [escape_cell(format_preregistration(report.preregistration)), ""]
    provenance = report.reproduce
    dirty = {True: "dirty", False: "clean", None: "unknown"}[provenance.dirty]
    lines += ["## Reproduce", "", "```sh", provenance.command, "```", ""]
    lines += [
        f"Commit `{provenance.commit or 'unknown'}` ({dirty}), "
        f"runs of {escape_cell(provenance.date or 'unknown date')}, "
        f"{escape_cell(provenance.device or 'unknown device')}.{_format_versions(provenance)} "
        "The full report is in report.html and report.json.",
        "",
    ]
    return "\n".join(lines)


def _format_conflict(conflict: Conflict) -> list[str]:
    """The sentence about a report that differs, and its results and settings beside those of this one."""
    folder = escape_cell(conflict.folder)
    rows = [[escape_cell(cell) for cell in astuple(row)] for row in conflict.results + conflict.settings]
    return [
        f"[{folder}](../{quote(conflict.folder)}/report.md) {escape_cell(conflict.summarize())}",
        "",
        *format_table(["difference", "here", folder], rows),
    ]


def _format_versions(provenance: Reproduce) -> str:
    """The runs' versions of the packages that affect a result."""
    versions = provenance.versions or {}
    packages = [f"{name} {' and '.join(versions[name])}" for name in RESULT_PACKAGES if name in versions]
    return f" Packages: {escape_cell(', '.join(packages))}." if packages else ""


def _format_layers(report: Report) -> list[str]:
    lines = []
    for row in report.config.layers:
        kinds = "; ".join(f"{get_layer_letter(n)} {kind}" for n, kind in enumerate(row.kinds))
        letters = "".join(get_layer_letter(n) for n in row.layers)
        lines += [
            f"Layers of {escape_cell(row.arm)}, first layer on the left: {letters}. {escape_cell(kinds)}.",
            "",
        ]
    return lines


def _format_verdict(report: Report) -> list[str]:
    lines = []
    for number, claim in enumerate(report.verdict.claims, 1):
        meaning = escape_cell(explain_verdict(claim))
        outcome = describe_claim(claim, find_claim_effect(claim, report.effects))
        lines += [f"{number}. {VERDICT_SIGNS[claim.verdict]} **{escape_cell(outcome)}** {meaning}"]
    lines += [""] if lines else ["No preregistered claim.", ""]
    if report.compute_calibration:
        lines += [f"{escape_cell(report.compute_calibration.summary)}.", ""]
    if margin_text := report.experiment.margin_text:  # a margin in training compute
        lines += [f"Margin: {escape_cell(format_compute_amount(margin_text))}.", ""]
    for number, claim in enumerate(report.verdict.claims, 1):
        if required_seeds := claim.required_seeds:
            lines += [f"Claim {number}: {_format_seeds_to_decide(required_seeds)}", ""]
    for number, claim in enumerate(report.verdict.claims, 1):
        if interim_analyses.has_interim_results(claim):
            rows = [
                [escape_cell(value) for value in interim_analyses.build_analysis_cells(claim, row)]
                for row in interim_analyses.build_analysis_rows(claim)
            ]
            title = escape_cell(interim_analyses.format_analyses_title(claim))
            lines += [
                f"Interim analyses of claim {number}, {title}:",
                "",
                *format_table([*interim_analyses.HEADER], rows),
            ]
    return lines


def _format_corpus_arms(report: Report, label: str) -> list[str]:
    """Each arm on every corpus, where the experiment has several."""
    section = report.corpora
    if section is None or not section.arms:
        return []
    mean_rows = [
        [
            escape_cell(row.corpus),
            *(
                " ".join([format_number(corpus_cell.mean, 3), *filter(None, [corpus_cell.state])])
                for corpus_cell in row.cells
            ),
        ]
        for row in section.arms
    ]
    header = [escape_cell(label), *(escape_cell(arm) for arm in report.experiment.arms)]
    return format_table(header, mean_rows)


def _format_corpus_claims(report: Report) -> list[str]:
    """Each claim on every corpus, where the experiment has several."""
    section = report.corpora
    if section is None:
        return []
    rows = [
        [escape_cell(claim.says), escape_cell(row.corpus), row.verdict, escape_cell(format_effect(row))]
        for claim in section.claims
        for row in claim.rows
    ]
    heterogeneity = [
        f"- {escape_cell(claim.says)}: {escape_cell(claim.heterogeneity)}."
        for claim in section.claims
        if claim.heterogeneity
    ]
    lines = format_table(["claim", "corpus", "verdict", DELTA], rows) if rows else []
    return [*lines, *heterogeneity, ""] if lines else []


def _format_seeds_to_decide(estimate: RequiredSeeds) -> str:
    if estimate.seeds is None:
        return "no number of seeds would decide it, because the estimate lies at the threshold."
    high = format_number(estimate.high) if estimate.high else "more than 10,000"
    interval = f" (between {format_number(estimate.low)} and {high})" if estimate.low else ""
    return (
        f"about {format_number(estimate.seeds)} seeds in total would {estimate.ends} it "
        f"with 80% power at the observed effect{interval}."
    )


def _format_budget(report: Report) -> list[str]:
    budget = report.budget
    rows = []
    for row in budget.rows:
        name = (
            escape_cell(row.label)
            + (f" ({row.unit})" if row.unit else "")
            + (" **controlled**" if row.controlled else "")
        )
        cells = []
        for entry in row.cells:
            ratio = (
                f" ({format_number(entry.ratio, 3)}{TIMES})"
                if entry.ratio is not None and entry.ratio != 1
                else ""
            )
            sign = BUDGET_SIGNS[classify_budget_cell(row, entry)]
            cells.append(f"{escape_cell(format_number(entry.value))}{ratio} {sign}")
        rows.append([name, *cells])
    rows.append(
        [
            "finished seeds of planned",
            *(f"{count.finished} of {count.planned}" for count in budget.seeds),
        ]
    )
    arms = [escape_cell(arm) for arm in report.experiment.arms]
    return [
        *format_table(["", *arms], rows),
        f"Learning-rate tuning: {escape_cell(budget.lr_tuning)}.",
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
            escape_cell(entry.arm),
            format_number(row.lr),
            *(format_number(value, 3) for value in (*row.values, average_trials(row, statistic))),
            f"**{row.outcome}**" if row.picked else row.outcome,
        ]
        for entry in tuning.arms
        for row in entry.rows
    ]
    seeds = [f"seed {seed}" for seed in tuning.seeds]
    header = ["arm", "learning rate", *seeds, f"{statistic} {escape_cell(tuning.metric)}", ""]
    return [escape_cell(describe_picked_rates(report)), "", *format_table(header, rows)]


def _format_effects(report: Report) -> list[str]:
    rows = [
        [
            escape_cell(row.arm),
            escape_cell(row.label),
            f"{row.n} of {row.planned}",
            escape_cell(format_effect(row)),
            *(
                [format_training(row.training_equivalent, "") if row.training_equivalent else NONE]
                if report.compute_calibration
                else []
            ),
            format_pvalue(row.p_holm),
            escape_cell(row.verdict),
        ]
        for row in report.effects
    ]
    if not rows:
        return ["The baseline is the only arm.", ""]
    against = f"{DELTA} to {escape_cell(report.experiment.baseline)}"
    training = ["training compute"] if report.compute_calibration else []
    return format_table(["arm", "metric", "seeds", against, *training, "p (Holm)", "verdict"], rows)


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
                escape_cell(category.label),
                format_number(category.targets),
                *(format_number(losses.get(arm), 3) for arm in arms),
            ]
        )
    header = ["loss by token category (nats)", "targets", *(escape_cell(arm) for arm in arms)]
    return format_table(header, rows)


def _format_failures(report: Report) -> list[str]:
    lines = []
    for run in report.failures.runs:
        lines += [
            f"- **{escape_cell(run.arm)}, seed {run.seed}** {run.status_label}"
            + (f": {escape_cell(run.message)}" if run.message else "")
        ]
    lines += [""] if lines else ["Every planned run finished.", ""]
    return lines + [f"- {escape_cell(item)}" for item in (*report.failures.caveats, *report.warnings)] + [""]
