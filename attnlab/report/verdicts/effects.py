"""Effects: each arm against the baseline on each declared metric, paired by seed, with what stands beside
the mean.

The 95 % interval is the estimate. The word beside it comes from `verdict`, at the level that Holm's method
left to the claim about that arm, so that no word promises more than the verdict. Only the primary metric is
judged against the margin; the other metrics are exploratory, get no margin and stay out of the verdict.
"""

from dataclasses import asdict
from typing import Any

from attnlab import stats
from attnlab.report.verdicts import comparability, leakage
from attnlab.report.verdicts.exchange import trained
from attnlab.report.verdicts.runs import Sweep
from attnlab.report.verdicts.sentence import decimals, phrase
from attnlab.report.verdicts.verdict import MEANING, Verdict, effect_word

ALPHA = 0.05
LEVEL = 0.95
DIFFERENCE = ("mean", "sd", "low", "high", "training", "p", "p_equivalent", "p_not_worse")  # of a row


def metrics(sweep: Sweep) -> list[str]:
    """The primary metric first, then what the claims and the file's own list add, if any seed has it."""
    asked = sweep.experiment
    extra = [claim.metric for claim in asked.claims if claim.metric and claim.compare == "difference"]
    wanted = dict.fromkeys([asked.metric, *extra, *asked.metrics])
    return [m for m in wanted if m == asked.metric or any(sweep.values(arm, m) for arm in sweep.arms)]


def beside(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows that never overrule: sign flips, one seed left out, pairing, seeds far from the others."""
    differences = [pair["difference"] for pair in pairs]
    if not differences:
        return {"sign_flip": None, "leave_one_out": None, "pairing": None, "outliers": []}
    out = stats.leave_one_out(differences)
    far = stats.outliers(differences)
    return {
        "sign_flip": asdict(stats.sign_flip(differences)),
        "leave_one_out": {"low": out[0], "high": out[1]} if out else None,
        "pairing": asdict(stats.pairing([p["value"] for p in pairs], [p["against"] for p in pairs])),
        "outliers": [pair["seed"] for pair, is_far in zip(pairs, far, strict=True) if is_far],
    }


def effects(sweep: Sweep, claims: list[dict[str, Any]], budget: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per metric and arm whose runs measure it; p is Holm-adjusted over the arms of one metric."""
    primary = sweep.experiment.metric
    direction = sweep.experiment.direction
    rows = []
    for metric in metrics(sweep):
        margin = sweep.margin if metric == primary else None
        family = [
            _row(sweep, arm, metric, direction, margin, _alpha(sweep, claims, arm, metric))
            for arm in sweep.others
            if sweep.has(arm, metric) and sweep.has(sweep.baseline, metric)
        ]
        for row in family:
            reasons = comparability.reasons(sweep, budget, row["arm"], sweep.baseline, metric)
            if row["n"] and reasons:
                row |= dict.fromkeys(DIFFERENCE) | {"word": str(Verdict.NOT_COMPARABLE), **beside([])}
                row["pairs"] = [pair | {"difference": None} for pair in row["pairs"]]
                row["meaning"] = "; ".join(reason["text"] for reason in reasons)
            elif row["n"] and (arm := _leaking_by_design(sweep, row["arm"])):
                row["word"], row["meaning"] = f"{arm} {leakage.BY_DESIGN}", "it is not ranked"
        tested = [row for row in family if row["p"] is not None]
        adjusted = stats.holm([row["p"] for row in tested])
        for row, p in zip(tested, adjusted, strict=True):
            row["p_holm"] = p
        rows += family
    return rows


def _leaking_by_design(sweep: Sweep, arm: str) -> str | None:
    """Of an arm and the baseline the one that sees future tokens, as the experiment preregisters."""
    return next((name for name in (arm, sweep.baseline) if leakage.is_by_design(sweep, name)), None)


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


def _alpha(sweep: Sweep, claims: list[dict[str, Any]], arm: str, metric: str) -> float:
    """The strictest level that was left to a claim about this difference; 5 % without one."""
    about = (arm, sweep.baseline, metric, "difference")
    levels = [
        claim["decision"]["alpha"]
        for claim in claims
        if (claim["arm"], claim["against"], claim["metric"], claim["compare"]) == about
    ]
    return min((level for level in levels if level is not None), default=ALPHA)


def _row(
    sweep: Sweep, arm: str, metric: str, direction: str, margin: float | None, alpha: float
) -> dict[str, Any]:
    primary = metric == sweep.experiment.metric
    said = sweep.metric(metric)
    count, design = _look(sweep, arm)
    pairs = sweep.pairs(arm, sweep.baseline, metric, sweep.seeds[:count])
    differences = [pair["difference"] for pair in pairs]
    estimate = stats.paired(differences, LEVEL, design) if differences else None
    wide = estimate.interval if estimate else None
    outer, inner = (
        stats.paired(differences, level, design).interval if differences else None
        for level in (1 - alpha, 1 - 2 * alpha)
    )
    # without a direction of its own, a second metric can only be described
    word = effect_word(outer, inner, margin, direction) if primary else None
    equivalent = stats.tost(differences, margin, design=design) if margin and differences else None
    noninferior = (
        stats.noninferior(differences, margin, direction=direction, design=design)
        if margin and differences
        else None
    )
    digits = decimals(wide[1] - wide[0]) if wide else 3
    return {
        "arm": arm,
        "against": sweep.baseline,
        "metric": metric,
        "label": said.words,
        "unit": said.unit,
        "primary": primary,
        "margin": margin,
        "n": len(pairs),
        "planned": len(sweep.of(arm)),
        "digits": digits,
        "mean": estimate.mean if estimate else None,
        "sd": estimate.sd if estimate else None,
        "low": wide[0] if wide else None,
        "high": wide[1] if wide else None,
        "level": LEVEL,
        "training": trained(sweep, metric, estimate.mean, wide, LEVEL) if estimate else None,
        "alpha": alpha,
        "p": estimate.p if estimate else None,
        "p_holm": None,
        "p_equivalent": equivalent.p if equivalent else None,
        "p_not_worse": noninferior.p if noninferior else None,
        "word": phrase(word, margin, digits, said.unit)
        if word and estimate
        else "NO RESULT"
        if primary
        else "exploratory",
        "meaning": MEANING[word] if word and estimate else None,
        "pairs": pairs,
        **beside(pairs),
    }
