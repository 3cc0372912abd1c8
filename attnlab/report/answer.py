"""The first screen of a report: the answer with its cost, and the arms, best first.

It is a pure function of report.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.report.schema import (
    BudgetRow,
    ClaimResult,
    Effect,
    MeanInterval,
    PairedMean,
    Report,
    TradeoffPanel,
)
from attnlab.report.tables.number_format import NONE, append_unit, format_bounds, format_number
from attnlab.report.tables.ranking import (
    CACHE_BYTE_KEYS,
    MANY_ARMS,
    average_seeds,
    build_ranking_columns,
    get_values_by_seed,
)
from attnlab.report.tables.wording import (
    DECIDED_VERDICTS,
    DELTA,
    format_claim,
    format_effect,
    format_training,
)
from attnlab.report.verdicts.leakage_check import BY_DESIGN

KV_CACHE_BYTES = "kv_bytes_per_token"
SENTENCE_COSTS = (KV_CACHE_BYTES, "parameters", "flops_per_token")  # budget keys in the sentence
COLUMN_COSTS = (KV_CACHE_BYTES, "carried_bytes", "decode_ms_per_token")  # trade-off keys in the arms table
FACTOR_VERBS = {0.25: "quarters", 0.5: "halves", 2.0: "doubles"}


@dataclass(frozen=True)
class AnswerArm:
    """An arm with its overrides, its result over complete pairs, and its costs.

    The costs are in the order of the answer's. Arms that see future tokens are not ranked.
    """

    arm: str
    is_baseline: bool
    overrides: list[str]
    result: PairedMean
    is_ranked: bool
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
class EqualBytesArm:
    """An arm that caches as many bytes as another, with its difference from the best of them.

    `cache_bytes` are the bytes per token and per text.
    """

    cache_bytes: tuple[float, ...]
    arm: str
    result: PairedMean
    difference: PairedMean


def build_answer(report: Report) -> Answer:
    """Build the first screen of a report."""
    effects = list(get_primary_effects(report).values())
    panels = [panel for panel in report.tradeoff if panel.key in COLUMN_COSTS]
    ranked = [_build_ranked_arm(report, arm, effects, panels) for arm in report.experiment.arms]
    sign = -1 if report.experiment.direction == "higher" else 1
    ranked.sort(key=lambda pair: (pair[0] is None, sign * (pair[0] or 0.0)))
    arms = [arm for _, arm in ranked]
    return Answer(
        sentence=_format_answer(report, arms),
        label=effects[0].label if effects else report.experiment.metric,
        unit=effects[0].unit if effects else "",
        digits=max((row.digits for row in effects), default=3),
        costs=panels,
        arms=arms,
    )


def build_arms_table(
    report: Report, prepared: Answer | None = None, include_rankings: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Build the arms as text: a header and a row each; optionally with all columns that rank them."""
    prepared = prepared or build_answer(report)
    effects = get_primary_effects(report)
    ranking_columns = build_ranking_columns(report) if include_rankings else []
    labels = [(prepared.label, prepared.unit), (DELTA, "")]
    labels += [(column.label, column.unit) for column in ranking_columns] + [
        (cost.label, cost.unit) for cost in prepared.costs
    ]
    rows = []
    for row in prepared.arms:
        effect = effects.get(row.arm)
        ranking_cells = [
            _format_mean_interval(column.cells.get(row.arm), column.digits) for column in ranking_columns
        ]
        costs = [
            f"{format_number(value)}{_format_timed_interval(cost, row.arm) if include_rankings else ''}"
            for cost, value in zip(prepared.costs, row.costs, strict=True)
        ]
        verdict = "baseline" if row.is_baseline else str(effect.verdict) if effect else NONE
        result = _format_mean_interval(row.result, prepared.digits)
        rows.append(
            [row.arm, result, format_effect(effect) if effect else NONE, *ranking_cells, *costs, verdict]
        )
    return ["arm", *(append_unit(label, unit) for label, unit in labels), "verdict"], rows


