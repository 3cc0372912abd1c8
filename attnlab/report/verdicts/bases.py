"""What a claim is decided on: Student's t, ranks, bets, exact counts, or blocks of times.

A basis is a class: `applies` says which claims it decides, `evidence` collects the measurements, `deciding`
says how many seeds an open claim needs, and its constants word and draw the result. One more class in `BASES`
is one more kind of evidence; the first that applies decides.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from attnlab import stats
from attnlab.report.schema import DeclaredClaim, Pair
from attnlab.report.verdicts.runs import Sweep, common


class Basis(ABC):
    """One kind of evidence, for claims about two arms of a sweep."""

    name: ClassVar[str]
    counted: ClassVar[str] = "paired seed"  # what the n of a decision counts, in the singular
    by_seed: ClassVar[bool] = True  # more seeds may change it
    has_looks: ClassVar[bool] = True  # its claims have interim analyses
    shows_training: ClassVar[bool] = True  # arms that learned nothing show nothing in it
    has_boundary: ClassVar[bool] = False  # its interval moves with the estimate
    of_median: ClassVar[bool] = False  # its estimate is that of the median pair

    @abstractmethod
    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        """Whether it decides a claim on these seeds."""

    @abstractmethod
    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        """What was measured for a claim; None where nothing was."""

    def deciding(
        self, claim: DeclaredClaim, evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.Deciding | None:
        """How many seeds would decide an open claim about differences; None where nobody can say."""
        return None


class Timing(Basis):
    """Ratios of times that were taken together, one block after the other."""

    name = "timing"
    counted = "timing block"
    by_seed = has_looks = shows_training = False

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        return claim.metric in sweep.times and not sweep.having(claim.metric, sweep.arms)

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        timing = sweep.timing
        times = [timing.of(arm, claim.metric) if timing else None for arm in (claim.arm, claim.against)]
        samples = [time.samples for time in times if time and time.samples]
        if claim.compare != "ratio" or len(samples) < 2:
            return None
        ours, theirs = map(_blocks, samples)
        return stats.ratio_draws(ours, theirs)


class Exact(Basis):
    """What is counted: the same in every run of an arm."""

    name = "exact"
    counted = "exact count"
    by_seed = has_looks = shows_training = False

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        return sweep.counted(claim.metric, (claim.arm, claim.against))

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        ours, theirs = (common(sweep.values(arm, claim.metric)) for arm in (claim.arm, claim.against))
        if ours is None or theirs is None or (claim.compare == "ratio" and not theirs):
            return None
        return stats.Exact(ours / theirs if claim.compare == "ratio" else ours - theirs)


class Identity(Basis):
    """What holds by construction: in every pair, or not at all."""

    name = "identity"
    has_looks = shows_training = False

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        return claim.identity

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        pairs = sweep.pairs(claim.arm, claim.against, claim.metric, seeds)
        if isinstance(design, stats.Early):
            return _student(claim, pairs, design)
        values = [_value(claim, pair) for pair in pairs]
        return stats.Exact(*values) if values else None


class EValue(Basis):
    """Proportions: bets on their differences; a run that diverged has the worst proportion there is."""

    name = "e-value"

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        return sweep.metric(claim.metric).kind == "share" and claim.compare == "difference"

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        pairs = sweep.pairs(claim.arm, claim.against, claim.metric, seeds)
        if not pairs or isinstance(design, stats.Early):
            return _student(claim, pairs, design)
        worst = 1.0 if claim.direction == "lower" else 0.0

        def proportion(arm: str, seed: int) -> float | None:
            diverged = sweep.at[arm, seed].status == "diverged"
            return worst if diverged else sweep.value(arm, seed, claim.metric)

        both = [(proportion(claim.arm, seed), proportion(claim.against, seed)) for seed in seeds]
        return stats.Shares(
            [ours - theirs for ours, theirs in both if ours is not None and theirs is not None]
        )

    def deciding(
        self, claim: DeclaredClaim, evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.Deciding | None:
        return (
            stats.deciding_shares(evidence.values, claim.region, tail)
            if isinstance(evidence, stats.Shares) and claim.region
            else None
        )


class Ranks(Basis):
    """Steps that are cut off at the budget, and metrics of which a pair has diverged."""

    name = "ranks"
    of_median = True

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        arms = (claim.arm, claim.against)
        diverged = any(sweep.at[arm, seed].status == "diverged" for arm in arms for seed in seeds)
        return claim.metric in sweep.budgets or diverged

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        if isinstance(design, stats.Early):
            return _student(claim, sweep.pairs(claim.arm, claim.against, claim.metric, seeds), design)
        outcomes = sweep.outcomes(claim.arm, claim.against, claim.metric, seeds, claim.direction)
        if claim.compare == "ratio":
            pairs = sweep.pairs(claim.arm, claim.against, claim.metric)
            known = {pair.seed: _value(claim, pair) for pair in pairs}
            lost = [outcome for outcome in outcomes if not math.isfinite(outcome)]
            worst = [outcome if math.isnan(outcome) else max(0.0, outcome) for outcome in lost]
            outcomes = [*(known[seed] for seed in seeds if seed in known), *worst]
        return stats.Ranks(outcomes) if outcomes else None


class StudentT(Basis):
    """Paired differences, or logarithms of paired ratios: t on their mean, at the boundary of the design."""

    name = "t"
    has_boundary = True

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        return True

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        return _student(claim, sweep.pairs(claim.arm, claim.against, claim.metric, seeds), design)

    def deciding(
        self, claim: DeclaredClaim, evidence: Any, differences: Sequence[float], tail: float
    ) -> stats.Deciding | None:
        return stats.deciding(differences, claim.region, tail) if claim.region else None


class Ratios:
    """Paired ratios, one per seed: t on the mean of their logarithms, read back as a ratio."""

    def __init__(self, ratios: Sequence[float], design: stats.Design):
        self.logs = stats.Differences([math.log(ratio) for ratio in ratios], design)
        self.n = self.logs.n
        self.estimate = None if self.logs.estimate is None else math.exp(self.logs.estimate)

    def interval(self, level: float) -> tuple[float, float] | None:
        ends = self.logs.interval(level)
        return ends and (math.exp(ends[0]), math.exp(min(ends[1], 700.0)))

    def p_above(self, threshold: float) -> float | None:
        return self.logs.p_above(math.log(threshold)) if threshold > 0 else 0.0

    def p_below(self, threshold: float) -> float | None:
        return self.logs.p_below(math.log(threshold)) if threshold > 0 else 1.0


BASES: dict[str, Basis] = {
    basis.name: basis for basis in (Timing(), Exact(), Identity(), EValue(), Ranks(), StudentT())
}


def find_basis(sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int] | None = None) -> Basis:
    """What decides a claim, on these seeds or on all."""
    seeds = sweep.seeds if seeds is None else seeds
    return next(basis for basis in BASES.values() if basis.applies(sweep, claim, seeds))


def _value(claim: DeclaredClaim, pair: Pair) -> float:
    return pair.value / pair.against if claim.compare == "ratio" else pair.value - pair.against


def _student(claim: DeclaredClaim, pairs: Sequence[Pair], design: stats.Design) -> stats.Evidence | None:
    """t on the pairs of a claim; before its first interim analysis, whatever its basis, with no interval."""
    values = [_value(claim, pair) for pair in pairs]
    if not values:
        return None
    return Ratios(values, design) if claim.compare == "ratio" else stats.Differences(values, design)


def _blocks(samples: Sequence[float]) -> list[list[float]]:
    """Rounds of A B B A hold two samples of each arm, taken in the same moment."""
    return [list(samples[i : i + 2]) for i in range(0, len(samples) - 1, 2)]
