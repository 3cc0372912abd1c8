"""False-positive rate of each decision rule where the truth is known.

Runs of one configuration are dealt at random into two arms, again and again. The runs are few, so the rate
over many deals is uncertain although the deals are not. Its lower bound comes from deals out of bootstrap
samples of the runs; a rule fails where that bound is above alpha.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attnlab.stats.claim_family import ClaimTest, decide_claims
from attnlab.stats.evidence import PairedDifferences, Values, validate_finite
from attnlab.stats.paired_tests import estimate_paired_difference
from attnlab.stats.stopping_rules import GroupSequential

MIN_RUNS = 8
POOLS = 40
DEALS_PER_POOL = 150  # bootstrap samples of the runs, and deals out of each


@dataclass(frozen=True)
class FalsePositiveRate:
    """`rate` over `rounds` fake comparisons; `low` is its one-sided 95% bound given so few runs."""

    rate: float
    low: float
    rounds: int


FakeDifferences = np.ndarray  # differences of fake pairs [pairs], whose truth is 0
DecisionRule = Callable[
    [FakeDifferences, float, float], bool
]  # (differences, margin, alpha) -> whether it accepts a false claim


def _accepts_difference(fake: FakeDifferences, margin: float, alpha: float) -> bool:
    return _is_accepted(estimate_paired_difference(fake).p, alpha)


def _accepts_above(fake: FakeDifferences, margin: float, alpha: float) -> bool:
    return _is_accepted(
        decide_claims([ClaimTest(PairedDifferences(fake), (0.0, math.inf))], alpha)[0].p_holm, alpha
    )


def _accepts_within(fake: FakeDifferences, margin: float, alpha: float) -> bool:
    """Whether a true difference of exactly the margin is accepted as equivalent."""
    claim = ClaimTest(PairedDifferences(fake + margin), (-margin, margin))
    return _is_accepted(decide_claims([claim], alpha)[0].p_holm, alpha)


def _accepts_any_claim(fake: FakeDifferences, margin: float, alpha: float) -> bool:
    """Whether any of two claims, each on its own pairs, is accepted under Holm."""
    claims = [ClaimTest(PairedDifferences(part), (0.0, math.inf)) for part in np.array_split(fake, 2)]
    return any(_is_accepted(decision.p_holm, alpha) for decision in decide_claims(claims, alpha))


def _accepts_at_any_analysis(fake: FakeDifferences, margin: float, alpha: float) -> bool:
    """Whether "above 0" is accepted after half of the pairs or after all."""
    analyses = len(fake) // 2, len(fake)
    p = (
        PairedDifferences(fake[:n], GroupSequential(analyses, i)).p_above(0.0) for i, n in enumerate(analyses)
    )
    return any(_is_accepted(one_sided, alpha / 2) for one_sided in p)


DECISION_RULES: Mapping[str, DecisionRule] = {
    "a difference": _accepts_difference,
    "above a threshold": _accepts_above,
    "within a margin": _accepts_within,
    "two claims under Holm": _accepts_any_claim,
    "above a threshold, interim analyses": _accepts_at_any_analysis,
}


def measure_false_positives(
    values: Values, margin: float, rules: Mapping[str, DecisionRule] = DECISION_RULES, alpha: float = 0.05,
    rounds: int = 1000, seed: int = 0,
) -> dict[str, FalsePositiveRate]:  # fmt: skip
    """Rule -> how often it accepts a false claim, over `rounds` random deals of all runs into pairs.

    Args:
        values: one metric of at least 8 runs that differ by their seeds alone.

    Raises:
        ValueError: fewer runs, or a value that is not finite.
    """
    pool = validate_finite(values, "values", min_count=MIN_RUNS)
    rng = np.random.default_rng(seed)
    deals = _deal_pairs(pool, rounds, rng)
    pools = (rng.choice(pool, len(pool)) for _ in range(POOLS))
    redealt = [pairs for sample in pools if (pairs := _deal_pairs(sample, DEALS_PER_POOL, rng))]
    outcomes = {}
    for name, rule in rules.items():
        rate, *resampled_rates = (
            np.mean([rule(fake, margin, alpha) for fake in pairs]) for pairs in (deals, *redealt)
        )
        low = min(float(np.quantile(resampled_rates, 0.05)), float(rate))
        outcomes[name] = FalsePositiveRate(float(rate), low, rounds)
    return outcomes


def _deal_pairs(pool: np.ndarray, rounds: int, rng: np.random.Generator) -> list[FakeDifferences]:
    """Differences of random pairs; deals whose differences are all equal decide nothing and are dropped."""
    half = len(pool) // 2
    shuffled = (rng.permutation(pool) for _ in range(rounds))
    fakes = (deal[:half] - deal[half : 2 * half] for deal in shuffled)
    return [fake for fake in fakes if np.ptp(fake) > 0]


def _is_accepted(p: float | None, alpha: float) -> bool:
    return p is not None and p <= alpha
