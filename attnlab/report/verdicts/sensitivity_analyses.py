"""What the pairs of a difference show beside its verdict: sensitivity analyses and tests of the margin."""

import math
from collections.abc import Sequence

from attnlab import stats
from attnlab.report.schema import Interval, SeedPair, Sensitivity


def compute_sensitivity(pairs: Sequence[SeedPair]) -> Sensitivity:
    """Compute sign flips, leave-one-out range, pairing gain and outliers of paired values."""
    differences = [pair.value - pair.against for pair in pairs]
    if not differences:
        return Sensitivity(sign_flip=None, leave_one_out=None, pairing=None, outliers=[])
    leave_one_out = stats.compute_leave_one_out_range(differences)
    is_outlier = stats.flag_outliers(differences)
    pairing = stats.measure_pairing_gain([pair.value for pair in pairs], [pair.against for pair in pairs])
    return Sensitivity(
        sign_flip=stats.run_sign_flip_test(differences),
        leave_one_out=Interval(low=leave_one_out[0], high=leave_one_out[1]) if leave_one_out else None,
        pairing=pairing,
        outliers=[pair.seed for pair, is_outlying in zip(pairs, is_outlier, strict=True) if is_outlying],
    )


def compute_margin_p_values(
    evidence: stats.Evidence | None, margin: float | None, direction: str
) -> tuple[float | None, float | None]:
    """Return p of equivalence and of non-inferiority; None without a margin."""
    if not margin or evidence is None:
        return None, None
    noninferior = (-math.inf, margin) if direction == "lower" else (-margin, math.inf)
    return (
        stats.compute_region_p_value(evidence, (-margin, margin)),
        stats.compute_region_p_value(evidence, noninferior),
    )
