"""Test of a trend: the largest size predicted from the others, hit or miss."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.stats.evidence import IntervalResult
from attnlab.stats.replications.ladder_sample import (
    LadderSample,
    SizeSample,
    WeightedSum,
    build_ladder_sample,
)


@dataclass(frozen=True)
class HoldoutPrediction(IntervalResult):
    """Prediction interval for the observed mean of the largest size, with the noise of both.

    `hit` is None where no noise is known.
    """

    observed: float
    predicted: float
    low: float | None
    high: float | None
    hit: bool | None


def compute_holdout_error(ladder_sample: LadderSample) -> WeightedSum:
    """The largest size minus the prediction there by the line through the others."""
    return ladder_sample.compute_weighted_sum(
        ladder_sample.select_size_weights(-1)
        - ladder_sample.compute_line_weights(ladder_sample.x[-1], slice(len(ladder_sample.x) - 1))
    )


def predict_largest_size(sizes: Sequence[SizeSample]) -> HoldoutPrediction:
    """Predict the largest size from the line through the others.

    Raises:
        ValueError: fewer than three sizes, or sizes that `build_ladder_sample` rejects.
    """
    sample = build_ladder_sample(sizes)
    if len(sample.x) < 3:
        raise ValueError("predicting the largest ladder size takes at least two others")
    error = compute_holdout_error(sample).to_estimate()
    observed = float(sample.means[-1])
    predicted = observed - error.estimate
    if error.low is None or error.high is None:
        return HoldoutPrediction(observed, predicted, None, None, None)
    half_width = (error.high - error.low) / 2
    low, high = predicted - half_width, predicted + half_width
    return HoldoutPrediction(observed, predicted, low, high, low <= observed <= high)