def get_primary_effects(report: Report) -> dict[str, Effect]:
    """Return each arm's effect in the experiment's metric."""
    return {row.arm: row for row in report.effects if row.primary}


def collect_timed_intervals(report: Report) -> dict[tuple[str, str], tuple[float, float]]:
    """Collect (cost key, arm) -> interval of that cost, if it was timed."""
    return {
        (panel.key, point.arm): (point.x_low, point.x_high)
        for panel in report.tradeoff
        for point in panel.points
        if point.x_low is not None and point.x_high is not None
    }


def find_equal_byte_arms(report: Report, prepared: Answer) -> list[EqualBytesArm]:
    """Find among many arms those that cache as many bytes as another.

    They are sorted by bytes, most first, then by result, best first.
    """
    baseline = report.experiment.baseline
    effects = [row for row in report.effects if row.primary]
    indices = [index for index, cost in enumerate(prepared.costs) if cost.key in CACHE_BYTE_KEYS]
    groups: dict[tuple[float, ...], list[AnswerArm]] = {}
    for row in prepared.arms:
        cache_bytes = tuple(cost for index in indices if (cost := row.costs[index]) is not None)
        if cache_bytes and len(cache_bytes) == len(indices) and row.result.mean is not None and row.is_ranked:
            groups.setdefault(cache_bytes, []).append(row)
    equal_groups = {cache_bytes: rows for cache_bytes, rows in groups.items() if len(rows) > 1}
    if len(report.experiment.arms) <= MANY_ARMS or len(equal_groups) < 2:
        return []
    equal_arms = []
    for cache_bytes, rows in sorted(equal_groups.items(), reverse=True):
        best_values = get_values_by_seed(effects, rows[0].arm, baseline)
        for row in rows:
            values = get_values_by_seed(effects, row.arm, baseline)
            difference = average_seeds(
                [values[seed] - best_values[seed] for seed in best_values if seed in values]
            )
            equal_arms.append(EqualBytesArm(cache_bytes, row.arm, row.result, difference))
    return equal_arms


def _format_mean_interval(mean: MeanInterval | None, digits: int) -> str:
    """Format a mean with its interval: `1.716 [1.708, 1.723]`."""
    if mean is None:
        return NONE
    interval = "" if mean.low is None else f" {format_bounds(mean.low, mean.high, digits, sign=False)}"
    return f"{format_number(mean.mean, digits)}{interval}"


def _format_timed_interval(panel: TradeoffPanel, arm: str) -> str:
    point = next((point for point in panel.points if point.arm == arm), None)
    if point is None or point.x_low is None:
        return ""
    return f" {format_bounds(point.x_low, point.x_high, sign=False)}"


def _build_ranked_arm(
    report: Report, arm: str, effects: Sequence[Effect], panels: Sequence[TradeoffPanel]
) -> tuple[float | None, AnswerArm]:
    """Build an arm, with its difference from the baseline as rank; None if it is not ranked."""
    is_baseline = arm == report.experiment.baseline
    effect = next((row for row in effects if row.arm == arm), None)
    values = [*get_values_by_seed(effects, arm, report.experiment.baseline).values()]
    overrides = report.reproduce.preregistered.get("arm_overrides") or {}
    leaks = report.leakage is not None and arm in report.leakage.arms
    difference = (0.0 if values else None) if is_baseline else effect.mean if effect else None
    rank = None if leaks else difference
    costs = [next((point.x for point in panel.points if point.arm == arm), None) for panel in panels]
    changes = [str(override) for override in overrides.get(arm) or []]
    result = average_seeds(values, is_proportion=any(row.is_proportion for row in effects))
    return rank, AnswerArm(arm, is_baseline, changes, result, rank is not None, costs)


