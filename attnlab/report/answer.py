"""The first screen of a report: the answer with its cost, and the arms, best first.

It is a pure function of report.json.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnlab.report.number_format import NONE, append_unit, format_bounds, format_number
from attnlab.report.schema import (
    ClaimResult,
    Effect,
    EffectVerdict,
    MeanInterval,
    PairedMean,
    Report,
    TradeoffPanel,
    Verdict,
)
from attnlab.report.tables.arm_columns import (
    CACHE_BYTE_KEYS,
    MANY_ARMS,
    average_seeds,
    build_arm_columns,
    compare_by_seed,
    get_values_by_seed,
)
from attnlab.report.tables.arm_options import describe_arm_options
from attnlab.report.tables.filled_answer import fill_answer_template, get_budget_number
from attnlab.report.tables.wording import (
    DECIDED_VERDICTS,
    DELTA,
    find_claim_effect,
    format_effect,
    format_effect_level,
    format_effect_verdict,
    format_outcome,
    list_claim_notes,
)
from attnlab.report.verdicts.leakage_check import BY_DESIGN
from attnlab.report.verdicts.results import KV_CACHE_BYTES

SENTENCE_COSTS = (KV_CACHE_BYTES, "parameters", "flops_per_token")  # budget keys in the sentence
COLUMN_COSTS = (KV_CACHE_BYTES, "carried_bytes", "decode_ms_per_token")  # trade-off keys in the arms table
FACTOR_VERBS = {0.25: "quarters", 0.5: "halves", 2.0: "doubles"}


@dataclass(frozen=True)
class AnswerArm:
    """An arm with the options that distinguish it, its result over complete pairs, verdict, and costs.

    The costs are in the order of the answer's. An arm without a comparable result is not ranked; its verdict
    has the reason. Learning rate and precision are None where all arms have the baseline's.
    """

    arm: str
    options: str
    result: PairedMean
    is_ranked: bool
    verdict: str
    costs: list[float | None]
    learning_rate: float | None = None
    precision: str | None = None


@dataclass(frozen=True)
class Answer:
    """The sentence, the metric of the arms, their costs, and the arms; whether their seeds differ."""

    sentence: str
    label: str
    unit: str
    digits: int
    costs: list[TradeoffPanel]
    arms: list[AnswerArm]

    @property
    def has_seed_column(self) -> bool:
        """Whether arms with a result differ in their number of seeds."""
        return len({row.result.n for row in self.arms if row.result.n}) > 1

    @property
    def has_learning_rate_column(self) -> bool:
        """Whether an arm was trained at another learning rate than the baseline."""
        return any(row.learning_rate for row in self.arms)

    @property
    def has_precision_column(self) -> bool:
        """Whether an arm was trained at another precision than the baseline."""
        return any(row.precision for row in self.arms)


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
    options = describe_arm_options(report)
    arms = [_build_arm(report, arm, options[arm], effects, panels) for arm in report.experiment.arms]
    sign = -1 if report.experiment.direction == "higher" else 1
    arms.sort(key=lambda row: (not row.is_ranked, sign * (row.result.mean or 0.0) if row.is_ranked else 0.0))
    rates, precisions = (_collect_differing_values(report, key) for key in ("lr", "dtype"))
    arms = [replace(row, learning_rate=rates.get(row.arm), precision=precisions.get(row.arm)) for row in arms]
    return Answer(
        sentence=_format_answer(report, arms),
        label=effects[0].label if effects else report.experiment.metric,
        unit=effects[0].unit if effects else "",
        digits=max((row.digits for row in effects), default=3),
        costs=panels,
        arms=arms,
    )


def build_arms_table(
    report: Report, prepared: Answer | None = None, has_all_columns: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Build the arms as text: a header and a row each; optionally with all columns."""
    prepared = prepared or build_answer(report)
    effects = get_primary_effects(report)
    other_columns = build_arm_columns(report) if has_all_columns else []
    labels = [("learning rate", "")] if prepared.has_learning_rate_column else []
    labels += [("precision", "")] if prepared.has_precision_column else []
    labels += [("seeds", "")] if prepared.has_seed_column else []
    labels += [(column.label, column.unit) for column in other_columns]
    labels += [(cost.label, cost.unit) for cost in prepared.costs]
    rows = []
    for row in prepared.arms:
        effect = effects.get(row.arm)
        other_cells = [
            _format_mean_interval(column.cells.get(row.arm), column.digits) for column in other_columns
        ]
        costs = [
            f"{format_number(value)}{_format_timed_interval(cost, row.arm) if has_all_columns else ''}"
            for cost, value in zip(prepared.costs, row.costs, strict=True)
        ]
        result = _format_mean_interval(row.result, prepared.digits)
        delta = format_effect(effect) if effect else NONE
        rate = [format_number(row.learning_rate)] if prepared.has_learning_rate_column else []
        precision = [row.precision or NONE] if prepared.has_precision_column else []
        seeds = [f"{row.result.n}"] if prepared.has_seed_column else []
        rows.append([row.arm, result, delta, row.verdict, *rate, *precision, *seeds, *other_cells, *costs])
    header = ["arm", append_unit(prepared.label, prepared.unit), DELTA, "verdict"]
    return [*header, *(append_unit(label, unit) for label, unit in labels)], rows


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
        for row in rows:
            difference = compare_by_seed(effects, row.arm, rows[0].arm, baseline)
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


