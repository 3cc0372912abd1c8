"""Bases of a decision: Student's t, ranks, e-values, exact counts, or timing blocks.

Each basis is a class: `can_decide` selects the claims it decides, `collect_evidence` collects the
measurements, and `estimate_required_seeds` estimates the seeds an inconclusive claim needs. Its constants
control the wording and the charts. Adding a class to `BASES` adds a kind of evidence; the first that applies
decides.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import sub, truediv
from typing import Any, ClassVar

from attnlab import stats
from attnlab.report.schema import Compare, PreregisteredClaim, SeedPair
from attnlab.report.verdicts.results import SweepResults, get_common_value


class Basis(ABC):
    """One kind of evidence for claims about two arms of a sweep, or a contrast of more."""

    name: ClassVar[str]
    unit_name: ClassVar[str] = "paired seed"  # the unit of a decision's n, singular
    is_paired_by_seed: ClassVar[bool] = True  # more seeds may change the decision
    has_interim_analyses: ClassVar[bool] = True
    requires_training: ClassVar[bool] = True  # untrained arms are UNTRAINED
    has_boundary: ClassVar[bool] = False  # of t: the interval shifts with the estimate
    estimates_median: ClassVar[bool] = False

    @abstractmethod
    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        """Whether this basis decides a claim on these seeds."""

    @abstractmethod
    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        """Collect the measurements of a claim; None if there are none."""

    def estimate_required_seeds(
        self, region: tuple[float, float], evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.SeedsToDecide | None:
        """Estimate the seeds that would decide an inconclusive claim; None if unknown.

        Args:
            region: The effects for which the claim holds.
            evidence: That of its last interim analysis.
        """
        return None


class TimingBasis(Basis):
    """Ratios of times measured together in alternating blocks."""

    name = "timing"
    unit_name = "timing block"
    is_paired_by_seed = has_interim_analyses = requires_training = False

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return claim.metric in sweep.timed_metrics and not sweep.find_results_with(claim.metric, sweep.arms)

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        timing = sweep.timing
        times = [timing.get_time(arm, claim.metric) if timing else None for arm in claim.arms]
        blocks = [time.blocks for time in times if time and time.samples]
        if claim.compare != "ratio" or len(blocks) < 2:
            return None
        ours, theirs = blocks
        return stats.bootstrap_ratio(ours, theirs)


class ExactBasis(Basis):
    """Counts: the same in every run of an arm."""

    name = "exact"
    unit_name = "exact count"
    is_paired_by_seed = has_interim_analyses = requires_training = False

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return sweep.is_counted(claim.metric, claim.arms)

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        values = {arm: get_common_value(sweep.get_values(arm, claim.metric)) for arm in claim.arms}
        if None in values.values():
            return None
        if claim.compare == "ratio":
            against_value = values[claim.against]
            return stats.ExactEvidence(values[claim.arm] / against_value) if against_value else None
        return stats.ExactEvidence(sum(weight * values[arm] for arm, weight in claim.weights.items()))


class IdentityBasis(Basis):
    """Claims that hold by construction: in every pair, or not at all; one diverged arm breaks its pair."""

    name = "identity"
    has_interim_analyses = requires_training = False

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return claim.identity

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        pairs = sweep.build_pairs(claim.weights, claim.metric, seeds)
        if isinstance(design, stats.BeforeFirstAnalysis):
            return _build_t_evidence(claim, pairs, design)
        values = [_compute_effect(claim, pair) for pair in pairs]
        outcomes = sweep.compute_outcomes(claim.weights, claim.metric, seeds, claim.direction or "lower")
        values += [outcome for outcome in outcomes if math.isinf(outcome)]
        return stats.ExactEvidence(*values) if values else None


class EValueBasis(Basis):
    """Proportions: e-value (betting) test on their differences; a diverged run has the worst proportion."""

    name = "e-value"

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return sweep.get_metric(claim.metric).kind == "share" and claim.compare == "difference"

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        if isinstance(design, stats.BeforeFirstAnalysis):
            return _build_t_evidence(claim, sweep.build_pairs(claim.weights, claim.metric, seeds), design)
        return collect_proportions(sweep, claim.weights, claim.metric, seeds, claim.direction)

    def estimate_required_seeds(
        self, region: tuple[float, float], evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.SeedsToDecide | None:
        return stats.simulate_seeds_to_decide(evidence.values, region, tail)


class RankBasis(Basis):
    """Steps censored at the budget, and metrics in which a run diverged."""

    name = "ranks"
    estimates_median = True

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return claim.metric in sweep.censoring_budgets or sweep.has_diverged(claim.arms, seeds)

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        if isinstance(design, stats.BeforeFirstAnalysis):
            return _build_t_evidence(claim, sweep.build_pairs(claim.weights, claim.metric, seeds), design)
        if claim.metric in sweep.censoring_budgets:
            return collect_censored_steps(sweep, claim.weights, claim.metric, seeds, claim.compare)
        outcomes = sweep.compute_outcomes(claim.weights, claim.metric, seeds, claim.direction)
        if claim.compare == "ratio":
            pairs = sweep.build_pairs(claim.weights, claim.metric)
            ratios = {pair.seed: _compute_effect(claim, pair) for pair in pairs}
            infinite = [outcome for outcome in outcomes if not math.isfinite(outcome)]
            worst_ratios = [outcome if math.isnan(outcome) else max(0.0, outcome) for outcome in infinite]
            outcomes = [*(ratios[seed] for seed in seeds if seed in ratios), *worst_ratios]
        return stats.RankDifferences(outcomes) if outcomes else None

    def estimate_required_seeds(
        self, region: tuple[float, float], evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.SeedsToDecide | None:
        return stats.simulate_seeds_to_decide_median(evidence, region, tail)


class StudentTBasis(Basis):
    """Student's t on the mean paired difference, or log ratio, at the boundary of the stopping rule."""

    name = "t"
    has_boundary = True

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return True

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        return _build_t_evidence(claim, sweep.build_pairs(claim.weights, claim.metric, seeds), design)

    def estimate_required_seeds(
        self, region: tuple[float, float], evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.SeedsToDecide | None:
        if isinstance(evidence, RatioEvidence):
            low, high = (math.log(end) if end > 0 else -math.inf for end in region)
            region, differences, evidence = (low, high), evidence.logs, evidence.log_differences
        return stats.estimate_seeds_to_decide(differences, region, tail, stopping_rule=evidence.stopping_rule)


class GroupBasis(StudentTBasis):
    """Welch's t on the means of two groups of runs that were trained elsewhere, without common seeds."""

    name = "groups"
    unit_name = "run"
    is_paired_by_seed = has_boundary = False

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return False  # arms of a sweep have common seeds


class RandomPairBasis(RankBasis):
    """Ranks of such groups, in random pairs."""

    name = "random pairs"
    unit_name = "random pair"
    is_paired_by_seed = False

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return False  # as above


class RatioEvidence:
    """Paired ratios, one per seed: t on the mean of their logarithms, converted back to a ratio."""

    def __init__(self, ratios: Sequence[float], design: stats.StoppingRule):
        self.logs = [math.log(ratio) for ratio in ratios]
        self.log_differences = stats.PairedDifferences(self.logs, design)
        self.n = self.log_differences.n
        self.estimate = (
            None if self.log_differences.estimate is None else math.exp(self.log_differences.estimate)
        )

    def interval(self, level: float) -> tuple[float, float] | None:
        ends = self.log_differences.interval(level)
        return ends and (math.exp(ends[0]), math.exp(min(ends[1], 700.0)))

    def p_above(self, threshold: float) -> float | None:
        return self.log_differences.p_above(math.log(threshold)) if threshold > 0 else 0.0

    def p_below(self, threshold: float) -> float | None:
        return self.log_differences.p_below(math.log(threshold)) if threshold > 0 else 1.0


BASES: dict[str, Basis] = {
    basis.name: basis
    for basis in (
        GroupBasis(), RandomPairBasis(), TimingBasis(), ExactBasis(), IdentityBasis(), EValueBasis(),
        RankBasis(), StudentTBasis(),
    )
}  # fmt: skip


def find_basis(sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int] | None = None) -> Basis:
    """Find the basis that decides a claim, on these seeds or on all."""
    seeds = sweep.seeds if seeds is None else seeds
    return next(basis for basis in BASES.values() if basis.can_decide(sweep, claim, seeds))


