"""Trade-offs: the cost of each arm against its result, one small panel per cost.

The bar on the loss is the interval of the paired difference, centered at the arm's own mean; the baseline has
none. Counted costs (bytes, parameters) have no interval. Times have a bootstrap or order-statistic interval.
"""

from attnlab import stats
from attnlab.report.schema import Effect, EffectVerdict, TradeoffPanel, TradeoffPoint
from attnlab.report.verdicts import leakage_check
from attnlab.report.verdicts.results import SweepResults, get_common_value

CostRanges = dict[str, tuple[float, float | None, float | None]]  # arm -> value, low, high
# Costs to plot the primary metric against, if at least two arms have one and not all are 0.
PANEL_COSTS = (
    "kv_bytes_per_token",
    "carried_bytes",
    "parameters",
    "decode_ms_per_token",
    "train_tokens_per_s",
)


def _collect_costs(sweep: SweepResults, key: str) -> tuple[CostRanges, str]:
    """Collect each arm's cost, and its source: timed alone, counted, or observed in concurrent runs."""
    times = {arm: sweep.timing.get_time(arm, key) if sweep.timing else None for arm in sweep.arms}
    if timed_ranges := {arm: (time.median, time.low, time.high) for arm, time in times.items() if time}:
        return timed_ranges, "timed alone on the machine, median of interleaved repeats"
    if sweep.is_counted(key, sweep.arms):
        values = {arm: get_common_value(sweep.get_values(arm, key)) for arm in sweep.arms}
        return {
            arm: (value, None, None) for arm, value in values.items() if value is not None
        }, "counted, exact"
    values_by_arm = {arm: sweep.get_values(arm, key) for arm in sweep.arms}
    ranges: CostRanges = {
        arm: (float(stats.estimate_median(arm_values).estimate), min(arm_values), max(arm_values))
        for arm, arm_values in values_by_arm.items()
        if arm_values
    }
    return ranges, "indicative only, measured in concurrent runs; bar: range over seeds"


def build_tradeoff_panels(sweep: SweepResults, effects: list[Effect]) -> list[TradeoffPanel]:
    """Build the panels with at least two arms."""
    metric = sweep.experiment.metric
    by_arm = {row.arm: row for row in effects if row.metric == metric and row.mean is not None}
    incomparable = {
        row.arm for row in effects if row.metric == metric and row.verdict == EffectVerdict.NOT_COMPARABLE
    }
    # an arm that sees future tokens, by design or not, is not ranked
    incomparable |= {arm for arm in sweep.arms if leakage_check.find_leaking_results(sweep, arm)}
    panels = []
    for key in PANEL_COSTS:
        (ranges, note), cost, points = (
            _collect_costs(sweep, key),
            sweep.get_metric(key),
            list[TradeoffPoint](),
        )
        for arm in sweep.arms:
            values = sweep.get_values(arm, metric)
            if arm not in ranges or not values:
                continue
            x, x_low, x_high = ranges[arm]
            y = sum(values) / len(values)
            effect = by_arm.get(arm)
            bounds: tuple[float | None, float | None] = (None, None)
            if effect and effect.mean is not None and effect.low is not None and effect.high is not None:
                bounds = (y + effect.low - effect.mean, y + effect.high - effect.mean)
            points.append(
                TradeoffPoint(
                    arm=arm,
                    x=x,
                    x_low=x_low,
                    x_high=x_high,
                    y=y,
                    y_low=bounds[0],
                    y_high=bounds[1],
                )
            )
        if len(points) > 1 and any(point.x for point in points):
            lower = cost.direction != "higher"
            comparable = [point for point in points if point.arm not in incomparable]
            front = _find_pareto_front(comparable, lower, sweep.experiment.direction == "lower")
            panels.append(
                TradeoffPanel(
                    key=key,
                    label=cost.display_name,
                    unit=cost.unit,
                    digits=next((row.digits for row in by_arm.values()), 4),
                    lower_is_better=lower,
                    note=note,
                    points=points,
                    pareto_front=front,
                )
            )
    return panels


def _find_pareto_front(points: list[TradeoffPoint], lower_x: bool, lower_y: bool) -> list[str]:
    """Find the arms that no other arm matches or beats on both axes, cheapest first."""

    def get_rank_key(point: TradeoffPoint) -> tuple[float, float]:
        return (point.x if lower_x else -point.x), (point.y if lower_y else -point.y)

    front: list[str] = []
    best_result = float("inf")
    for point in sorted(points, key=get_rank_key):
        if get_rank_key(point)[1] < best_result:
            front.append(point.arm)
            best_result = get_rank_key(point)[1]
    return front
