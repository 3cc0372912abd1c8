"""Effects and claims in words: one formatter for page, Markdown, terminal, W&B and ledger.

An effect is the arm minus the arm it is compared with, for every direction of the metric. Digits and
confidence level are the same everywhere: `Δ val/loss = −0.001 nats, 95% CI [−0.018, +0.016]`.
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal

from attnlab.report.number_format import (
    INFINITY,
    MINUS,
    NONE,
    TIMES,
    format_bound,
    format_bounds,
    format_compute_amount,
    format_number,
    format_percent,
    format_pvalue,
)
from attnlab.report.schema import (
    DECIDING_INTERVAL,
    MEANINGS,
    ClaimResult,
    CorpusClaim,
    Effect,
    EffectVerdict,
    Report,
    ThresholdSignFlip,
    TrainingEquivalent,
    Verdict,
)
from attnlab.report.section import EMPTY, Cell
from attnlab.report.verdicts.evidence_bases import BASES
from attnlab.report.verdicts.leakage_check import BY_DESIGN
from attnlab.report.verdicts.verdict_rules import find_diverging_level
from attnlab.stats import is_inside_region
from attnlab.stats.evidence import CONFIDENCE_LEVEL
from attnlab.store.experiment_schema import InterimSchedule
from attnlab.store.run_schema import Direction

DECIDED_VERDICTS = (Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE)
HOLDS_WORDS = {True: "supports", False: "refutes", None: "inconclusive"}
DELTA = "\N{GREEK CAPITAL LETTER DELTA}"
HOLM_OVER_ARMS = f"p of {DELTA} = 0 (Holm over arms)"
HOLM_OVER_CLAIMS = "p (Holm over claims)"
DECISIONS_NOTE = (
    "Decisions. Holm's method divides one alpha of 5% among all claims that are not exact; each interval has "
    "the confidence level of the alpha allocated to its claim. p tests the claim."
)
SENSITIVITY_NOTE = (
    "Sensitivity analyses; they never change a verdict. The sign-flip test cannot give a p-value below its "
    "floor. Outliers are seeds further from the median than seven times the median distance; normal noise "
    "has one in 10% of samples of 4 seeds, 6% of 8 and 2.5% of 16. Pairing by seed reduces the number of "
    "seeds by the factor in the last column."
)
SENSITIVITY_HEADER = (
    "claim",
    "sign-flip p (floor)",
    "mean with one seed left out",
    "sign-flip test of the claim",
    "outlier seeds",
    "correlation of the arms",
    "gain from pairing",
)
SUPPORTED_NOTE = "SUPPORTED: the statement holds. It does not say that the design is good."
EXACT_MEANING = "The value is counted, not estimated."
NO_INTERVAL = "Without an interval the claim is undecided. This is no evidence that the arms are equal."
NOT_FINITE = "not finite"  # a median if at least half of the pairs diverged


def format_interval(
    low: float | None, high: float | None, digits: int | None, *, sign: bool = True, unit: str = ""
) -> str:
    """Format `[−0.018, +0.016]`; a bound that is None is infinite, and without both there is no interval."""
    if low is None and high is None:
        return NONE
    start = f"({MINUS}{INFINITY}" if low is None else f"[{format_bound(low, digits, sign=sign)}{unit}"
    end = f"{INFINITY})" if high is None else f"{format_bound(high, digits, sign=sign)}{unit}]"
    return f"{start}, {end}"


def format_level(level: float) -> str:
    """Format a level as `95% CI`."""
    return f"{format_percent(level)}% CI"


def format_interval_method(looks: InterimSchedule | None, effects: Sequence[Effect]) -> str:
    """Format the method of the intervals of effects: `paired t`, if each claim is tested once."""
    method = "critical value of the interim analyses" if looks else "paired t"
    if looks == "anytime":
        method = "anytime-valid: it holds after any number of seeds"
    if any(row.is_proportion for row in effects):
        method += "; for proportions e-values"
    if any(row.is_median for row in effects):
        method += "; for steps to a threshold ranks, of the median"
    return method


def explain_wide_intervals(report: Report) -> str:
    """Explain the width of the intervals of effects under interim analyses; empty without any."""
    looks = report.experiment.looks
    if not looks or all(row.low is None for row in report.effects):
        return ""
    reason = "are valid after any number of seeds" if looks == "anytime" else "allow for all interim analyses"
    return (
        f"The 95% CIs of {DELTA} {reason}, so they are wider than those of a single analysis; the CIs of the "
        "means are not widened."
    )


def format_estimate(
    estimate: float | None,
    low: float | None,
    high: float | None,
    level: float,
    digits: int | None,
    *,
    unit: str = "",
    ratio: bool = False,
    exact: bool = False,
) -> str:
    """Format `−0.001 nats, 95% CI [−0.018, +0.016]`; a ratio has no sign, an exact value no interval."""
    times = TIMES if ratio else ""
    if estimate is None:
        number = NOT_FINITE
        if low is None and high is None:
            return NONE
    else:
        number = (
            format_number(estimate, None if exact else digits, sign=not ratio, unit="" if ratio else unit)
            + times
        )
    if exact:
        return f"{number}, exact"
    if low is None and high is None:
        return f"{number}, no interval"
    return f"{number}, {format_level(level)} {format_interval(low, high, digits, sign=not ratio, unit=times)}"


def format_effect(effect: Effect | ClaimResult | CorpusClaim) -> str:
    """Format the estimate of an effect for every table and sentence."""
    if isinstance(effect, Effect):
        effect = effect.clip((-1.0, 1.0)) if effect.is_proportion else effect
        text = format_estimate(
            effect.mean,
            effect.low,
            effect.high,
            effect.level,
            effect.digits,
            unit=effect.unit,
            exact=effect.low is not None and effect.low == effect.high,
        )
        return f"median {text}" if effect.is_median and effect.mean is not None else text
    if isinstance(effect, CorpusClaim):
        return format_estimate(
            effect.effect,
            effect.low,
            effect.high,
            CONFIDENCE_LEVEL,
            effect.digits,
            unit=effect.unit,
            ratio=effect.compare == "ratio",
        )
    interval = effect.interval
    if effect.decision.estimate is None and interval and interval.low is None and interval.high is None:
        return NOT_FINITE
    return format_estimate(
        effect.decision.estimate,
        interval.low if interval else None,
        interval.high if interval else None,
        interval.level if interval else CONFIDENCE_LEVEL,
        effect.digits,
        unit=effect.unit,
        ratio=effect.compare == "ratio",
        exact=effect.decision.exact,
    )


def format_effect_verdict(effect: Effect) -> str:
    """Format the verdict on an effect, with the reasons against a comparison.

    Example: `NOT COMPARABLE: sees future tokens in 5 of 5 runs`, in the row of the arm that sees them.
    """
    reasons = "; ".join(reason.removeprefix(f"{effect.arm} ") for reason in effect.reasons)
    return f"{effect.verdict}: {reasons}" if reasons else str(effect.verdict)


def format_quantity(claim: ClaimResult) -> str:
    """Format the quantity of a claim: `Δ val/loss`, or `val/loss ratio`; `median` where ranks decide."""
    median = "median " if BASES[claim.basis].estimates_median else ""
    is_ratio = claim.compare == "ratio"
    return f"{median}{claim.label} ratio" if is_ratio else f"{median}{DELTA} {claim.label}"


def format_threshold(claim: ClaimResult) -> str:
    """Format `margin +0.0181 (5% of training compute)`, or `claim Δ > 0` if "no difference" is outside."""
    text = format_compute_amount(claim.threshold_text or "")
    if claim.threshold is None or claim.region is None:
        return f"threshold {text or NONE}"
    is_ratio = claim.compare == "ratio"
    number = format_exact_number(claim.threshold, sign=not is_ratio) + (TIMES if is_ratio else "")
    note = f" ({text})" if text else ""
    low, high = claim.region
    if low < claim.null_value < high:
        return f"margin {claim.relation.format_threshold(number)}{note}"
    if math.isfinite(low) and math.isfinite(high):
        return f"threshold {claim.relation.format_threshold(number)}{note}"
    sign = ">" if math.isfinite(low) else "<"
    return f"claim {'ratio' if is_ratio else DELTA} {sign} {number}{note}"


def format_margin_reason(report: Report) -> str:
    """Format the rationale of the margin, with the size it is about if that is not the report's."""
    reason = report.experiment.margin_reason or ""
    written = report.reproduce.preregistered
    size = written.get("size")
    if not reason or reason != written.get("margin_reason") or size in (None, report.experiment.size):
        return reason.rstrip(".")
    return f"{reason.rstrip('.')} (written for size {size})"


