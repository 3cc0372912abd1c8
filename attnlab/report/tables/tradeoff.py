"""What each arm costs against what it achieves: one small panel per cost.

The bar on the loss is the interval of the paired difference, set at the arm's own mean; the baseline has
none. Costs that are counted (bytes, parameters) have no interval; times have a bootstrap or order-statistic
one.
"""

from attnlab import stats
from attnlab.report.schema import Effect, TradeoffPanel, TradeoffPoint, Word
from attnlab.report.verdicts import leakage
from attnlab.report.verdicts.runs import Sweep, common

Ranges = dict[str, tuple[float, float | None, float | None]]  # arm -> value, low, high
# What a page sets the primary metric against, where at least two arms have it and one is not without.
COSTS = (
    "kv_bytes_per_token",
    "carried_bytes",
    "cache/share",
    "parameters",
    "decode_ms_per_token",
    "train_tokens_per_s",
)


def _cost(sweep: Sweep, key: str) -> tuple[Ranges, str]:
    """What each arm costs, and how that is known: timed alone, counted, or only seen by the busy runs."""
    times = {arm: sweep.timing.of(arm, key) if sweep.timing else None for arm in sweep.arms}
    if timed := {arm: (time.median, time.low, time.high) for arm, time in times.items() if time}:
        return timed, "measured alone, median of interleaved repeats"
    if sweep.counted(key, sweep.arms):
        values = {arm: common(sweep.values(arm, key)) for arm in sweep.arms}
        return {
            arm: (value, None, None) for arm, value in values.items() if value is not None
        }, "counted, exact"
    seen = {arm: sweep.values(arm, key) for arm in sweep.arms}
    ranges: Ranges = {
        arm: (float(stats.median_interval(v).estimate), min(v), max(v)) for arm, v in seen.items() if v
    }
    return ranges, "indicative only: other runs were busy beside it; bar = range over seeds"


def tradeoff(sweep: Sweep, effects: list[Effect]) -> list[TradeoffPanel]:
    """The panels that have at least two arms to show."""
    metric = sweep.experiment.metric
    by_arm = {row.arm: row for row in effects if row.metric == metric and row.mean is not None}
    apart = {row.arm for row in effects if row.metric == metric and row.word == Word.NOT_COMPARABLE}
    apart |= {arm for arm in sweep.arms if leakage.leaking(sweep, arm)}  # by design or not: it is not ranked
    panels = []
    for key in COSTS:
        (ranges, note), cost, points = _cost(sweep, key), sweep.metric(key), list[TradeoffPoint]()
        for arm in sweep.arms:
            values = sweep.values(arm, metric)
            if arm not in ranges or not values:
                continue
            x, x_low, x_high = ranges[arm]
            y = sum(values) / len(values)
            effect = by_arm.get(arm)
            ends: tuple[float | None, float | None] = (None, None)
            if effect and effect.mean is not None and effect.low is not None and effect.high is not None:
                ends = (y + effect.low - effect.mean, y + effect.high - effect.mean)
            points.append(
                TradeoffPoint(
                    arm=arm,
                    x=x,
                    x_low=x_low,
                    x_high=x_high,
                    y=y,
                    y_low=ends[0],
                    y_high=ends[1],
                )
            )
        if len(points) > 1 and any(point.x for point in points):
            lower = cost.direction != "higher"
            fair = [point for point in points if point.arm not in apart]
            front = _front(fair, lower, sweep.experiment.direction == "lower")
            panels.append(
                TradeoffPanel(
                    key=key,
                    label=cost.words,
                    unit=cost.unit,
                    digits=next((row.digits for row in by_arm.values()), 4),
                    lower_is_better=lower,
                    note=note,
                    points=points,
                    front=front,
                )
            )
    return panels


def _front(points: list[TradeoffPoint], lower_x: bool, lower_y: bool) -> list[str]:
    """Arms that no other arm matches or beats on both sides, from the cheapest on."""

    def rank(point: TradeoffPoint) -> tuple[float, float]:
        return (point.x if lower_x else -point.x), (point.y if lower_y else -point.y)

    best: list[str] = []
    reached = float("inf")
    for point in sorted(points, key=rank):
        if rank(point)[1] < reached:
            best.append(point.arm)
            reached = rank(point)[1]
    return best
