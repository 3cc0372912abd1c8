"""The first screen of a report: the answer with its price, and its arms, the best first.

A pure function of report.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.report.schema import (
    BudgetRow,
    ClaimResult,
    Effect,
    Mean,
    ReachedMean,
    Report,
    TradeoffPanel,
)
from attnlab.report.tables.format import NONE, span, text, with_unit
from attnlab.report.tables.ranking import BYTES, MANY, by_seed, columns, reached
from attnlab.report.tables.wording import DECIDED, DELTA, format_claim, format_effect, format_training
from attnlab.report.verdicts.leakage import BY_DESIGN

CACHE = "kv_bytes_per_token"
PRICED = (CACHE, "parameters", "flops_per_token")  # of the budget, as the sentence names them
COSTS = (CACHE, "carried_bytes", "decode_ms_per_token")  # of the trade-off, columns of the arms
FACTORS = {0.25: "quarters", 0.5: "halves", 2.0: "doubles"}


@dataclass(frozen=True)
class AnswerArm:
    """An arm: the overrides that it sets, what it reached over its complete pairs, and what it costs, in the
    order of the answer's costs. Arms that see future tokens are not `ranked`.
    """

    arm: str
    is_baseline: bool
    changes: list[str]
    reached: ReachedMean
    ranked: bool
    costs: list[float | None]


@dataclass(frozen=True)
class Answer:
    """The sentence, the metric of the arms, their costs, and the arms."""

    sentence: str
    label: str
    unit: str
    digits: int
    costs: list[TradeoffPanel]
    arms: list[AnswerArm]


@dataclass(frozen=True)
class Equal:
    """An arm that keeps as many bytes (a token's and a text's) as another; how it differs from the best."""

    bytes: tuple[float, ...]
    arm: str
    reached: ReachedMean
    differs: ReachedMean


def answer(report: Report) -> Answer:
    """The first screen of a report."""
    effects = list(primary(report).values())
    panels = [panel for panel in report.tradeoff if panel.key in COSTS]
    ranked = [_rank(report, arm, effects, panels) for arm in report.experiment.arms]
    sign = -1 if report.experiment.direction == "higher" else 1
    ranked.sort(key=lambda pair: (pair[0] is None, sign * (pair[0] or 0.0)))
    arms = [arm for _, arm in ranked]
    return Answer(
        sentence=_sentence(report, arms),
        label=effects[0].label if effects else report.experiment.metric,
        unit=effects[0].unit if effects else "",
        digits=max((row.digits for row in effects), default=3),
        costs=panels,
        arms=arms,
    )


def arms_table(
    report: Report, known: Answer | None = None, whole: bool = True
) -> tuple[list[str], list[list[str]]]:
    """The arms as text: a header, and a row for each; where it is to be `whole`, with all that ranks them."""
    known = known or answer(report)
    effects = primary(report)
    more = columns(report) if whole else []
    labels = [(known.label, known.unit), (DELTA, "")]
    labels += [(one.label, one.unit) for one in more] + [(cost.label, cost.unit) for cost in known.costs]
    rows = []
    for row in known.arms:
        effect = effects.get(row.arm)
        also = [_with_ends(one.cells.get(row.arm), one.digits) for one in more]
        costs = [
            f"{text(value)}{_timed(cost, row.arm) if whole else ''}"
            for cost, value in zip(known.costs, row.costs, strict=True)
        ]
        word = "baseline" if row.is_baseline else str(effect.word) if effect else NONE
        reached_ = _with_ends(row.reached, known.digits)
        rows.append([row.arm, reached_, format_effect(effect) if effect else NONE, *also, *costs, word])
    return ["arm", *(with_unit(label, unit) for label, unit in labels), "in words"], rows


def primary(report: Report) -> dict[str, Effect]:
    """Arm -> its effect in the experiment's metric."""
    return {row.arm: row for row in report.effects if row.primary}


def timed(report: Report) -> dict[tuple[str, str], tuple[float, float]]:
    """A cost's key and an arm -> the interval of that cost, where it was timed."""
    return {
        (panel.key, point.arm): (point.x_low, point.x_high)
        for panel in report.tradeoff
        for point in panel.points
        if point.x_low is not None and point.x_high is not None
    }


def equal_bytes(report: Report, known: Answer) -> list[Equal]:
    """The arms of many that keep as many bytes as another one, the most bytes first and among equals the best
    first.
    """
    baseline = report.experiment.baseline
    effects = [row for row in report.effects if row.primary]
    places = [at for at, cost in enumerate(known.costs) if cost.key in BYTES]
    groups: dict[tuple[float, ...], list[AnswerArm]] = {}
    for row in known.arms:
        kept = tuple(cost for at in places if (cost := row.costs[at]) is not None)
        if kept and len(kept) == len(places) and row.reached.mean is not None and row.ranked:
            groups.setdefault(kept, []).append(row)
    shared = {kept: rows for kept, rows in groups.items() if len(rows) > 1}
    if len(report.experiment.arms) <= MANY or len(shared) < 2:
        return []
    out = []
    for kept, rows in sorted(shared.items(), reverse=True):
        best = by_seed(effects, rows[0].arm, baseline)
        for row in rows:
            own = by_seed(effects, row.arm, baseline)
            differs = reached([own[seed] - best[seed] for seed in best if seed in own])
            out.append(Equal(kept, row.arm, row.reached, differs))
    return out


