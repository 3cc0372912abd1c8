"""The worst case of a report: the largest harm that any of its arms, conditions or corpora shows."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from attnlab.report.schema import CorpusClaim, Effect, EffectVerdict, Report

_Row = tuple[str, str, str, Effect | CorpusClaim]  # arm, label, corpus, effect


@dataclass(frozen=True)
class WorstCase:
    """A harmful effect of an arm against the baseline.

    - `label`: of the experiment's metric, or of one of its conditions
    - `corpus`: where the experiment has several; else empty
    - `effect`: the arm minus the baseline, with its 95% interval, as `wording.format_effect` formats it
    - `harm`: the effect, its least and its largest plausible value, with positive numbers for worse
    - `margin`: of the experiment; None without one
    """

    arm: str
    label: str
    corpus: str
    effect: Effect | CorpusClaim
    harm: tuple[float, float, float | None]
    margin: float | None

    @property
    def is_beyond_margin(self) -> bool:
        """Whether the whole interval is worse than the margin."""
        return self.margin is not None and self.harm[1] > self.margin


def find_worst_case(report: Report, arms: Collection[str] = ()) -> WorstCase | None:
    """Find the largest effect whose 95% interval lies on the worse side of 0; None if there is none.

    The effects are those in the experiment's metric; in its conditions (`cache/rise/distance/48` is one of
    `cache/rise`), which have its unit and direction; and of its claims on every corpus.

    Args:
        arms: only these; all if empty.
    """
    rows: list[_Row] = [*_list_effects(report), *_list_corpus_effects(report)]
    cases = [
        WorstCase(arm, label, corpus, effect, harm, report.experiment.margin)
        for arm, label, corpus, effect in rows
        if (not arms or arm in arms) and (harm := _orient_to_harm(effect, report.experiment.direction))
    ]
    return max(cases, key=lambda case: case.harm[0], default=None)


def _orient_to_harm(effect: Effect | CorpusClaim, direction: str) -> tuple[float, float, float | None] | None:
    """Return an effect and its bounds with positive numbers for worse; None unless all of them are worse."""
    mean = effect.mean if isinstance(effect, Effect) else effect.effect
    least, largest = (effect.low, effect.high) if direction == "lower" else (effect.high, effect.low)
    sign = 1 if direction == "lower" else -1
    if mean is None or least is None or sign * least <= 0:
        return None
    return sign * mean, sign * least, None if largest is None else sign * largest


def _list_effects(report: Report) -> Iterator[_Row]:
    metric = report.experiment.metric
    unit = next((row.unit for row in report.effects if row.primary), "")
    corpus = report.replication.name if report.replication and report.corpora else ""
    for row in report.effects:
        is_condition = row.metric.startswith(f"{metric}/") and row.unit == unit
        is_ranked = row.verdict.is_judgment or row.verdict == EffectVerdict.EXPLORATORY
        if (row.primary or is_condition) and is_ranked:
            yield row.arm, row.label, corpus, row


def _list_corpus_effects(report: Report) -> Iterator[_Row]:
    claims = {
        claim.says: claim
        for claim in report.verdict.claims
        if (claim.against, claim.metric, claim.compare)
        == (report.experiment.baseline, report.experiment.metric, "difference")
    }
    for table in report.corpora.claims if report.corpora else ():
        if claim := claims.get(table.says):
            yield from ((claim.arm, claim.label, row.corpus, row) for row in table.rows)
