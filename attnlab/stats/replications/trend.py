"""Effect against compute: the line through all seeds of all sizes, its band, and its extrapolation.

The line gives a narrower interval at a trained size than the size's own seeds, because it is assumed to be
straight. `holdout` tests that assumption at the largest size; beyond it nothing can.
"""

from collections.abc import Sequence

from attnlab.stats.replications.ladder_sample import Estimate, SizeSample, build_ladder_sample

EXTRAPOLATION_DECADES = 1.0  # log10: ten times the compute of the largest size


class Trend:
    """Effect in nats on x = log10 of the training FLOPs, by weighted least squares.

    See `ladder_sample` for the weights and the noise.

    Raises:
        ValueError: fewer than two sizes, or sizes that `build_ladder_sample` rejects.
    """

    def __init__(self, sizes: Sequence[SizeSample]):
        self.sample = build_ladder_sample(sizes)
        if len(self.sample.x) < 2:
            raise ValueError("a trend needs at least two ladder sizes")
        self.smallest_x = float(self.sample.x[0])
        self.largest_x = float(self.sample.x[-1])

    def estimate_slope(self) -> Estimate:
        """Nats per tenfold of compute."""
        return self.sample.compute_weighted_sum(self.sample.compute_slope_weights()).to_estimate()

    def estimate_change(self) -> Estimate:
        """Nats from the smallest size to the largest along the line: slope x width."""
        return (
            self.sample.compute_weighted_sum(self.sample.compute_slope_weights())
            .scale_by(self.largest_x - self.smallest_x)
            .to_estimate()
        )

    def estimate_at(self, x: float) -> Estimate:
        """The effect at any x by the line; over x these form the pointwise band."""
        return self.sample.compute_weighted_sum(self.sample.compute_line_weights(x)).to_estimate()
