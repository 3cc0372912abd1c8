"""Compute calibration: loss per doubling of compute, from the baseline at half and at twice its steps.

The slope is in nats per doubling of training. It converts a margin in training compute to nats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnlab.report.number_format import format_compute_amount
from attnlab.report.schema import CalibrationResult, CalibrationRow, Slope
from attnlab.store import disk_cache, fingerprint
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import RunConfig, RunLookup, RunResult
from attnlab.store.source_digests import hash_sources

CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True)
class CalibrationRuns:
    """The calibration runs: for each seed one at half and one at twice the `steps`."""

    baseline: str
    metric: str
    steps: int
    runs: list[RunConfig]

    def with_runs(self, runs: list[RunConfig]) -> "CalibrationRuns":
        """Return the same calibration with other run configs of the same runs."""
        return replace(self, runs=runs)

    def summarize(self, lookup: RunLookup) -> CalibrationResult:
        """Return the calibration as the report shows it.

        It holds a row per seed (values are None until the run finishes), the slope of each seed in nats per
        doubling, and their mean with its interval. `loss_per_doubling` is the slope as text. If no slope is
        usable, it is None and `reason` explains why.
        """
        half_steps = halve_steps(self.steps)
        double_steps = 2 * self.steps
        rows = []
        slopes = list[float]()
        for short, long in zip(self.runs[::2], self.runs[1::2], strict=True):
            half_loss, double_loss = (
                _get_finished_metric(lookup(run.id), self.metric) for run in (short, long)
            )
            rows.append(
                CalibrationRow(seed=short.seed, half=half_loss, twice=double_loss, ids=[short.id, long.id])
            )
            if half_loss is not None and double_loss is not None:
                slopes.append((half_loss - double_loss) / math.log2(double_steps / half_steps))
        slope: Slope | None = None
        reason: str | None
        if len(slopes) < len(rows):
            reason = f"{len(slopes)} of {len(rows)} pairs of calibration runs are finished"
        else:
            mean, low, high = _compute_interval(self.runs[0].config, slopes)
            slope = Slope(mean=mean, low=low, high=high, level=CONFIDENCE_LEVEL)
            reason = _explain_unusable_slope(mean, low, high)
        return CalibrationResult(
            metric=self.metric,
            seeds=[run.seed for run in self.runs[::2]],
            steps=[half_steps, self.steps, double_steps],
            tokens=sum(run.estimate.tokens or 0 for run in self.runs),
            rows=rows,
            slopes=slopes,
            slope=slope,
            loss_per_doubling=format_slope(slope.mean, slope.low, slope.high)
            if slope and not reason
            else None,
            reason=reason,
        )


def _compute_interval(
    config: Mapping[str, Any], slopes: Sequence[float]
) -> tuple[float, float | None, float | None]:
    """Return mean and t interval; cached, since importing scipy takes longer than the rest of a plan."""
    key = fingerprint.compute_digest(
        [list(slopes), CONFIDENCE_LEVEL, hash_sources(["attnlab.stats.paired_tests"])]
    )
    match disk_cache.read_cache_entry(config, "seeds", key):
        case [float(mean), float() | None as low, float() | None as high]:
            return mean, low, high
    from attnlab.stats import estimate_paired_difference

    estimate = estimate_paired_difference(slopes, CONFIDENCE_LEVEL)
    disk_cache.write_cache_entry(config, "seeds", key, [estimate.mean, estimate.low, estimate.high])
    return estimate.mean, estimate.low, estimate.high


def compute_slope(compute_calibration: CalibrationRuns | None, lookup: RunLookup) -> float | None:
    """Return nats per doubling of training, or None if no slope is usable."""
    return compute_calibration.summarize(lookup).nats_per_doubling if compute_calibration else None


def halve_steps(steps: int) -> int:
    """Return half of the steps, rounded up."""
    return -(-steps // 2)


def format_slope(mean: float, low: float | None, high: float | None) -> str:
    """Format a slope and its interval with as many digits as the interval justifies."""
    assert low is not None, "a usable slope has an interval"
    assert high is not None
    digits = max(0, 1 - math.floor(math.log10(high - low)))
    return f"{mean:.{digits}f} nats [{low:.{digits}f}, {high:.{digits}f}]"


def _explain_unusable_slope(mean: float, low: float | None, high: float | None) -> str | None:
    """Return the reason why a slope converts nothing; None if it is usable."""
    if low is None or high is None:
        return (
            f"doubling the training compute lowers the loss by {mean:.3g} nats with every seed, so "
            "there is no interval: add seeds to compute_calibration, or give the margin in nats"
        )
    if low <= 0:
        return (
            f"doubling the training compute lowers the loss by {format_slope(mean, low, high)}, an "
            "interval with 0: add seeds to compute_calibration, or give the margin in nats"
        )
    return None


def _get_finished_metric(record: RunResult | None, metric: str) -> float | None:
    return record.metrics.get(metric) if record is not None and record.is_done else None


def describe_calibration(
    experiment: Experiment, compute_calibration: CalibrationRuns | None, lookup: RunLookup
) -> list[str]:
    """Return lines with the loss per doubling and the margins in nats, or why they are unknown."""
    if compute_calibration is None:
        return []
    summary = compute_calibration.summarize(lookup)
    amounts_by_text = {
        format_compute_amount(text): amount for text, amount in experiment.compute_amounts.items()
    }
    nats_per_doubling = summary.nats_per_doubling
    if nats_per_doubling is None:
        consequence = (
            f"; the comparison starts once it is known, because it requires {'; '.join(amounts_by_text)}"
            if amounts_by_text
            else ""
        )
        return [f"{experiment.name}: no loss per doubling of compute: {summary.reason}{consequence}"]
    size = f" at size {experiment.size}" if experiment.size else ""
    return [
        f"{experiment.name}: loss per doubling of compute {summary.loss_per_doubling}{size}",
        *(
            f"{text}: {experiment.amount_to_nats(amount, nats_per_doubling):g} nats"
            for text, amount in amounts_by_text.items()
        ),
    ]