def format_exact_number(value: float, *, sign: bool = False) -> str:
    """Format a preregistered number with all of its own decimals."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    assert isinstance(exponent, int), value  # a letter if the value is not finite
    return format_number(value, max(-exponent, 0), sign=sign)


def format_conclusion(claim: ClaimResult) -> str:
    """Format the conclusion on the effect: non-inferior, equivalent, better, ...

    For a claim without a decision it is the verdict itself. A lower loss of an arm that sees future tokens
    makes it no better.
    """
    if claim.verdict not in (Verdict.SUPPORTED, Verdict.REFUTED) or claim.threshold is None:
        return claim.verdict.lower()
    is_quality = claim.compare == "difference" and not claim.leaking_by_design
    supported, refuted = claim.relation.format_conclusions(
        claim.threshold, claim.direction if is_quality else None
    )
    return supported if claim.verdict == Verdict.SUPPORTED else refuted


def find_claim_effect(claim: ClaimResult, effects: Sequence[Effect]) -> Effect | None:
    """Find the effect that the arms table shows for the difference that a claim is about.

    A claim that was decided early has fewer seeds than the effect. None if the claim is about a ratio or is
    not decided by t, or if its arms are not compared in the table.
    """
    if claim.compare != "difference" or not BASES[claim.basis].has_boundary:
        return None
    pair = (claim.arm, claim.against, claim.metric)
    rows = (row for row in effects if (row.arm, row.against, row.metric) == pair)
    return next((row for row in rows if row.mean is not None and row.low is not None), None)


def format_verdict(claim: ClaimResult) -> str:
    """Format the conclusion with its verdict: `non-inferior (SUPPORTED)`, or the verdict alone."""
    verdict = f"{claim.verdict}, exploratory" if claim.exploratory else str(claim.verdict)
    is_decided = claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED)
    return f"{format_conclusion(claim)} ({verdict})" if is_decided else verdict


def format_claim(claim: ClaimResult, effect: Effect | None = None) -> str:
    """Format a claim's outcome, or the reason nothing was decided.

    Example: `Δ val/loss = −0.001 nats, 95% CI [−0.018, +0.016], margin +0.0181: non-inferior (SUPPORTED)`.

    Args:
        effect: The effect that the page shows for the same difference (`find_claim_effect`); it replaces the
            claim's own numbers, so that a page has one interval for one difference.
    """
    label = f"({claim.verdict}, exploratory)" if claim.exploratory else f"({claim.verdict})"
    if claim.unknown_threshold_reason is not None:
        text = format_compute_amount(claim.threshold_text or "")
        unit = f" in {claim.unit}" if claim.unit else ""  # unknown before the first run of the comparison
        return f"{text} has no known value{unit}: {claim.unknown_threshold_reason} {label}"
    if claim.verdict == Verdict.NO_RESULT:
        unit = BASES[claim.basis].unit_name
        return f"no {unit} of {claim.arm} and {claim.against} is complete {label}"
    if claim.verdict == Verdict.NOT_COMPARABLE:
        return f"{'; '.join(claim.not_comparable)} {label}"
    if claim.verdict == Verdict.UNTRAINED:
        return f"{claim.arm} and {claim.against} were {claim.untrained_reason} {label}"
    quantity = f"{format_quantity(claim)} = {format_effect(effect or claim)}"
    return f"{quantity}, {format_threshold(claim)}: {format_verdict(claim)}"


def format_outcome(claim: ClaimResult, effect: Effect | None = None) -> str:
    """Format a claim's outcome with its equivalent training compute.

    The deciding interval is added only where the printed one would make the verdict look wrong.
    """
    line = format_claim(claim, effect)
    if claim.verdict not in DECIDED_VERDICTS:
        return line
    training = effect.training_equivalent if effect else claim.training_equivalent
    if training:
        line += f"; equivalent to {format_training(training)}"
    return line + format_diverging_decision(claim, effect)


def describe_claim(claim: ClaimResult, effect: Effect | None = None) -> str:
    """Describe a claim in one line: arms, outcome, and amount of evidence."""
    line = f"{claim.comparison_text}: {format_outcome(claim, effect)}"
    if claim.unknown_threshold_reason is not None:
        return f"{line}."  # no seeds were counted
    analyses = claim.interim_analyses.describe() if claim.interim_analyses else ""
    basis = _format_evidence_count(claim, effect)
    evidence = ", ".join(filter(None, (analyses, basis)))
    return ". ".join(filter(None, (line, evidence, *list_claim_notes([claim])))) + "."


def list_claim_notes(claims: Sequence[ClaimResult]) -> list[str]:
    """List what a reader must know of the arms of claims: future leakage by design, and unshared parts."""
    leaking = [f"{arm} {BY_DESIGN}" for claim in claims for arm in claim.leaking_by_design]
    return list(dict.fromkeys((*leaking, *(part for claim in claims for part in claim.unshared_parts))))


def format_diverging_decision(claim: ClaimResult, effect: Effect | None = None) -> str:
    """Format the deciding interval, if the printed one would have decided otherwise; else empty."""
    decision, interval = claim.decision, effect or claim.interval
    if claim.verdict not in DECIDED_VERDICTS or claim.region is None:
        return ""
    if decision.level is None or interval is None:
        return ""
    bounds = [
        (-math.inf if source.low is None else source.low, math.inf if source.high is None else source.high)
        for source in (decision, interval)
    ]
    if len({is_inside_region(claim.region, pair) for pair in bounds}) == 1:
        return ""
    if decision.low is None and decision.high is None:
        return f"; no interval at the deciding level of {format_percent(decision.level)}%"
    return f"; decided on the {format_decision(claim)}"


def format_decision(claim: ClaimResult) -> str:
    """Format the deciding interval with its level: `99% CI [−0.018, +0.016]`; empty without one."""
    decision = claim.decision
    if decision.level is None or (decision.low is None and decision.high is None):
        return ""
    is_ratio = claim.compare == "ratio"
    unit = TIMES if is_ratio else ""
    interval = format_interval(decision.low, decision.high, claim.digits, sign=not is_ratio, unit=unit)
    return f"{format_level(decision.level)} {interval}"


def explain_verdict(claim: ClaimResult) -> str:
    """Explain a claim's verdict for readers who do not read intervals.

    The deciding interval is printed where it is not the one beside the effect.
    """
    if claim.decision.exact and claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED):
        return EXACT_MEANING if claim.holds_by_construction else MEANINGS[EffectVerdict.EQUAL]
    if claim.verdict == Verdict.INCONCLUSIVE and claim.decision.low is None and claim.decision.high is None:
        return NO_INTERVAL
    decision, shown = claim.decision, claim.interval
    is_shown = shown and (shown.low, shown.high, shown.level) == (decision.low, decision.high, decision.level)
    interval = "" if is_shown or format_diverging_decision(claim) else format_decision(claim)
    named = f"{DECIDING_INTERVAL}, {interval}," if interval else DECIDING_INTERVAL
    return MEANINGS[claim.verdict].replace(DECIDING_INTERVAL, named)


def explain_effect(effect: Effect) -> str:
    """Explain an effect's verdict, or why its arms are not comparable; empty if it is only described."""
    if effect.reasons:
        return "; ".join(effect.reasons)
    is_explained = effect.mean is not None and effect.verdict != EffectVerdict.EXPLORATORY
    return MEANINGS[effect.verdict].rstrip(".") if is_explained else ""


