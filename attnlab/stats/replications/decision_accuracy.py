"""Decision accuracy over claims: how often a small size decides as a large one (Magnusson 2025, 2504.11393).

Only claims that both sizes decided are compared. A small size that was inconclusive decided nothing, and is
neither right nor wrong; where the large one was, there is no decision to compare with. Both are counted
separately.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from attnlab.stats.censored_steps import BinomialProportion, estimate_proportion

DECISIVE_VERDICTS = ("SUPPORTED", "REFUTED")


@dataclass(frozen=True)
class DecisionAccuracy:
    """Counts of claims, which add up to all of them, and the proportion decided alike.

    `proportion` is over the claims that both sizes decided, with its Clopper-Pearson interval; None where
    there are none.
    """

    same: int
    opposite: int
    small_inconclusive: int  # the small size was inconclusive, whatever the large one decided
    large_inconclusive: int  # the small size decided, and the large one did not
    proportion: BinomialProportion | None


def compute_decision_accuracy(verdicts: Iterable[tuple[str, str]]) -> DecisionAccuracy:
    """Compare (smaller size's verdict, larger size's verdict) per claim.

    Every verdict but SUPPORTED and REFUTED counts as inconclusive.
    """
    pairs = list(verdicts)
    agreements = [
        small == large for small, large in pairs if small in DECISIVE_VERDICTS and large in DECISIVE_VERDICTS
    ]
    small_inconclusive = sum(small not in DECISIVE_VERDICTS for small, _ in pairs)
    proportion = estimate_proportion(sum(agreements), len(agreements)) if agreements else None
    return DecisionAccuracy(
        sum(agreements),
        len(agreements) - sum(agreements),
        small_inconclusive,
        len(pairs) - small_inconclusive - len(agreements),
        proportion,
    )