def _build_arm(
    report: Report, arm: str, options: str, effects: Sequence[Effect], panels: Sequence[TradeoffPanel]
) -> AnswerArm:
    """Build an arm; it is ranked if it has a result that is comparable with the baseline's."""
    effect = next((row for row in effects if row.arm == arm), None)
    values = [*get_values_by_seed(effects, arm, report.experiment.baseline).values()]
    leakage = _find_leakage_note(report, arm)
    untrained = _find_untrained_note(report, arm)
    has_result = (
        bool(values) if arm == report.experiment.baseline else bool(effect and effect.mean is not None)
    )
    return AnswerArm(
        arm=arm,
        options=options,
        result=average_seeds(values, is_proportion=any(row.is_proportion for row in effects)),
        is_ranked=has_result and not leakage and not untrained,
        verdict=untrained or _format_arm_verdict(report, arm, effect, leakage),
        costs=[next((point.x for point in panel.points if point.arm == arm), None) for panel in panels],
    )


def _collect_differing_values(report: Report, key: str) -> dict[str, Any]:
    """Collect a value of the budget for each arm; empty if no arm's differs from the baseline's."""
    row = report.budget.find_row(key)
    values = {cell.arm: cell.value for cell in row.cells} if row else {}
    baseline_value = values.get(report.experiment.baseline)
    return values if baseline_value and {*values.values()} - {baseline_value, None} else {}


def _format_arm_verdict(report: Report, arm: str, effect: Effect | None, leakage: str) -> str:
    """Format the verdict of an arm, with the reason if it has none: `NO RESULT: not measured`."""
    if arm == report.experiment.baseline:
        return f"baseline: {leakage}" if leakage else "baseline"
    if effect is None or effect.verdict == EffectVerdict.NO_RESULT:
        finished = [row for row in report.runs if row.arm == arm and row.is_done]
        is_measured = any(row.metrics.get(report.experiment.metric) is not None for row in finished)
        reason = "no complete pair" if is_measured else "not measured" if finished else "no run finished"
        return f"{EffectVerdict.NO_RESULT}: {reason}"
    if effect.verdict == EffectVerdict.LEAKING:
        return f"{effect.verdict} (by design)" if leakage else f"{effect.against} {BY_DESIGN}"
    if leakage and not effect.reasons:
        return f"{effect.verdict}{format_effect_level(effect, report.experiment.direction)}; {leakage}"
    return format_effect_verdict(effect) + format_effect_level(effect, report.experiment.direction)


def _find_untrained_note(report: Report, arm: str) -> str:
    """Find the verdict of an untrained arm in a sweep without an experiment; empty for any other arm."""
    cell = report.grid.find_cell(arm) if report.grid else None
    return f"{cell.state}: {cell.reason}" if cell and cell.state == Verdict.UNTRAINED else ""


def _find_leakage_note(report: Report, arm: str) -> str:
    """Find the caveat that an arm sees future tokens; empty if it sees none."""
    if report.leakage is None or arm not in report.leakage.arms:
        return ""
    prefixes = (f"{arm} sees ", f"the predictions of {arm} depend ")
    notes = (note for note in report.failures.caveats if note.startswith(prefixes))
    return next(notes, "").removeprefix(f"{arm} ").rstrip(".")


def _format_answer(report: Report, arms: Sequence[AnswerArm]) -> str:
    """Format the answer: the experiment's own sentence, a comparison of many corpora or arms, or a claim."""
    best = _format_best_arms(report, arms)
    if filled := fill_answer_template(report, best):
        scope = _format_scope(report, filled.seeds, claims=filled.claims)
        return f"{filled.text}{scope}.{_format_claim_notes(filled.claims)}"
    if has_corpora_first(report):
        return f"{_format_corpus_differences(report)}{_format_scope(report, is_over_corpora=True)}."
    claim = _find_headline_claim(report)
    if claim is None or (best and len(report.experiment.arms) > MANY_ARMS):
        sentences = [best] if claim else ["No preregistered claim", best]
        return f"{'. '.join(filter(None, sentences))}{_format_scope(report)}."
    effect = find_claim_effect(claim, report.effects)
    cost = ""
    if claim.verdict in DECIDED_VERDICTS:
        cost = _format_cost_change(report, claim.arm, claim.against)
    outcome = format_outcome(claim, effect)
    line = f"{claim.comparison_text}: {cost + '; ' if cost else ''}{outcome}"
    is_estimated = claim.verdict in DECIDED_VERDICTS and not claim.decision.exact
    seeds = {effect.n if effect else claim.decision.n} if is_estimated else set[int]()
    return f"{line}{_format_scope(report, seeds, claims=[claim])}.{_format_claim_notes([claim])}"


