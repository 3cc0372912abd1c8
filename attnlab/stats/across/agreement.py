"""How often a small rung decides as a large one does: decision accuracy (Magnusson 2025, 2504.11393), over
claims.

Surprising: only claims that both rungs decided are compared. A small rung that was inconclusive decided
nothing, and is neither right nor wrong; where the large one was, there is nothing to be right about. Both are
counted apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from attnlab.stats.threshold import Solved, solved

DECIDED = ("SUPPORTED", "REFUTED")


@dataclass(frozen=True)
class Agreement:
    """`share`: how many of the claims that both decided they decided alike, with Clopper and Pearson's
    interval; None where there is none. The four counts add up to the claims.
    """

    alike: int
    opposite: int
    small_open: int  # the small rung decided nothing, whatever the large one did
    large_open: int  # the small rung decided, and the large one did not
    share: Solved | None


def agreement(verdicts: Iterable[tuple[str, str]], level: float = 0.95) -> Agreement:
    """Of (smaller rung's verdict, larger rung's verdict) per claim; all but SUPPORTED and REFUTED is open."""
    pairs = list(verdicts)
    both = [small == large for small, large in pairs if small in DECIDED and large in DECIDED]
    small_open = sum(small not in DECIDED for small, _ in pairs)
    share = solved(sum(both), len(both), level) if both else None
    return Agreement(sum(both), len(both) - sum(both), small_open, len(pairs) - small_open - len(both), share)