def _format_answer(report: Report, arms: Sequence[AnswerArm]) -> str:
    """Format the answer: the experiment's first claim about its metric, with its cost."""
    claim = _find_headline_claim(report)
    if claim is None:
        return f"No preregistered claim{_format_best_arm(report, arms)}{_format_scope(report)}."
    line = f"{claim.arm} vs {claim.against}: "
    if claim.verdict in DECIDED_VERDICTS:
        cost = _format_cost_change(report, claim.arm, claim.against)
        line += f"{cost}; " if cost else ""
    line += format_claim(claim)
    if claim.training_equivalent and claim.verdict in DECIDED_VERDICTS:
        line += f", equivalent to {format_training(claim.training_equivalent)}"
    caveat = "".join(f" {arm} {BY_DESIGN}." for arm in claim.leaking_by_design)
    seeds = claim.decision.n if claim.verdict in DECIDED_VERDICTS and not claim.decision.exact else None
    return f"{line}{_format_scope(report, seeds)}.{caveat}"


def _find_headline_claim(report: Report) -> ClaimResult | None:
    """Find the claim that answers the question: the first one in the experiment's metric."""
    claims = report.verdict.claims
    empirical = [claim for claim in claims if not claim.decision.exact and not claim.identity]
    metric = report.experiment.metric
    return next(
        (claim for claim in empirical if claim.metric == metric), next(iter([*empirical, *claims]), None)
    )


def _format_cost_change(report: Report, arm: str, against: str) -> str:
    """Format the relative costs: halves the KV cache per token, with 0.92 times the parameters."""
    ratios: dict[str, tuple[float, str]] = {}
    for row in report.budget.rows:
        value = _get_budget_number(row, arm)
        against_value = _get_budget_number(row, against)
        if (
            row.key in SENTENCE_COSTS
            and value
            and against_value
            and abs(value / against_value - 1) > (row.tolerance or 0.0)
        ):
            ratios[row.key] = (value / against_value, row.label)
    if not 0.5 <= ratios.get("parameters", (1.0, ""))[0] <= 2:
        return ""  # models of two sizes: the ratio is no cost of the design
    cache = ratios.pop(KV_CACHE_BYTES, None)
    other_costs = " and ".join(f"{ratio:.3g} times the {label}" for ratio, label in ratios.values())
    if cache is None:
        return f"has {other_costs}" if other_costs else ""
    ratio, label = cache
    text = (
        f"{FACTOR_VERBS[ratio]} the {label}"
        if ratio in FACTOR_VERBS
        else f"has {ratio:.3g} times the {label}"
    )
    return f"{text}, with {other_costs}" if other_costs else text


def _get_budget_number(row: BudgetRow, arm: str) -> float | None:
    value = next((cell.value for cell in row.cells if cell.arm == arm), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _format_best_arm(report: Report, arms: Sequence[AnswerArm]) -> str:
    """Format the best arm of an experiment without claims."""
    ranked = [row for row in arms if row.result.mean is not None and row.is_ranked]
    unranked = [row.arm for row in arms if row.result.mean is not None and not row.is_ranked]
    note = f"; not comparable: {', '.join(unranked)}" if unranked else ""
    if len(ranked) < 2:
        return note
    extreme = "highest" if report.experiment.direction == "higher" else "lowest"
    metric = report.experiment.metric
    return f": {ranked[0].arm} has the {extreme} {metric} of {len(ranked)} arms{note}"


def _format_scope(report: Report, seeds: int | None = None) -> str:
    """Format the scope of the answer: at size S (105,216 parameters), on pydocs, 16 seeds."""
    row = report.budget.find_row("parameters")
    count = _get_budget_number(row, report.experiment.baseline) if row else None
    parameters = f" ({format_number(count)} parameters)" if count else ""
    size = report.experiment.size
    data = report.reproduce.data
    parts = [f"at size {size}{parameters}"] if size else []
    parts += [f"at {format_number(count)} parameters"] if count and not size else []
    parts += [f"on {', '.join(dict.fromkeys(str(dataset.get('name')) for dataset in data))}"] if data else []
    parts += [f"{seeds} seeds"] if seeds else []
    return f"; {', '.join(parts)}" if parts else ""
