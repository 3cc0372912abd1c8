"""report.json to Markdown for a pull request: verdict, budget, effects, failures, without pictures."""

from collections.abc import Sequence
from typing import Any

from attnlab.report.answer import answer, arms_table
from attnlab.report.charts.figures import mark
from attnlab.report.schema import BudgetCheck, Deciding, Report, Reproduce
from attnlab.report.tables import looks
from attnlab.report.tables.format import NONE, TIMES, letter, on_record, pvalue, text
from attnlab.report.tables.wording import (
    DELTA,
    describe_claim,
    explain_verdict,
    format_effect,
    format_training,
)
from attnlab.report.verdicts.alike import DECISIVE

SIGNS = {"equal": "✓", "differs, held": "✗ held", "differs": "≠", "unknown": "?"}
MARKS = {
    "SUPPORTED": "✓",
    "REFUTED": "✗",
    "INCONCLUSIVE": "?",
    "NOT COMPARABLE": "≠",
    "UNTRAINED": "∅",
    "NO RESULT": "∅",
}


def cell(value: Any) -> str:
    """Text that cannot leave its table cell, nor become markup."""
    out = str(value)
    for character in "\\`*_[]<>|#":
        out = out.replace(character, "\\" + character)
    return out.replace("\n", " ")


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)] + [""]


def markdown(report: Report, undrawn: Sequence[str] = ()) -> str:
    """The short report; report.html beside it has the rest. `undrawn`: what to say of missing pictures."""
    experiment = report.experiment
    verdict = report.verdict
    lines = [
        f"# {cell(experiment.name)}: {verdict.headline}",
        "",
        cell(experiment.question or ""),
        "",
    ]
    if verdict.exploratory:
        why = "nothing was declared" if verdict.undeclared else "the sweep left what was declared"
        lines += [f"**EXPLORATORY**: {why}.", ""]
        lines += [f"- {cell(item)}" for item in verdict.departures] + [""]
    lines += [line for sentence in (*verdict.unlike, *undrawn) for line in (f"**{cell(sentence)}**", "")]
    first = answer(report)
    lines += [cell(first.sentence), ""]
    header, rows = arms_table(report, first)  # the arms, best first
    lines += table([cell(word) for word in header], [[cell(word) for word in row] for row in rows])
    lines += _verdict(report) + _texts(report, first.label)
    lines += ["## Fair fight?", "", *_budget(report), *_layers(report)]
    lines += ["## Effects", "", *_effects(report), *_kinds(report)]
    lines += ["## Failures and caveats", "", *_failures(report)]
    if report.declared:
        lines += [cell(on_record(report.declared)), ""]
    provenance = report.reproduce
    dirty = {True: "dirty", False: "clean", None: "unknown"}[provenance.dirty]
    lines += ["## Reproduce", "", "```sh", provenance.command, "```", ""]
    lines += [
        f"Commit `{provenance.commit or 'unknown'}` ({dirty}), "
        f"runs of {cell(provenance.date or 'unknown date')}, "
        f"{cell(provenance.device or 'unknown device')}.{_made_by(provenance)} "
        "Everything else is in report.html and report.json.",
        "",
    ]
    return "\n".join(lines)


def _made_by(provenance: Reproduce) -> str:
    """The versions that the runs were made by, of the packages that decide a result."""
    known = provenance.versions or {}
    packages = [f"{name} {' and '.join(known[name])}" for name in DECISIVE if name in known]
    return f" Made by {cell(', '.join(packages))}." if packages else ""


def _layers(report: Report) -> list[str]:
    lines = []
    for row in report.config.layers:
        kinds = "; ".join(f"{letter(n)} {kind}" for n, kind in enumerate(row.kinds))
        turns = "".join(letter(n) for n in row.layers)
        lines += [f"Layers of {cell(row.arm)}, the first on the left: {turns}. {cell(kinds)}.", ""]
    return lines


def _verdict(report: Report) -> list[str]:
    lines = []
    for number, claim in enumerate(report.verdict.claims, 1):
        meaning = cell(explain_verdict(claim))
        lines += [f"{number}. {MARKS[claim.verdict]} **{cell(describe_claim(claim))}** {meaning}"]
    lines += [""] if lines else ["No claim was declared.", ""]
    if report.exchange:
        lines += [f"{cell(report.exchange.words)}.", ""]
    if said := report.experiment.margin_said:  # a margin that was declared in training
        lines += [f"Margin {cell(said)}.", ""]
    for number, claim in enumerate(report.verdict.claims, 1):
        if deciding := claim.deciding:
            lines += [f"Claim {number}: {_deciding(deciding)}", ""]
    for number, claim in enumerate(report.verdict.claims, 1):
        if looks.has_path(claim):
            rows = [[cell(value) for value in looks.cells(claim, row)] for row in looks.rows(claim)]
            lines += [
                f"Interim analyses of claim {number}, {cell(looks.title(claim))}:",
                "",
                *table([*looks.HEADER], rows),
            ]
    return lines