def format_required_seeds(claim: ClaimResult) -> str:
    """Format the seeds that would decide an inconclusive claim; empty without an estimate.

    More seeds than there are would decide it, so the estimates from their noise are raised to that, unless
    they are about fresh seeds.
    """
    estimate = claim.required_seeds
    if estimate is None:
        return ""
    needs_fresh = needs_fresh_seeds(claim)
    fewest = 0 if needs_fresh else claim.decision.n + 1

    def format_count(count: int | None) -> str:
        return "more than 10,000" if count is None else format_number(max(count, fewest))

    about = "about " if estimate.seeds else ""
    seeds = "fresh seeds in a single analysis" if needs_fresh else "seeds in total"
    closeness = "" if estimate.seeds else ", which lies close to the threshold"
    text = (
        f"{about}{format_count(estimate.seeds)} {seeds} would {estimate.ends} it with 80% power at the "
        f"observed effect{closeness}"
    )
    if estimate.low is None:
        return f"{text}."
    low, high = format_count(estimate.low), format_count(estimate.high)
    bounds = "" if high == low else f", between {low} and {high},"
    return f"{text}. This is rough{bounds} because the standard deviation is uncertain."


def needs_fresh_seeds(claim: ClaimResult) -> bool:
    """Whether a claim's required seeds are those of a single analysis, not of later interim analyses."""
    analyses = claim.interim_analyses
    return analyses is not None and analyses.design == "looks" and BASES[claim.basis].has_boundary


