"""What each arm costs against what it achieves: one small panel per cost.

The bar on the loss is the interval of the paired difference, set at the arm's own mean; the baseline has
none. Costs that are counted (bytes, parameters) have no interval; times have a bootstrap or order-statistic
one.
"""

from typing import Any

from attnlab import stats
from attnlab.report.verdicts.runs import Sweep, common

Panel = dict[str, Any]


def _timed(sweep: Sweep, key: str) -> dict[str, tuple[float, float | None, float | None]]:
    found = {}
    for arm, row in ((sweep.timing or {}).get("arms") or {}).items():
        if arm in sweep.arms and row.get(key):
            found[arm] = (row[key]["median"], row[key].get("low"), row[key].get("high"))
    return found


def _counted(sweep: Sweep, key: str) -> dict[str, tuple[float, float | None, float | None]]:
    values = {arm: common(sweep.values(arm, key)) for arm in sweep.arms}
    return {arm: (value, None, None) for arm, value in values.items() if value is not None}


def _throughput(sweep: Sweep) -> tuple[dict[str, tuple[float, float | None, float | None]], str]:
    """Training tokens/s from the exclusive timing; else what the busy runs saw, and then it says so."""
    timed = _timed(sweep, "train_step_ms")
    timing = sweep.timing or {}
    if timed and timing.get("batch") and timing.get("context"):
        tokens = 1000 * timing["batch"] * timing["context"]
        flip = {
            arm: (tokens / m, tokens / h if h else None, tokens / low if low else None)
            for arm, (m, low, h) in timed.items()
        }
        return flip, "measured alone, arms interleaved"
    seen = {arm: sweep.values(arm, "train_tokens_per_s") for arm in sweep.arms}
    ranges = {arm: (stats.median_interval(v).estimate, min(v), max(v)) for arm, v in seen.items() if v}
    return ranges, "indicative only: other runs were busy beside it; bar = range over seeds"


def tradeoff(sweep: Sweep, effects: list[dict[str, Any]]) -> list[Panel]:
    """The panels that have at least two arms to show."""
    metric = sweep.experiment["metric"]
    timing_note = "median of interleaved repeats"
    speed, speed_note = _throughput(sweep)
    costs = [
        (
            "kv_bytes_per_token",
            "KV cache per token",
            "B",
            True,
            _counted(sweep, "kv_bytes_per_token"),
            "counted, exact",
        ),
        ("parameters", "parameters", "", True, _counted(sweep, "parameters"), "counted, exact"),
        (
            "decode_ms_per_token",
            "decode",
            "ms/token",
            True,
            _timed(sweep, "decode_ms_per_token"),
            timing_note,
        ),
        ("train_tokens_per_s", "training speed", "tokens/s", False, speed, speed_note),
    ]
    by_arm = {row["arm"]: row for row in effects if row["metric"] == metric and row["mean"] is not None}
    panels = []
    for key, label, unit, lower, found, note in costs:
        points = []
        for arm in sweep.arms:
            values = sweep.values(arm, metric)
            if arm not in found or not values:
                continue
            x, x_low, x_high = found[arm]
            y, effect = sum(values) / len(values), by_arm.get(arm)
            known = effect is not None and effect["low"] is not None
            points.append(
                {
                    "arm": arm,
                    "x": x,
                    "x_low": x_low,
                    "x_high": x_high,
                    "y": y,
                    "y_low": y + effect["low"] - effect["mean"] if known and effect else None,
                    "y_high": y + effect["high"] - effect["mean"] if known and effect else None,
                }
            )
        if len(points) > 1:
            front = _front(points, lower, sweep.experiment["direction"] == "lower")
            panels.append(
                {
                    "key": key,
                    "label": label,
                    "unit": unit,
                    "digits": next((row["digits"] for row in by_arm.values()), 4),
                    "lower_is_better": lower,
                    "note": note,
                    "points": points,
                    "front": front,
                }
            )
    return panels


def _front(points: list[Panel], lower_x: bool, lower_y: bool) -> list[str]:
    """Arms that no other arm matches or beats on both sides, from the cheapest on."""

    def rank(point: Panel) -> tuple[float, float]:
        return (point["x"] if lower_x else -point["x"]), (point["y"] if lower_y else -point["y"])

    best: list[str] = []
    reached = float("inf")
    for point in sorted(points, key=rank):
        if rank(point)[1] < reached:
            best.append(point["arm"])
            reached = rank(point)[1]
    return best