def _texts(report: Report, label: str) -> list[str]:
    """Each arm and each claim on every text, where the experiment asks several."""
    known = report.texts
    if known is None:
        return []
    reached = [
        [
            cell(row.text),
            *(" ".join([text(one.mean, 3), *filter(None, [one.state])]) for one in row.cells),
        ]
        for row in known.arms
    ]
    lines = table([cell(label), *(cell(arm) for arm in report.experiment.arms)], reached) if reached else []
    rows = [
        [cell(claim.says), cell(row.text), row.verdict, cell(format_effect(row))]
        for claim in known.claims
        for row in claim.rows
    ]
    says = [f"- {cell(claim.says)}: {cell(claim.together)}." for claim in known.claims if claim.together]
    lines += table(["claim", "text", "verdict", DELTA], rows) if rows else []
    return [*lines, *says, ""] if lines else []


def _deciding(answer: Deciding) -> str:
    if answer.seeds is None:
        return "no number of seeds would decide it: the estimate lies at the threshold."
    high = text(answer.high) if answer.high else "more than 10,000"
    between = f" (between {text(answer.low)} and {high})" if answer.low else ""
    return (
        f"about {text(answer.seeds)} seeds in all would {answer.ends} it in 80 % of such sweeps, if "
        f"the truth is as it was seen{between}."
    )


def _budget(report: Report) -> list[str]:
    budget = report.budget
    rows = []
    for row in budget.rows:
        name = cell(row.label) + (f" ({row.unit})" if row.unit else "") + (" **held**" if row.held else "")
        cells = []
        for entry in row.cells:
            ratio = (
                f" ({text(entry.ratio, 3)}{TIMES})" if entry.ratio is not None and entry.ratio != 1 else ""
            )
            cells.append(f"{cell(text(entry.value))}{ratio} {SIGNS[mark(row, entry)]}")
        rows.append([name, *cells])
    rows.append(
        [
            "seeds finished of planned",
            *(f"{count.finished} of {count.planned}" for count in budget.seeds),
        ]
    )
    arms = [cell(arm) for arm in report.experiment.arms]
    return [
        *table(["", *arms], rows),
        f"Learning rate: {cell(budget.lr_tuning)}.",
        "",
        *([f"To tell what training is worth took {report.exchange.cost}.", ""] if report.exchange else []),
        *_tuning(budget),
    ]


def _tuning(budget: BudgetCheck) -> list[str]:
    found = budget.tuning
    if found is None:
        return []
    rows = [
        [
            cell(entry.arm),
            text(row.lr),
            *(text(value, 3) for value in (*row.values, row.median)),
            f"**{row.fate}**" if row.picked else row.fate,
        ]
        for entry in found.arms
        for row in entry.rows
    ]
    seeds = [f"seed {seed}" for seed in found.seeds]
    return table(["arm", "learning rate", *seeds, f"median {cell(found.metric)}", ""], rows)


def _effects(report: Report) -> list[str]:
    rows = [
        [
            cell(row.arm),
            cell(row.label),
            f"{row.n} of {row.planned}",
            cell(format_effect(row)),
            *([format_training(row.training, "") if row.training else NONE] if report.exchange else []),
            pvalue(row.p_holm),
            cell(row.word),
        ]
        for row in report.effects
    ]
    if not rows:
        return ["No other arm than the baseline.", ""]
    against = f"{DELTA} against {cell(report.experiment.baseline)}"
    training = ["training compute"] if report.exchange else []
    return table(["arm", "metric", "seeds", against, *training, "p (Holm)", "word"], rows)


def _kinds(report: Report) -> list[str]:
    """What each arm loses by kind of token, where its runs tell."""
    found = report.text.kinds if report.text else []
    if not found:
        return []
    arms = report.experiment.arms
    rows = []
    for kind in found:
        losses = {row.arm: row.loss.mean for row in kind.arms if row.loss}
        rows.append([cell(kind.label), text(kind.targets), *(text(losses.get(arm), 3) for arm in arms)])
    header = ["loss by kind of token (nats)", "targets", *(cell(arm) for arm in arms)]
    return table(header, rows)


def _failures(report: Report) -> list[str]:
    lines = []
    for run in report.failures.runs:
        lines += [
            f"- **{cell(run.arm)}, seed {run.seed}** {run.word}"
            + (f": {cell(run.message)}" if run.message else "")
        ]
    lines += [""] if lines else ["Every planned run finished.", ""]
    return lines + [f"- {cell(item)}" for item in (*report.failures.caveats, *report.warnings)] + [""]