def build_sensitivity_rows(claims: Sequence[ClaimResult]) -> list[list[str]]:
    """Build a row of `SENSITIVITY_HEADER` for each claim about paired differences."""
    rows = []
    for number, claim in enumerate(claims, 1):
        pairing, sign_flip, left_out = claim.pairing, claim.sign_flip, claim.leave_one_out
        if pairing is None or sign_flip is None:
            continue
        cells = [
            f"{format_pvalue(sign_flip.p)} ({format_pvalue(sign_flip.floor)})",
            format_bounds(left_out.low, left_out.high, claim.digits) if left_out else NONE,
            _format_sign_flip_decision(claim.threshold_sign_flip),
            ", ".join(map(str, claim.outliers)) or "none",
            format_number(pairing.correlation, 2),
            NONE if pairing.gain is None else f"{format_number(pairing.gain, 1)}{TIMES}",
        ]
        rows.append([f"{number}. {claim.comparison_text}", *cells])
    return rows


def _format_sign_flip_decision(test: ThresholdSignFlip | None) -> str:
    if test is None:
        return NONE
    if not test.able:
        return "too few pairs"
    return f"{HOLDS_WORDS[test.holds]} (p {format_pvalue(test.p)})"


def describe_outliers(report: Report) -> str:
    """Describe the outlier seeds of tested claims, and the range of means without one seed; empty if none."""
    notes = [
        f"claim {number}, {claim.comparison_text}: {', '.join(map(str, claim.outliers))} (mean with any one "
        f"seed left out: {format_bounds(claim.leave_one_out.low, claim.leave_one_out.high, claim.digits)})"
        for number, claim in enumerate(report.verdict.claims, 1)
        if claim.outliers
        and claim.leave_one_out
        and claim.verdict in DECIDED_VERDICTS
        and not claim.holds_by_construction
    ]
    return f"Outlier seeds, which count in every number: {'; '.join(notes)}." if notes else ""


