"""The effect against compute: the line through all seeds of all rungs, its band, and what lies ahead of it.

Surprising: the interval at a rung that was trained is narrower by the line than by the rung's own seeds,
because the line is taken to be straight. Whether it is, `holdout` asks of the largest rung; ahead of it
nothing can.
"""

from collections.abc import Sequence

from attnlab.stats.across.rungs import Estimate, Rung, ladder

AHEAD = 1.0  # log10: ten times the compute of the largest rung


class Trend:
    """Effect in nats on x = log10 of the training FLOPs, by weighted least squares; see `rungs` for the
    weights and the noise. ValueError for fewer than two rungs, or what `ladder` refuses.
    """

    def __init__(self, rungs: Sequence[Rung], level: float = 0.95):
        self.ladder = ladder(rungs)
        self.level = level
        if len(self.ladder.x) < 2:
            raise ValueError("a trend needs at least two rungs")
        self.bottom = float(self.ladder.x[0])
        self.top = float(self.ladder.x[-1])

    def slope(self) -> Estimate:
        """Nats per tenfold of compute."""
        return self.ladder.sums(self.ladder.slope()).single(self.level)

    def change(self) -> Estimate:
        """Nats from the smallest rung to the largest along the line: slope x width."""
        return self.ladder.sums(self.ladder.slope()).times(self.top - self.bottom).single(self.level)

    def at(self, x: float) -> Estimate:
        """The effect at any x by the line: the band, point by point."""
        return self.ladder.sums(self.ladder.at(x)).single(self.level)

    def ahead(self) -> Estimate:
        """The effect at ten times the largest rung, if the line goes on."""
        return self.at(self.top + AHEAD)

    def rung(self, which: int) -> Estimate:
        """The effect at one rung by its own seeds, ascending from 0; that of one seed, or of seeds that agree
        exactly, has its noise from the other rungs.
        """
        return self.ladder.sums(self.ladder.only(which)).single(self.level)