def _format_claim_notes(claims: Sequence[ClaimResult]) -> str:
    return "".join(f" {note}." for note in list_claim_notes(claims))


def has_corpora_first(report: Report) -> bool:
    """Whether the table of arms by corpus is the answer: the main report over more than two corpora."""
    return report.is_main and report.corpora is not None and len(report.corpora.names) > 2


def _format_corpus_differences(report: Report) -> str:
    """Format the arms that are better or worse than the baseline on some corpora."""
    assert report.corpora is not None, "a report over several corpora"
    total = len(report.corpora.names)
    parts = []
    for arm in report.experiment.arms:
        for state in ("better", "worse"):
            corpora = [
                row.corpus
                for row in report.corpora.arms
                if any(cell.arm == arm and cell.state == state for cell in row.cells)
            ]
            where = f"{len(corpora)} of {total}" if len(corpora) > 3 else " and ".join(corpora)
            parts += [f"{arm} is {state} on {where}"] if corpora else []
    others = "no other difference is shown" if parts else "no difference is shown"
    return f"Against {report.experiment.baseline} over {total} corpora: {'; '.join([*parts, others])}"


def _find_headline_claim(report: Report) -> ClaimResult | None:
    """Find the claim that answers the question: the first one in the experiment's metric."""
    claims = report.verdict.claims
    empirical = [claim for claim in claims if not claim.holds_by_construction]
    metric = report.experiment.metric
    return next(
        (claim for claim in empirical if claim.metric == metric), next(iter([*empirical, *claims]), None)
    )


def _format_cost_change(report: Report, arm: str, against: str) -> str:
    """Format the relative costs: halves the KV cache per token, with 0.92 times the parameters."""
    ratios: dict[str, tuple[float, str]] = {}
    for row in report.budget.rows:
        value = get_budget_number(row, arm)
        against_value = get_budget_number(row, against)
        if (
            row.key in SENTENCE_COSTS
            and value
            and against_value
            and abs(value / against_value - 1) > (row.tolerance or 0.0)
        ):
            ratios[row.key] = (value / against_value, row.label)
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


def _format_best_arms(report: Report, arms: Sequence[AnswerArm]) -> str:
    """Format the arm with the best mean, and the arms that are not compared with it."""
    ranked = [row for row in arms if row.result.mean is not None and row.is_ranked]
    unranked = [row.arm for row in arms if row.result.mean is not None and not row.is_ranked]
    untrained = [arm for arm in unranked if _find_untrained_note(report, arm)]
    incomparable = [arm for arm in unranked if arm not in untrained]
    notes = [f"not comparable: {', '.join(incomparable)}"] if incomparable else []
    notes += [f"{Verdict.UNTRAINED}: {', '.join(untrained)}"] if untrained else []
    if len(ranked) < 2:
        text = "; ".join(notes)
        return f"{text[:1].upper()}{text[1:]}"
    effects = [*get_primary_effects(report).values()]
    best = ranked[0]
    value = format_number(best.result.mean, max(row.digits for row in effects), unit=effects[0].unit)
    line = f"Best mean of {len(ranked)} arms in {effects[0].label}: {best.arm} ({value})"
    return "; ".join([line, *notes])


def _format_scope(
    report: Report,
    seeds: Collection[int] = (),
    *,
    claims: Sequence[ClaimResult] = (),
    is_over_corpora: bool = False,
) -> str:
    """Format the scope of the answer: at size S (105,216 parameters), on pydocs, 16 seeds.

    The seeds are omitted where comparisons have different numbers, and the number of parameters is a range
    where it differs between the arms of `claims`. Several corpora share the size only.
    """
    count = "" if is_over_corpora else _format_parameters(report, claims)
    size = report.experiment.size
    data = [] if is_over_corpora else report.reproduce.data
    parts = [f"at size {size}{f' ({count})' if count else ''}"] if size else []
    parts += [f"at {count}"] if count and not size else []
    parts += [f"on {', '.join(dict.fromkeys(str(dataset.get('name')) for dataset in data))}"] if data else []
    parts += [f"{n} seeds" for n in seeds if len(seeds) == 1]
    return f"; {', '.join(parts)}" if parts else ""


def _format_parameters(report: Report, claims: Sequence[ClaimResult]) -> str:
    """Format the baseline's parameters, or the range of the claims' arms; empty if unknown."""
    row = report.budget.find_row("parameters")
    if row is None or not (own := get_budget_number(row, report.experiment.baseline)):
        return ""
    arms = dict.fromkeys(arm for claim in claims for arm in claim.arms)
    counts = [count for arm in arms if (count := get_budget_number(row, arm))] or [own]
    if max(counts) / min(counts) - 1 > (row.tolerance or 0.0):
        return f"{format_number(min(counts))} to {format_number(max(counts))} parameters"
    return f"{format_number(own)} parameters"