def format_training(training: TrainingEquivalent, suffix: str = " training compute") -> str:
    """Format `+0.3% training compute, 95% CI [−4%, +5%]`; `suffix` is empty under a heading that names it."""
    point = f"{_format_compute_change(training.compute_change, format_number)}{suffix}"
    if training.low is None and training.high is None:
        return f"{point}, {format_level(training.level)} unbounded"
    bounds = (training.low, training.high)
    start, end = (
        "unbounded" if value is None else _format_compute_change(value, format_bound) for value in bounds
    )
    return f"{point}, {format_level(training.level)} [{start}, {end}]"


def _format_compute_change(change: float, format_change: Callable[..., str]) -> str:
    size = 100 * abs(change)
    has_decimal = 0.05 <= size < 0.95 or (change < 0 and size > 99)
    return f"{format_change(100 * change, int(has_decimal), sign=True)}%"


def _format_evidence_count(claim: ClaimResult, effect: Effect | None) -> str:
    """Format the number of paired seeds or timing blocks, and that behind the printed effect if it differs.

    It is empty for an exact value, which has a note of its own.
    """
    n = claim.decision.n
    if claim.decision.exact:
        return ""
    count = f"{n} of {claim.planned}" if claim.planned not in (None, n) else f"{n}"
    shown = f"; {DELTA} over {effect.n}" if effect and effect.n != n else ""
    return f"{count} {BASES[claim.basis].unit_name}{'' if count == '1' else 's'}{shown}"


def format_effect_level(effect: Effect, direction: Direction) -> str:
    """Format ` at 98.3%`, the level of a verdict that the printed interval would not give; else empty."""
    level = find_diverging_level(effect, direction)
    return "" if level is None else f" at {format_percent(level)}%"


def build_effect_cell(effect: Effect | CorpusClaim | None) -> Cell:
    """An effect for a table, with its estimate and interval for programs; a dash for the baseline."""
    if effect is None:
        return EMPTY
    estimate = effect.mean if isinstance(effect, Effect) else effect.effect
    return Cell(format_effect(effect), estimate, effect.low, effect.high, kind="number")


def build_training_cell(training: TrainingEquivalent | None) -> Cell:
    """An equivalent training compute for a column that names it."""
    if training is None:
        return EMPTY
    text = format_training(training, "")
    return Cell(text, training.compute_change, training.low, training.high, kind="number")
