"""Effects converted to training compute by the compute calibration.

`sweep.plan.compute_calibration` plans the baseline at half and at twice its steps, and decides whether the
slope between them is usable. A difference in the same metric is then a number of doublings
(`stats.estimate_compute_equivalent`).
"""

from attnlab import stats
from attnlab.report.schema import CalibrationSection, TrainingEquivalent
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
    sentence = f"A doubling of training is worth {calibration.loss_per_doubling}{size}"
    return CalibrationSection(
        **dict(calibration),
        label=sweep.get_metric(calibration.metric).display_name,
        summary=f"What training is worth is not known: {calibration.reason}. {runs}"
        if calibration.reason
        else f"{sentence}: {runs}",
        cost=f"{2 * len(calibration.seeds)} runs more, of {calibration.tokens:,} tokens in all, "
        "which are in no arm's figures",
    )


def format_margin(sweep: SweepResults) -> str | None:
    """Format a margin given in training compute with its value in nats; None for a numeric margin."""
    text = sweep.experiment.format_compute_amount(sweep.experiment.margin)
    margin = sweep.margin
    calibration = sweep.context.compute_calibration
    if text is None:
        return None
    if margin is None or calibration is None:
        reason = calibration.reason if calibration else "there is no compute calibration"
        return f"{text}, which is not known in nats: {reason}"
    return f"{text}: {margin:g} nats (a doubling is worth {calibration.loss_per_doubling})"


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
