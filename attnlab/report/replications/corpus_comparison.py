"""Results of one experiment on each of its corpora, side by side, in the report of each corpus."""

import math
from collections.abc import Mapping
from statistics import mean, stdev

from attnlab.report.answer import get_primary_effects
from attnlab.report.number_format import format_number, format_percent
from attnlab.report.replications.arm_pairs import (
    compute_differences,
    count_failed_runs,
    is_primary_difference,
)
from attnlab.report.schema import (
    ClaimResult,
    CorporaSection,
    CorpusArms,
    CorpusCell,
    CorpusClaim,
    CorpusClaims,
    ReplicationContext,
    Report,
)
from attnlab.report.tables.arm_columns import average_arm
from attnlab.report.tables.wording import find_claim_effect, format_decision, format_estimate, format_interval
from attnlab.report.verdicts.verdict_rules import count_decimals
from attnlab.stats.evidence import CONFIDENCE_LEVEL
from attnlab.stats.replications.ladder_sample import Estimate
from attnlab.stats.replications.random_effects import CorpusEffect, combine_corpora


def add_corpus_comparison(reports: Mapping[str, Report]) -> dict[str, Report]:
    """Each report, by title, with the comparison of all; counts are omitted, as no corpus changes them.

    One corpus has nothing to be compared with.
    """
    if len(reports) < 2:
        return dict(reports)
    section = CorporaSection(
        names=[_get_place(report).name for report in reports.values()],
        claims=_build_claims(reports),
        arms=[_build_arm_row(title, report) for title, report in reports.items()],
    )
    return {title: report.model_copy(update={"corpora": section}) for title, report in reports.items()}


def _get_place(report: Report) -> ReplicationContext:
    assert report.replication is not None, "the report of a corpus has the name of the corpus"
    return report.replication


def _build_arm_row(title: str, report: Report) -> CorpusArms:
    """The mean of each arm on a corpus, and its state against the baseline there."""
    states = {
        arm: row.verdict.lower()
        for arm, row in get_primary_effects(report).items()
        if row.verdict.is_judgment
    }
    means = {arm: average_arm(report, arm).mean for arm in report.experiment.arms}
    cells = [CorpusCell(arm=arm, mean=means[arm], state=states.get(arm)) for arm in report.experiment.arms]
    return CorpusArms(corpus=_get_place(report).name, title=title, cells=cells)


def _build_claims(reports: Mapping[str, Report]) -> list[CorpusClaims]:
    rows_by_claim: dict[str, list[CorpusClaim]] = {}
    heterogeneity: dict[str, str] = {}
    for title, report in reports.items():
        for claim in report.verdict.claims:
            if not claim.holds_by_construction:
                rows_by_claim.setdefault(claim.says, []).append(_build_claim_row(title, report, claim))
    first = next(iter(reports.values()))
    for claim in first.verdict.claims:
        if claim.says in rows_by_claim and is_primary_difference(claim, first):
            heterogeneity[claim.says] = _summarize_corpora(reports, claim)
    return [
        CorpusClaims(says=says, rows=rows, heterogeneity=heterogeneity.get(says, ""))
        for says, rows in rows_by_claim.items()
    ]


def _build_claim_row(title: str, report: Report, claim: ClaimResult) -> CorpusClaim:
    effect = find_claim_effect(claim, report.effects)
    interval = effect or claim.interval
    return CorpusClaim(
        corpus=_get_place(report).name,
        title=title,
        verdict=claim.verdict,
        compare=claim.compare,
        effect=effect.mean if effect else claim.decision.estimate,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        unit=claim.unit,
        digits=(effect or claim).digits,
        training_equivalent=(effect or claim).training_equivalent,
        decision=format_decision(claim),
    )


def _summarize_corpora(reports: Mapping[str, Report], claim: ClaimResult) -> str:
    """A sentence on how the effects of the corpora differ; empty where the spread on a corpus is unknown.

    With failed runs the means would be those of the survivors.
    """
    effects = []
    failed = [
        f"{_get_place(report).name} ({count})"
        for report in reports.values()
        if (count := count_failed_runs(report, claim.arm, claim.against))
    ]
    if failed:
        return f"runs failed on {', '.join(failed)}, so the corpora are not compared"
    for report in reports.values():
        differences = [*compute_differences(report, claim.arm, claim.against, claim.metric).values()]
        spread = stdev(differences) if len(differences) > 1 else 0.0
        if not spread:
            return ""
        effects.append(
            CorpusEffect(
                _get_place(report).name,
                mean(differences),
                spread / math.sqrt(len(differences)),
                len(differences) - 1,
            )
        )
    result = combine_corpora(effects)
    if result.difference is not None:
        low, high = _get_bounds(result.difference)
        differs = not low <= 0 <= high
        conclusion = (
            "the effect differs by corpus" if differs else "no difference between corpora is detected"
        )
        names = " minus ".join(effect.name for effect in effects)
        return f"{names}: {_format_estimate(result.difference, claim.unit)}, so {conclusion}"
    assert result.mean is not None and result.new_corpus is not None, "three or more corpora"  # noqa: PT018
    digits = _count_digits(result.mean)
    spread_text = format_number(result.tau, digits, unit=claim.unit)
    new_corpus = format_interval(*_get_bounds(result.new_corpus), digits)
    level = format_percent(CONFIDENCE_LEVEL)
    return (
        f"over {len(effects)} corpora the effect is {_format_estimate(result.mean, claim.unit)}, with a "
        f"standard deviation of {spread_text} between corpora; {level}% prediction interval "
        f"for a new corpus: {new_corpus}"
    )


def _format_estimate(estimate: Estimate, unit: str) -> str:
    """Format an effect over corpora like the effect on one."""
    bounds = _get_bounds(estimate)
    return format_estimate(estimate.estimate, *bounds, CONFIDENCE_LEVEL, _count_digits(estimate), unit=unit)


def _count_digits(estimate: Estimate) -> int:
    low, high = _get_bounds(estimate)
    return count_decimals(high - low)


def _get_bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate.interval is not None, "the noise on each corpus is known"
    return estimate.interval
