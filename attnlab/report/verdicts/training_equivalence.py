"""Effects converted to training compute by the compute calibration.

`sweep.plan.compute_calibration` plans the baseline at half and at twice its steps, and decides whether the
slope between them is usable. A difference in the same metric is then a number of doublings
(`stats.estimate_compute_equivalent`).
"""

from attnlab import stats
from attnlab.report.number_format import NONE, format_compute_amount, format_percent
from attnlab.report.schema import CalibrationResult, CalibrationSection, TrainingEquivalent
from attnlab.report.verdicts.results import SweepResults


def build_calibration_section(sweep: SweepResults) -> CalibrationSection | None:
    """Build the calibration runs, their slope and its sentences; None without a calibration."""
    calibration = sweep.context.compute_calibration
    if calibration is None:
        return None
    seeds, (half_steps, steps, double_steps) = ", ".join(map(str, calibration.seeds)), calibration.steps
    rounding_note = " (half, rounded up)" if steps % 2 else ""
    runs = f"{sweep.baseline} at {half_steps:,}{rounding_note} and at {double_steps:,} steps "
    runs += f"instead of {steps:,}, seeds {seeds}"
    size = f" at size {sweep.experiment.size}" if sweep.experiment.size else ""
    sentence = f"One doubling of training compute lowers the loss by {_format_slope(calibration)}{size}"
    return CalibrationSection(
        **dict(calibration),
        label=sweep.get_metric(calibration.metric).display_name,
        summary=f"The loss per doubling of training compute is unknown: {calibration.reason}. "
        f"Calibration runs: {runs}"
        if calibration.reason
        else f"{sentence}, measured on {runs}",
        cost=f"{2 * len(calibration.seeds)} additional runs with {calibration.tokens:,} tokens in total, "
        "excluded from the figures of every arm",
    )


def _format_slope(calibration: CalibrationResult) -> str:
    """Format `0.250 nats, 95% CI [0.225, 0.275]`."""
    text = calibration.loss_per_doubling or NONE
    if calibration.slope is None:
        return text
    return text.replace(" [", f", {format_percent(calibration.slope.level)}% CI [")


def format_margin(sweep: SweepResults) -> str | None:
    """Format a margin given in training compute with its value in nats; None for a numeric margin."""
    text = sweep.experiment.format_compute_amount(sweep.experiment.margin)
    margin = sweep.margin
    calibration = sweep.context.compute_calibration
    if text is None:
        return None
    if margin is None or calibration is None:
        reason = calibration.reason if calibration else "the experiment has no compute calibration"
        return f"{format_compute_amount(text)}, unknown in nats: {reason}"
    slope = _format_slope(calibration)
    return f"{format_compute_amount(text)}: {margin:g} nats (loss per doubling of compute: {slope})"


def convert_to_training(
    sweep: SweepResults, metric: str, effect: float | None, interval: tuple[float, float] | None, level: float
) -> TrainingEquivalent | None:
    """Convert a difference to a change of training compute; None without a slope for this metric."""
    calibration = sweep.context.compute_calibration
    if calibration is None or calibration.reason or calibration.metric != metric or effect is None:
        return None
    slope = stats.estimate_paired_difference(calibration.slopes, level)
    equivalent = stats.estimate_compute_equivalent(effect, interval, slope.mean, slope.interval)
    if equivalent is None:
        return None
    # a higher loss corresponds to less compute, so the bounds swap
    return TrainingEquivalent(
        compute_change=equivalent.compute_change, low=equivalent.high, high=equivalent.low, level=level
    )
