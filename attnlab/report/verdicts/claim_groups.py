"""Claims that belong together: the steps of a staircase, an interaction, and parts left out in turn.

The estimates of a group are over the same seeds, those that all of its arms have finished. So the steps of a
staircase add up to the difference of its ends, which claims decided at different interim analyses need not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from attnlab import stats
from attnlab.report.schema import BudgetCheck, ClaimGroup, ClaimResult, GroupEffect
from attnlab.report.verdicts import comparability
from attnlab.report.verdicts.budget_check import is_unmatched
from attnlab.report.verdicts.effects import find_latest_design
from attnlab.report.verdicts.results import SweepResults
from attnlab.report.verdicts.verdict_rules import count_decimals
from attnlab.stats.evidence import CONFIDENCE_LEVEL

Weights = Mapping[str, float]


def build_claim_groups(
    sweep: SweepResults, budget: BudgetCheck, claims: Sequence[ClaimResult]
) -> list[ClaimGroup]:
    """Build a group for each short form of the claims, in their order, one per metric."""
    groups = dict[tuple[object, ...], list[ClaimResult]]()
    for claim in claims:
        form = claim.interaction or claim.chain or claim.parts_of
        if form is not None:
            key = (repr(form), claim.chain is None, claim.parts_of is None, claim.metric)
            groups.setdefault(key, []).append(claim)
    return [_build_group(sweep, budget, members) for members in groups.values()]


def _build_group(sweep: SweepResults, budget: BudgetCheck, claims: Sequence[ClaimResult]) -> ClaimGroup:
    first = claims[0]
    kind: Literal["interaction", "chain", "leave_one_out"]
    if first.interaction and first.contrast:
        kind, arms, effects = "interaction", [*first.contrast], [*_list_interaction(first)]
    elif first.chain:
        kind, arms, effects = "chain", first.chain, [*_list_steps(first.chain)]
    else:
        assert first.parts_of is not None
        arms = [first.parts_of, *dict.fromkeys(claim.arm for claim in claims)]
        kind = "leave_one_out"
        effects = [(arm, {arm: 1.0, arms[0]: -1.0}) for arm in arms[1:]]
    arms = [arm for arm in arms if arm in sweep.arms]
    effects = [(name, weights) for name, weights in effects if {*weights} <= {*arms}]
    count, rule = find_latest_design(sweep, arms)
    seeds = [
        seed
        for seed in sweep.seeds[:count]
        if all(sweep.get_value(arm, seed, first.metric) is not None for arm in arms)
    ]
    rows = [_estimate_effect(sweep, first.metric, seeds, rule, name, weights) for name, weights in effects]
    metric = sweep.get_metric(first.metric)
    widths = [row.high - row.low for row in rows if row.low is not None and row.high is not None]
    return ClaimGroup(
        kind=kind,
        arms=arms,
        metric=first.metric,
        label=metric.display_name,
        unit=metric.unit,
        direction=first.direction,
        seeds=seeds,
        level=CONFIDENCE_LEVEL,
        digits=count_decimals(min(widths, default=None)),
        means={arm: _average(sweep, arm, first.metric, seeds) for arm in arms},
        effects=rows,
        notes=list(dict.fromkeys(_list_notes(sweep, budget, first.metric, effects))),
    )


def _list_interaction(claim: ClaimResult) -> Iterator[tuple[str, Weights]]:
    assert claim.interaction
    assert claim.contrast
    one, other = claim.interaction
    both, _, _, baseline = claim.contrast
    yield f"{one} alone", {one: 1.0, baseline: -1.0}
    yield f"{one} with {other}", {both: 1.0, other: -1.0}
    yield f"{other} alone", {other: 1.0, baseline: -1.0}
    yield f"{other} with {one}", {both: 1.0, one: -1.0}
    yield "interaction", claim.contrast


def _list_steps(chain: Sequence[str]) -> Iterator[tuple[str, Weights]]:
    for before, arm in pairwise(chain):
        yield arm, {arm: 1.0, before: -1.0}
    yield f"{chain[-1]} against {chain[0]}", {chain[-1]: 1.0, chain[0]: -1.0}


def _estimate_effect(
    sweep: SweepResults,
    metric: str,
    seeds: Sequence[int],
    rule: stats.StoppingRule,
    name: str,
    weights: Weights,
) -> GroupEffect:
    differences = [pair.value - pair.against for pair in sweep.build_pairs(weights, metric, seeds)]
    estimate = stats.estimate_paired_difference(differences, CONFIDENCE_LEVEL, rule) if differences else None
    low, high = (estimate.interval if estimate else None) or (None, None)
    return GroupEffect(
        name=name, weights=dict(weights), mean=estimate.mean if estimate else None, low=low, high=high
    )


def _average(sweep: SweepResults, arm: str, metric: str, seeds: Sequence[int]) -> float | None:
    values = [value for seed in seeds if (value := sweep.get_value(arm, seed, metric)) is not None]
    return math.fsum(values) / len(values) if values else None


def _list_notes(
    sweep: SweepResults, budget: BudgetCheck, metric: str, effects: Sequence[tuple[str, Weights]]
) -> Iterator[str]:
    """Name each effect whose arms cannot be compared, or differ in the matched resource by design."""
    for name, weights in effects:
        one, *others = weights
        for other in others:
            for reason in comparability.list_incomparability_reasons(sweep, budget, one, other, metric):
                yield f"{name}: {reason.text}"
        for row in budget.rows:
            for arm in weights:
                ratio = row.get_cell(arm).ratio
                if ratio is not None and is_unmatched(budget, row, arm):
                    yield f"{name}: {arm} is not matched in {row.label}: {ratio:.3g} times the baseline's"
