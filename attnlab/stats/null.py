"""How often each rule of decision is wrong where the truth is known: runs of one configuration, dealt at
random into two arms, again and again.

Surprising: the runs are few, so the rate over many deals is uncertain although the deals are not. Its lower
bound comes from dealing out of bootstrap samples of the runs; a rule fails where that bound is above alpha.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attnlab.stats.designs import Look
from attnlab.stats.difference import paired
from attnlab.stats.evidence import Differences, Values, finite
from attnlab.stats.family import Question, decide

LEAST = 8  # runs
POOLS = 40
PER_POOL = 150  # bootstrap samples of the runs, and deals out of each


@dataclass(frozen=True)
class FalsePositives:
    """`rate` over `rounds` fake comparisons; `low`, its one-sided 95 % bound given so few runs."""

    rate: float
    low: float
    rounds: int
    passed: bool


Fake = np.ndarray  # differences of fake pairs [pairs], whose truth is 0
Rule = Callable[[Fake, float, float], bool]  # (differences, margin, alpha) -> accepts what is false


def _difference(fake: Fake, margin: float, alpha: float) -> bool:
    return _accepts(paired(fake).p, alpha)


def _above(fake: Fake, margin: float, alpha: float) -> bool:
    return _accepts(decide([Question(Differences(fake), (0.0, math.inf))], alpha)[0].p_holm, alpha)


def _within(fake: Fake, margin: float, alpha: float) -> bool:
    """A true difference of just the margin."""
    question = Question(Differences(fake + margin), (-margin, margin))
    return _accepts(decide([question], alpha)[0].p_holm, alpha)


def _family(fake: Fake, margin: float, alpha: float) -> bool:
    """Two claims, each on pairs of its own; one that is accepted is one too many."""
    questions = [Question(Differences(part), (0.0, math.inf)) for part in np.array_split(fake, 2)]
    return any(_accepts(decision.p_holm, alpha) for decision in decide(questions, alpha))


def _looked(fake: Fake, margin: float, alpha: float) -> bool:
    """Above a threshold, tried after half of the pairs and after all."""
    looks = len(fake) // 2, len(fake)
    p = (Differences(fake[:n], Look(looks, i)).p_above(0.0) for i, n in enumerate(looks))
    return any(_accepts(one_sided, alpha / 2) for one_sided in p)


RULES: Mapping[str, Rule] = {
    "a difference": _difference,
    "above a threshold": _above,
    "within a margin": _within,
    "two claims under Holm": _family,
    "above a threshold, in looks": _looked,
}


def false_positives(
    values: Values, margin: float, rules: Mapping[str, Rule] = RULES, alpha: float = 0.05,
    rounds: int = 1000, seed: int = 0,
) -> dict[str, FalsePositives]:  # fmt: skip
    """Rule -> how often it accepts what is false, over `rounds` deals of all runs into pairs.

    `values`: one metric of at least 8 runs that differ by their seeds alone; ValueError for fewer.
    """
    pool = finite(values, "values", least=LEAST)
    draw = np.random.default_rng(seed)
    deals = _deals(pool, rounds, draw)
    pools = (draw.choice(pool, len(pool)) for _ in range(POOLS))
    redealt = [some for sample in pools if (some := _deals(sample, PER_POOL, draw))]
    outcomes = {}
    for name, rule in rules.items():
        rate, *others = (np.mean([rule(fake, margin, alpha) for fake in some]) for some in (deals, *redealt))
        low = min(float(np.quantile(others, 0.05)), float(rate))
        outcomes[name] = FalsePositives(float(rate), low, rounds, low <= alpha)
    return outcomes


def _deals(pool: np.ndarray, rounds: int, draw: np.random.Generator) -> list[Fake]:
    """Differences of random pairs; where a deal's are all equal there is nothing to decide on."""
    half = len(pool) // 2
    shuffled = (draw.permutation(pool) for _ in range(rounds))
    fakes = (deal[:half] - deal[half : 2 * half] for deal in shuffled)
    return [fake for fake in fakes if np.ptp(fake) > 0]


def _accepts(p: float | None, alpha: float) -> bool:
    return p is not None and p <= alpha
