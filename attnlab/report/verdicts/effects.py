"""Effects: each arm against the baseline on each declared metric, paired by seed, with what stands beside
the mean.

The 95 % interval is the estimate. The word beside it comes from `verdict`, at the level that Holm's method
left to the claim about that arm, so that no word promises more than the verdict. Only the primary metric is
judged against the margin; the other metrics are exploratory, get no margin and stay out of the verdict.
"""

from collections.abc import Sequence
from dataclasses import asdict

from attnlab import stats
from attnlab.report.schema import (
    BudgetCheck,
    ClaimResult,
    Effect,
    Interval,
    Pair,
    Pairing,
    Sensitivity,
    SignFlipTest,
    Word,
)
from attnlab.report.verdicts import comparability, leakage
from attnlab.report.verdicts.exchange import trained
from attnlab.report.verdicts.runs import Sweep
from attnlab.report.verdicts.verdict import decimals, effect_word

ALPHA = 0.05
LEVEL = 0.95


def metrics(sweep: Sweep) -> list[str]:
    """The primary metric first, then what the claims and the file's own list add, if any seed has it."""
    asked = sweep.experiment
    extra = [claim.metric for claim in asked.claims if claim.metric and claim.compare == "difference"]
    wanted = dict.fromkeys([asked.metric, *extra, *asked.metrics])
    return [m for m in wanted if m == asked.metric or any(sweep.values(arm, m) for arm in sweep.arms)]


def beside(pairs: Sequence[Pair]) -> Sensitivity:
    """Rows that never overrule: sign flips, one seed left out, pairing, seeds far from the others."""
    differences = [pair.value - pair.against for pair in pairs]
    if not differences:
        return Sensitivity(sign_flip=None, leave_one_out=None, pairing=None, outliers=[])
    out = stats.leave_one_out(differences)
    far = stats.outliers(differences)
    paired = stats.pairing([pair.value for pair in pairs], [pair.against for pair in pairs])
    return Sensitivity(
        sign_flip=SignFlipTest(**asdict(stats.sign_flip(differences))),
        leave_one_out=Interval(low=out[0], high=out[1]) if out else None,
        pairing=Pairing(**asdict(paired)),
        outliers=[pair.seed for pair, is_far in zip(pairs, far, strict=True) if is_far],
    )


def effects(sweep: Sweep, claims: list[ClaimResult], budget: BudgetCheck) -> list[Effect]:
    """A row per metric and arm whose runs measure it; p is Holm-adjusted over the arms of one metric."""
    primary = sweep.experiment.metric
    rows = list[Effect]()
    for metric in metrics(sweep):
        margin = sweep.margin if metric == primary else None
        family = [
            _row(sweep, arm, metric, margin, _alpha(sweep, claims, arm, metric), budget)
            for arm in sweep.others
            if sweep.has(arm, metric) and sweep.has(sweep.baseline, metric)
        ]
        adjusted = iter(stats.holm([row.p for row in family if row.p is not None]))
        rows += [
            row if row.p is None else row.model_copy(update={"p_holm": next(adjusted)}) for row in family
        ]
    return rows


def _look(sweep: Sweep, arm: str) -> tuple[int, stats.Design]:
    """The seeds of the last look whole, and what it allows an arm's interval: as with claims, none is read
    before its look. All seeds there are before the first one, with no interval.
    """
    pair = (arm, sweep.baseline)
    asked = min(len(sweep.of(name)) for name in pair)  # by the claims, so far
    found: tuple[int, stats.Design] = len(sweep.seeds), stats.Early()
    for count, look in stats.designs(sweep.experiment.looks, len(sweep.seeds)):
        if count <= asked and sweep.tried(pair, sweep.seeds[:count]):
            found = count, look
    return found


def _alpha(sweep: Sweep, claims: list[ClaimResult], arm: str, metric: str) -> float:
    """The strictest level that was left to a claim about this difference; 5 % without one."""
    about = (arm, sweep.baseline, metric, "difference")
    levels = [
        claim.decision.alpha
        for claim in claims
        if (claim.arm, claim.against, claim.metric, claim.compare) == about
    ]
    return min((level for level in levels if level is not None), default=ALPHA)


def _row(
    sweep: Sweep, arm: str, metric: str, margin: float | None, alpha: float, budget: BudgetCheck
) -> Effect:
    """One arm in one metric; of arms that cannot be compared there are no differences."""
    primary = metric == sweep.experiment.metric
    declared = sweep.metric(metric)
    count, design = _look(sweep, arm)
    pairs = sweep.pairs(arm, sweep.baseline, metric, sweep.seeds[:count])
    reasons = comparability.reasons(sweep, budget, arm, sweep.baseline, metric) if pairs else []
    differences = [] if reasons else [pair.value - pair.against for pair in pairs]
    estimate = stats.paired(differences, LEVEL, design) if differences else None
    wide = estimate.interval if estimate else None
    equivalent, noninferior = _margin_tests(sweep, differences, margin, design)
    return Effect(
        **dict(beside([] if reasons else pairs)),
        arm=arm,
        against=sweep.baseline,
        metric=metric,
        label=declared.words,
        unit=declared.unit,
        primary=primary,
        margin=margin,
        n=len(pairs),
        planned=len(sweep.of(arm)),
        digits=decimals(wide[1] - wide[0] if wide else None),
        mean=estimate.mean if estimate else None,
        sd=estimate.sd if estimate else None,
        low=wide[0] if wide else None,
        high=wide[1] if wide else None,
        level=LEVEL,
        training=trained(sweep, metric, estimate.mean, wide, LEVEL) if estimate else None,
        alpha=alpha,
        p=estimate.p if estimate else None,
        p_holm=None,
        p_equivalent=equivalent,
        p_not_worse=noninferior,
        word=_word(sweep, arm, metric, margin, alpha, differences, design, bool(reasons)),
        reasons=[reason.text for reason in reasons],
        pairs=[pair.model_copy(update={"difference": None}) for pair in pairs] if reasons else pairs,
    )


def _margin_tests(
    sweep: Sweep, differences: list[float], margin: float | None, design: stats.Design
) -> tuple[float | None, float | None]:
    """p of equivalence and of non-inferiority; None without a margin."""
    if not margin or not differences:
        return None, None
    direction = sweep.experiment.direction
    return (
        stats.tost(differences, margin, design=design).p,
        stats.noninferior(differences, margin, direction=direction, design=design).p,
    )


def _word(
    sweep: Sweep,
    arm: str,
    metric: str,
    margin: float | None,
    alpha: float,
    differences: list[float],
    design: stats.Design,
    apart: bool,
) -> Word:
    """The word for a difference, at the level that was left to the claim about it."""
    if apart:
        return Word.NOT_COMPARABLE
    if differences and any(leakage.is_by_design(sweep, name) for name in (arm, sweep.baseline)):
        return Word.LEAKING
    if metric != sweep.experiment.metric:  # without a direction of its own it can only be described
        return Word.EXPLORATORY
    if not differences:
        return Word.NO_RESULT
    outer, inner = (stats.paired(differences, level, design).interval for level in (1 - alpha, 1 - 2 * alpha))
    return effect_word(outer, inner, margin, sweep.experiment.direction)
