"""What a few paired seeds can show: intervals, equivalence, Holm over a family of claims, power. Never torch.

The unit is the seed: d_s = metric(arm, s) - metric(baseline, s); batches and items are not replicates.
Surprising: what cannot be known (the interval of one pair, the p of no pairs) is None, never 0, NaN or
infinity; a NaN that comes in is an error, because a failed run is counted, not averaged.
"""

from attnlab.stats.betting import Ranks, Shares, doubt, seeds_without_exception
from attnlab.stats.blocks import Ratio, median_interval, ratio_draws, ratio_of_medians
from attnlab.stats.designs import FIXED, Anytime, Design, Early, Fixed, Look, designs
from attnlab.stats.difference import Paired, Tested, Trained, noninferior, paired, quotient, tost, trained
from attnlab.stats.evidence import Differences, Draws, Evidence, Exact, support
from attnlab.stats.family import Decision, Question, decide, holds, holm, holm_levels
from attnlab.stats.power import (
    Deciding,
    Planning,
    deciding,
    deciding_shares,
    detectable,
    planning,
    power,
    seeds_for_equivalence,
    seeds_needed,
    tost_power,
)
from attnlab.stats.sensitivity import (
    Flipped,
    Flips,
    Pairing,
    flipped,
    leave_one_out,
    outliers,
    pairing,
    sign_flip,
)
from attnlab.stats.threshold import Race, Solved, race, solved

__all__ = [
    "FIXED",
    "Anytime",
    "Deciding",
    "Decision",
    "Design",
    "Differences",
    "Draws",
    "Early",
    "Evidence",
    "Exact",
    "Fixed",
    "Flipped",
    "Flips",
    "Look",
    "Paired",
    "Pairing",
    "Planning",
    "Question",
    "Race",
    "Ranks",
    "Ratio",
    "Shares",
    "Solved",
    "Tested",
    "Trained",
    "decide",
    "deciding",
    "deciding_shares",
    "designs",
    "detectable",
    "doubt",
    "flipped",
    "holds",
    "holm",
    "holm_levels",
    "leave_one_out",
    "median_interval",
    "noninferior",
    "outliers",
    "paired",
    "pairing",
    "planning",
    "power",
    "quotient",
    "race",
    "ratio_draws",
    "ratio_of_medians",
    "seeds_for_equivalence",
    "seeds_needed",
    "seeds_without_exception",
    "sign_flip",
    "solved",
    "support",
    "tost",
    "tost_power",
    "trained",
]
