"""The answer of a report from its experiment's template, with every placeholder filled in."""

from dataclasses import dataclass

from attnlab.report.number_format import TIMES, format_number
from attnlab.report.schema import BudgetRow, ClaimResult, Effect, Report
from attnlab.report.tables.claim_sources import load_current_experiment
from attnlab.report.tables.wording import (
    DELTA,
    find_claim_effect,
    format_diverging_decision,
    format_effect,
    format_outcome,
    format_quantity,
    format_verdict,
)
from attnlab.store.experiment_schema import Placeholder, parse_answer_template
from attnlab.store.experiment_schema.answer_template import BEST, COMPARISON_FIELDS, RATIO_SUFFIX


@dataclass(frozen=True)
class FilledAnswer:
    """A sentence without its full stop, the claims that it is about, and the seeds of each comparison."""

    text: str
    claims: list[ClaimResult]
    seeds: set[int]


def fill_answer_template(report: Report, best: str) -> FilledAnswer | None:
    """Fill the template in today's experiment file, else the one of the report.

    Like the wording of claims, an answer can be corrected without new training.

    Args:
        best: The text of `{best}`.

    Returns:
        None if there is no template, or if the report lacks an arm or a value of it.
    """
    experiment = report.experiment
    current = load_current_experiment(report)
    is_same = (current.get("metric"), current.get("baseline")) == (experiment.metric, experiment.baseline)
    for template in (current.get("answer") if is_same else None, experiment.answer):
        if template and (filled := _fill_template(report, template, best)):
            return filled
    return None


def _fill_template(report: Report, template: str, best: str) -> FilledAnswer | None:
    texts, claims, seeds = list[str](), list[ClaimResult](), set[int]()
    for part in parse_answer_template(template):
        if isinstance(part, str):
            texts.append(part)
            continue
        claim, effect = _find_comparison(report, part) if part.field in COMPARISON_FIELDS else (None, None)
        text = best if part.field == BEST else _format_field(report, part, claim, effect)
        if not text:
            return None
        texts.append(text)
        claims += [claim] if claim else []
        if effect:
            seeds.add(effect.n)
        elif claim and not claim.decision.exact:
            seeds.add(claim.decision.n)
    return FilledAnswer("".join(texts).rstrip(". "), claims, seeds)


def _find_comparison(report: Report, part: Placeholder) -> tuple[ClaimResult | None, Effect | None]:
    """Find the first claim about two arms in the experiment's metric, and the effect that the page shows."""
    pair = (part.arm, part.against or report.experiment.baseline, report.experiment.metric)
    claim = next(
        (
            row
            for row in report.verdict.claims
            if row.compare == "difference" and (row.arm, row.against, row.metric) == pair
        ),
        None,
    )
    if claim:
        return claim, find_claim_effect(claim, report.effects)
    return None, next((row for row in report.effects if (row.arm, row.against, row.metric) == pair), None)


def _format_field(
    report: Report, part: Placeholder, claim: ClaimResult | None, effect: Effect | None
) -> str | None:
    """Format the value of a placeholder; None if the report lacks it."""
    if part.field not in COMPARISON_FIELDS:
        return _format_resource(report, part)
    if claim:
        if part.field == "outcome":
            return format_outcome(claim, effect)
        if claim.decision.estimate is None:
            return None
        return (
            f"{format_quantity(claim)} = {format_effect(effect or claim)}"
            if part.field == "delta"
            else format_verdict(claim) + format_diverging_decision(claim, effect)
        )
    if effect is None or effect.mean is None:
        return None
    delta = f"{DELTA} {effect.label} = {format_effect(effect)}"
    return {"delta": delta, "verdict": str(effect.verdict)}.get(part.field, f"{delta}: {effect.verdict}")


def _format_resource(report: Report, part: Placeholder) -> str | None:
    """Format a resource of an arm, or its ratio to the other arm."""
    row = report.budget.find_row(part.field.removesuffix(RATIO_SUFFIX))
    value = get_budget_number(row, part.arm) if row else None
    if row is None or value is None:
        return None
    if not part.field.endswith(RATIO_SUFFIX):
        return format_number(value, unit=row.unit)
    other = get_budget_number(row, part.against or report.experiment.baseline)
    return f"{value / other:.3g}{TIMES}" if other else None


def get_budget_number(row: BudgetRow, arm: str) -> float | None:
    """Return a resource of an arm; None if it is no number."""
    value = next((cell.value for cell in row.cells if cell.arm == arm), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