def collect_proportions(
    sweep: SweepResults,
    weights: Mapping[str, float],
    metric: str,
    seeds: Sequence[int],
    direction: str | None,
) -> stats.ProportionDifferences:
    """Collect differences of proportions; a diverged run has the worst proportion."""
    worst = 1.0 if direction == "lower" else 0.0

    def get_proportion(arm: str, seed: int) -> float | None:
        diverged = sweep.run_by_arm_seed[arm, seed].status == "diverged"
        return worst if diverged else sweep.get_value(arm, seed, metric)

    sums = []
    for seed in seeds:
        terms = [(weight, get_proportion(arm, seed)) for arm, weight in weights.items()]
        known_terms = [weight * value for weight, value in terms if value is not None]
        sums += [sum(known_terms)] if len(known_terms) == len(terms) else []
    return stats.ProportionDifferences(sums)


def collect_censored_steps(
    sweep: SweepResults,
    weights: Mapping[str, float],
    metric: str,
    seeds: Sequence[int],
    compare: Compare = "difference",
) -> stats.RankDifferences:
    """Collect differences or ratios of steps to a threshold, by rank.

    A run that did not reach it took more steps than the budget, which bounds its pair on one side.
    """
    compute = truediv if compare == "ratio" else sub
    values, lower, upper = list[float](), list[float](), list[float]()
    for pair in sweep.build_pairs(weights, metric, seeds):
        censored = [arm for arm in weights if sweep.get_steps_to_threshold(arm, pair.seed, metric) is None]
        highest_value = math.inf if any(weights[arm] > 0 for arm in censored) else pair.value
        highest_against = math.inf if any(weights[arm] < 0 for arm in censored) else pair.against
        values.append(compute(pair.value, pair.against))
        lower.append(compute(pair.value, highest_against))
        upper.append(compute(highest_value, pair.against))
    return stats.RankDifferences(values, (lower, upper))


def _compute_effect(claim: PreregisteredClaim, pair: SeedPair) -> float:
    return pair.value / pair.against if claim.compare == "ratio" else pair.value - pair.against


def _build_t_evidence(
    claim: PreregisteredClaim, pairs: Sequence[SeedPair], design: stats.StoppingRule
) -> stats.Evidence | None:
    """Build t evidence from the pairs of a claim; before its first interim analysis, without an interval."""
    if not pairs:
        return None
    if claim.compare == "ratio":
        return RatioEvidence([_compute_effect(claim, pair) for pair in pairs], design)
    return collect_differences(pairs, design)


def collect_differences(pairs: Sequence[SeedPair], design: stats.StoppingRule) -> stats.Evidence:
    """Collect the differences of pairs: exact where both sides are equal in all of them, bit for bit.

    Such sides compute the same, which takes no seeds to show. Other ties show no noise.
    """
    differences = [pair.value - pair.against for pair in pairs]
    is_equal = differences and not any(differences) and not isinstance(design, stats.BeforeFirstAnalysis)
    return stats.ExactEvidence(*differences) if is_equal else stats.PairedDifferences(differences, design)