def _with_ends(of: Mean | None, digits: int) -> str:
    """1.716 [1.708, 1.723]"""
    if of is None:
        return NONE
    ends = "" if of.low is None else f" {span(of.low, of.high, digits, sign=False)}"
    return f"{text(of.mean, digits)}{ends}"


def _timed(panel: TradeoffPanel, arm: str) -> str:
    point = next((point for point in panel.points if point.arm == arm), None)
    if point is None or point.x_low is None:
        return ""
    return f" {span(point.x_low, point.x_high, sign=False)}"


def _rank(
    report: Report, arm: str, effects: Sequence[Effect], panels: Sequence[TradeoffPanel]
) -> tuple[float | None, AnswerArm]:
    """An arm's difference to the baseline, None of one that is not ranked, and the arm."""
    is_baseline = arm == report.experiment.baseline
    own = next((row for row in effects if row.arm == arm), None)
    values = [*by_seed(effects, arm, report.experiment.baseline).values()]
    overrides = report.reproduce.declared.get("arm_overrides") or {}
    leaks = report.leakage is not None and arm in report.leakage.arms
    difference = (0.0 if values else None) if is_baseline else own.mean if own else None
    rank = None if leaks else difference
    costs = [next((point.x for point in panel.points if point.arm == arm), None) for panel in panels]
    changes = [str(override) for override in overrides.get(arm) or []]
    return rank, AnswerArm(arm, is_baseline, changes, reached(values), rank is not None, costs)


def _sentence(report: Report, arms: Sequence[AnswerArm]) -> str:
    """The answer to the experiment's question: its first claim about the metric, with its price."""
    claim = _subject(report)
    if claim is None:
        return f"No claim was declared{_leader(report, arms)}{_scope(report)}."
    line = f"{claim.arm} vs {claim.against}: "
    if claim.verdict in DECIDED:
        price = _price(report, claim.arm, claim.against)
        line += f"{price}; " if price else ""
    line += format_claim(claim)
    if claim.training and claim.verdict in DECIDED:
        line += f", equivalent to {format_training(claim.training)}"
    caveat = "".join(f" {arm} {BY_DESIGN}." for arm in claim.by_design)
    seeds = claim.decision.n if claim.verdict in DECIDED and not claim.decision.exact else None
    return f"{line}{_scope(report, seeds)}.{caveat}"


def _subject(report: Report) -> ClaimResult | None:
    """The claim that answers the question: the first that is measured in the experiment's metric."""
    claims = report.verdict.claims
    asked = [claim for claim in claims if not claim.decision.exact and not claim.identity]
    metric = report.experiment.metric
    return next((claim for claim in asked if claim.metric == metric), next(iter([*asked, *claims]), None))


def _price(report: Report, arm: str, against: str) -> str:
    """What the arm takes more or less of: halves the KV cache per token, with 0.92 times the parameters."""
    shares: dict[str, tuple[float, str]] = {}
    for row in report.budget.rows:
        ours = _number(row, arm)
        theirs = _number(row, against)
        if row.key in PRICED and ours and theirs and abs(ours / theirs - 1) > (row.tolerance or 0.0):
            shares[row.key] = (ours / theirs, row.label)
    if not 0.5 <= shares.get("parameters", (1.0, ""))[0] <= 2:
        return ""  # models of two sizes, which is not the price of one's design
    cache = shares.pop(CACHE, None)
    rest = " and ".join(f"{share:.3g} times the {label}" for share, label in shares.values())
    if cache is None:
        return f"has {rest}" if rest else ""
    share, label = cache
    said = f"{FACTORS[share]} the {label}" if share in FACTORS else f"has {share:.3g} times the {label}"
    return f"{said}, with {rest}" if rest else said


def _number(row: BudgetRow, arm: str) -> float | None:
    value = next((cell.value for cell in row.cells if cell.arm == arm), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _leader(report: Report, arms: Sequence[AnswerArm]) -> str:
    """Which arm came out best, where nothing was claimed."""
    known = [row for row in arms if row.reached.mean is not None and row.ranked]
    left = [row.arm for row in arms if row.reached.mean is not None and not row.ranked]
    apart = f"; not comparable: {', '.join(left)}" if left else ""
    if len(known) < 2:
        return apart
    end = "highest" if report.experiment.direction == "higher" else "lowest"
    return f": {known[0].arm} came out with the {end} {report.experiment.metric} of {len(known)} arms{apart}"


def _scope(report: Report, seeds: int | None = None) -> str:
    """What the answer is about: at size S (105,216 parameters), on pydocs, 16 seeds."""
    row = report.budget.row("parameters")
    count = _number(row, report.experiment.baseline) if row else None
    known = f" ({text(count)} parameters)" if count else ""
    size = report.experiment.size
    data = report.reproduce.data
    place = [f"at size {size}{known}"] if size else [f"at {text(count)} parameters"] if count else []
    place += [f"on {', '.join(dict.fromkeys(str(one.get('name')) for one in data))}"] if data else []
    place += [f"{seeds} seeds"] if seeds else []
    return f"; {', '.join(place)}" if place else ""
