"""The worst case of a report: the largest harm that any of its arms, conditions or corpora shows."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from attnlab.report.schema import CorpusClaim, Effect, EffectVerdict, Report, Verdict


@dataclass(frozen=True)
class Case:
    """An effect of an arm in the experiment's metric, on a corpus or under a condition where it has several.

    Attributes:
        label: of the condition; empty for the metric itself.
        corpus: empty for an experiment on one.
        effect: the arm minus `against`.
    """

    arm: str
    against: str
    label: str
    corpus: str
    effect: Effect | CorpusClaim

    @property
    def mean(self) -> float:
        """The estimate."""
        mean = self.effect.mean if isinstance(self.effect, Effect) else self.effect.effect
        assert mean is not None, "a case has an estimate"
        return mean


def list_cases(report: Report) -> list[Case]:
    """List the effects that may be judged: in the metric, its conditions, and of its claims on every corpus.

    A condition, as `cache/rise/distance/48` is one of `cache/rise`, has the unit of the metric.
    """
    return [*_list_effects(report), *_list_corpus_effects(report)]


def find_worst_case(report: Report, cases: Collection[Case]) -> Case | None:
    """Find the effect that is worst in the direction of the metric; None without any.

    One whose interval lies on the worse side of 0 comes before those that may be noise.
    """
    sign = -1 if report.experiment.direction == "higher" else 1

    def rank(case: Case) -> tuple[bool, float]:
        least = case.effect.low if sign == 1 else case.effect.high
        return least is not None and sign * least > 0, sign * case.mean

    return max(cases, key=rank, default=None)


def _list_effects(report: Report) -> Iterator[Case]:
    metric = report.experiment.metric
    unit = next((row.unit for row in report.effects if row.primary), "")
    corpus = report.replication.name if report.replication and report.corpora else ""
    for row in report.effects:
        is_condition = row.metric.startswith(f"{metric}/") and row.unit == unit
        is_ranked = row.verdict.is_judgment or row.verdict == EffectVerdict.EXPLORATORY
        if (row.primary or is_condition) and is_ranked and row.mean is not None:
            yield Case(row.arm, row.against, "" if row.primary else row.label, corpus, row)


def _list_corpus_effects(report: Report) -> Iterator[Case]:
    claims = {
        claim.says: claim
        for claim in report.verdict.claims
        if (claim.metric, claim.compare) == (report.experiment.metric, "difference")
    }
    own = report.replication.name if report.replication else ""
    for table in report.corpora.claims if report.corpora else ():
        for row in table.rows:
            is_decided = row.verdict in (Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE)
            if (
                (claim := claims.get(table.says))
                and row.corpus != own
                and is_decided
                and row.effect is not None
            ):
                yield Case(claim.arm, claim.against, "", row.corpus, row)
