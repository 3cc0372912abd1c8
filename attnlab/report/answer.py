"""The answer of a report in one sentence, made from its numbers, and the values behind its first screen.

It is a pure function of report.json.
"""

from collections.abc import Collection

from attnlab.report.number_format import NONE, TIMES, format_bounds, format_number
from attnlab.report.schema import (
    BudgetRow,
    ClaimResult,
    Effect,
    Report,
    Verdict,
)
from attnlab.report.tables.wording import (
    DECIDED_VERDICTS,
    find_claim_effect,
    format_claim,
    format_conclusion,
    format_quantity,
    list_claim_notes,
)
from attnlab.report.verdicts.results import KV_CACHE_BYTES
from attnlab.report.verdicts.worst_case import Case, find_worst_case, list_cases

SENTENCE_COSTS = (
    KV_CACHE_BYTES,
    "parameters",
    "flops_per_token",
)  # the first that differs is in the sentence
MAX_WORDS = 30  # of the sentence


def answer_question(report: Report) -> str:
    """Answer the question of an experiment: the outcome of its first claim, what it saves, the worst case."""
    leaking = report.leakage.arms if report.leakage else []
    notes = (
        [f"{', '.join(leaking)} {'sees' if len(leaking) == 1 else 'see'} future tokens"] if leaking else []
    )
    claim = find_headline_claim(report)
    worst = _describe_worst_case(report, claim)
    if claim is None:
        text = f"No preregistered claim; {worst}" if worst else "No arm has a result to compare"
        return f"{'; '.join([text, *notes])}."
    outcome, cost = _describe_outcome(report, claim), _describe_cost(report, claim)
    sentence = "; ".join(filter(None, [f"{outcome}, at {cost}" if cost else outcome, worst, *notes]))
    if len(sentence.split()) > MAX_WORDS:
        sentence = "; ".join(filter(None, [outcome, worst, *notes]))
    return f"{sentence}."


def _describe_outcome(report: Report, claim: ClaimResult) -> str:
    """Format conclusion and effect: `a vs b: non-inferior, Δ val/loss −0.001 nats [−0.018, +0.016]`."""
    effect = find_claim_effect(claim, report.effects)
    if claim.verdict not in DECIDED_VERDICTS or claim.decision.estimate is None:
        return f"{claim.comparison_text}: {format_claim(claim, effect)}"
    decision, is_ratio = claim.decision, claim.compare == "ratio"
    digits = None if decision.exact else claim.digits
    shown = effect or claim.interval or decision  # what the page shows beside the claim
    estimate = format_number(
        effect.mean if effect else decision.estimate,
        digits,
        sign=not is_ratio,
        unit="" if is_ratio else claim.unit,
    )
    bounds = "" if decision.exact else format_bounds(shown.low, shown.high, digits, sign=not is_ratio)
    numbers = f"{estimate}{TIMES if is_ratio else ''} {bounds}".removesuffix(f" {NONE}").rstrip()
    return f"{claim.comparison_text}: {format_conclusion(claim)}, {format_quantity(claim)} {numbers}"


def _describe_worst_case(report: Report, claim: ClaimResult | None) -> str:
    """Format the worst case of all, or the bad end of the only interval; empty without any."""
    cases = list_cases(report)
    worst = find_worst_case(report, cases)
    if worst is None:
        return ""
    if len(cases) == 1:
        effect = worst.effect
        bad_end = effect.low if report.experiment.direction == "higher" else effect.high
        return "" if bad_end is None else f"at worst {format_number(bad_end, effect.digits, sign=True)}"
    is_answer = claim is not None and (claim.arm, claim.against, claim.metric) == (
        worst.arm, worst.against, report.experiment.metric
    )  # fmt: skip
    if is_answer and not worst.corpus and not worst.label:
        return f"the worst of {_count_cases(cases)}"
    effect = worst.effect
    place = " ".join(filter(None, (worst.arm, worst.corpus and f"on {worst.corpus}", worst.label)))
    estimate = format_number(worst.mean, effect.digits, sign=True, unit=effect.unit)
    bounds = format_bounds(effect.low, effect.high, effect.digits)
    return f"worst of {_count_cases(cases)}: {place}, {estimate}{'' if bounds == NONE else f' {bounds}'}"


def _describe_cost(report: Report, claim: ClaimResult) -> str:
    """Format the first cost in which the arms of a claim differ: `0.5× the KV cache per token`."""
    for key in SENTENCE_COSTS:
        row = report.budget.find_row(key)
        pair = [get_budget_number(row, arm) for arm in (claim.arm, claim.against)] if row else []
        if row is None or not all(pair):
            continue
        value, other = pair
        if value and other and abs(value / other - 1) > (row.tolerance or 0.0):
            return f"{value / other:.3g}{TIMES} the {row.label.removesuffix(' per token')}"
    return ""


def _count_cases(cases: Collection[Case]) -> str:
    arms, corpora = ({*names} for names in ((case.arm for case in cases), (case.corpus for case in cases)))
    arms_text = f"{len(arms)} {'arm' if len(arms) == 1 else 'arms'}"
    return arms_text if len(corpora) < 2 else f"{arms_text} on {len(corpora)} corpora"


def describe_scope(report: Report) -> str:
    """Describe what the answer is about: size, parameters, data, seeds, and reservations about its arms."""
    experiment, data = report.experiment, report.reproduce.data
    row = report.budget.find_row("parameters")
    counts = [count for arm in experiment.arms if row and (count := get_budget_number(row, arm))]
    parts = [f"size {experiment.size}"] if experiment.size else []
    if counts:
        ends = [format_number(end) for end in dict.fromkeys((min(counts), max(counts)))]
        parts.append(f"{' to '.join(ends)} parameters")
    parts += [", ".join(dict.fromkeys(str(dataset.get("name")) for dataset in data))] if data else []
    seeds = sorted({effect.n for effect in report.effects if effect.primary and effect.n})
    if seeds:
        numbers = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        unit = "seed" if report.is_paired else "run"
        parts.append(f"{numbers} {unit}{'' if numbers == '1' else 's'}")
    claim = find_headline_claim(report)
    notes = list_claim_notes([claim] if claim else [])
    scope = ", ".join(parts)
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in (scope, *notes) if text)


def find_headline_claim(report: Report) -> ClaimResult | None:
    """Find the claim that answers the question: the first one in the experiment's metric."""
    claims = report.verdict.claims
    empirical = [claim for claim in claims if not claim.holds_by_construction]
    metric = report.experiment.metric
    return next(
        (claim for claim in empirical if claim.metric == metric), next(iter([*empirical, *claims]), None)
    )


def get_primary_effects(report: Report) -> dict[str, Effect]:
    """Return each arm's effect in the experiment's metric."""
    return {row.arm: row for row in report.effects if row.primary}


def get_budget_number(row: BudgetRow, arm: str) -> float | None:
    """Return a resource of an arm; None if it is no number."""
    value = next((cell.value for cell in row.cells if cell.arm == arm), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_untrained(report: Report, arm: str) -> bool:
    """Whether an arm of a sweep without an experiment has barely learned."""
    cell = report.grid.find_cell(arm) if report.grid else None
    return bool(cell and cell.state == Verdict.UNTRAINED)
