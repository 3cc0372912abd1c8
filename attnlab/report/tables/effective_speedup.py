"""Effective speed-up: time, or FLOPs, that the baseline needs for an arm's loss, divided by the arm's.

It is a pure function of report.json: of the effect in training compute, the interleaved timings and the
training FLOPs per token. A report without both a compute calibration and timings has none. No verdict depends
on it.
"""

import math
from dataclasses import dataclass

from attnlab import stats
from attnlab.report.number_format import NONE, TIMES, format_number, format_percent
from attnlab.report.schema import Effect, Report
from attnlab.report.verdicts.budget_check import TOKENS_KEY
from attnlab.stats.evidence import CONFIDENCE_LEVEL

THROUGHPUT_KEY = "train_tokens_per_s"
FLOPS_KEY = "flops_per_token"
THROUGHPUT_NOTE = (
    "Throughput is this implementation's, on {device}; another kernel or device gives another figure."
)
HEADER = (
    "arm",
    "token multiplier",
    "relative throughput",
    "effective speed-up",
    "FLOPs per token",
    "speed-up per FLOP",
)


@dataclass(frozen=True)
class Factor:
    """A positive ratio with its interval; an end is None where it is unbounded or unknown."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Speedup:
    """Effective speed-up of an arm over the baseline, with its factors.

    - `token_multiplier`: training of the baseline that gives the arm's loss, as a multiple of its own
    - `throughput`: training tokens per second, arm / baseline
    - `effective`: their product
    - `flops`: training FLOPs per token, arm / baseline; None if they are not counted
    - `per_flop`: `token_multiplier` / `flops`
    """

    arm: str
    token_multiplier: Factor
    throughput: Factor
    effective: Factor
    flops: float | None
    per_flop: Factor | None


def list_speedups(report: Report) -> list[Speedup]:
    """List the speed-ups of all arms that have one, in the order of the effects."""
    return [speedup for row in report.effects if (speedup := compute_speedup(report, row))]


def compute_speedup(report: Report, effect: Effect) -> Speedup | None:
    """Compute the speed-up of the arm of an effect.

    None unless the effect has an equivalent in training compute, both arms were timed, and their runs were
    trained on equally many tokens, without a parent whose tokens another model may have processed.
    """
    training = effect.training_equivalent
    throughput = compute_throughput(report, effect)
    if training is None or throughput is None or not _has_equal_tokens(report, effect):
        return None
    bounds = (None if end is None else 1 + end for end in (training.low, training.high))
    multiplier = Factor(1 + training.compute_change, *bounds)
    effective = Factor(
        multiplier.estimate * throughput.estimate,
        *stats.compute_product_interval(
            multiplier.estimate,
            (multiplier.low, multiplier.high),
            throughput.estimate,
            (throughput.low, throughput.high),
        ),
    )
    row = report.budget.find_row(FLOPS_KEY)
    flops = row.get_cell(effect.arm).ratio if row else None
    per_flop = _divide(multiplier, flops) if flops else None
    return Speedup(effect.arm, multiplier, throughput, effective, flops, per_flop)


def compute_throughput(report: Report, effect: Effect) -> Factor | None:
    """Estimate the throughput of an arm as a ratio to the baseline's; None if one was not timed."""
    timing = report.timing
    arm, against = (
        timing.get_time(name, THROUGHPUT_KEY) if timing else None for name in (effect.arm, effect.against)
    )
    if not (arm and against and arm.blocks and against.blocks):
        return None
    ratio = stats.estimate_ratio_of_medians(arm.blocks, against.blocks, effect.level)
    return Factor(ratio.estimate, ratio.low, ratio.high)


def _has_equal_tokens(report: Report, effect: Effect) -> bool:
    """Whether all runs of both arms were trained on one number of tokens, with none from a parent run."""
    arms = (effect.arm, effect.against)
    row = report.budget.find_row(TOKENS_KEY)
    own = {run.budget.tokens for run in report.runs if run.arm in arms and run.is_done}
    with_parents = {row.get_cell(arm).value for arm in arms if row}
    return len(own | with_parents) == 1


def _divide(factor: Factor, divisor: float) -> Factor:
    """Divide a factor by an exact number."""
    ends = (None if end is None else end / divisor for end in (factor.low, factor.high))
    return Factor(factor.estimate / divisor, *ends)


def build_speedup_table(report: Report) -> list[list[str]]:
    """Build a row of text per arm, under `HEADER`."""
    return [
        [
            row.arm,
            *(format_factor(factor) for factor in (row.token_multiplier, row.throughput, row.effective)),
            NONE if row.flops is None else f"{format_number(row.flops, 3)}{TIMES}",
            format_factor(row.per_flop) if row.per_flop else NONE,
        ]
        for row in list_speedups(report)
    ]


def explain_speedups(report: Report) -> str:
    """Explain the columns of the table, with the device, in sentences that belong above or below it."""
    baseline = report.experiment.baseline
    return (
        f"Effective speed-up, with {format_percent(CONFIDENCE_LEVEL)}% CIs: the time that {baseline} needs "
        "to reach the loss of the arm, divided by the training time of the arm. It is the token multiplier "
        f"(training that {baseline} needs for that loss, as a multiple of its own, by the compute "
        "calibration) times the relative throughput (training tokens per second of the arm, divided by those "
        f"of {baseline}, timed in alternation). "
        f"{THROUGHPUT_NOTE.format(device=name_timing_device(report))} "
        "The speed-up per FLOP counts FLOPs instead of seconds."
    )


def name_timing_device(report: Report) -> str:
    """Name the device that the arms were timed on, a CPU with its threads."""
    timing = report.timing
    assert timing is not None, "only reports with times have speed-ups"
    device = report.reproduce.device or timing.device
    threads = f", {timing.threads} thread{'' if timing.threads == 1 else 's'}"
    return f"{device}{threads if timing.device == 'cpu' else ''}"


def format_speedup(speedup: Speedup, report: Report) -> str:
    """Format `1.19× [1.02×, 1.40×] on cpu (2 cores); per FLOP 1.05× [0.98×, 1.12×]`."""
    per_flop = f"; per FLOP {format_factor(speedup.per_flop)}" if speedup.per_flop else ""
    return f"{format_factor(speedup.effective)} on {name_timing_device(report)}{per_flop}"


def format_factor(factor: Factor) -> str:
    """Format `1.19× [1.02×, 1.40×]`, under a heading that names the level."""
    if factor.low is None and factor.high is None:
        return f"{_format_ratio(factor.estimate)} unbounded"
    ends = ("unbounded" if end is None else _format_ratio(end) for end in (factor.low, factor.high))
    return f"{_format_ratio(factor.estimate)} [{', '.join(ends)}]"


def _format_ratio(value: float) -> str:
    """Format a positive ratio with two decimals, and at least two significant digits."""
    return f"{format_number(value, max(2, 1 - math.floor(math.log10(value))))}{TIMES}"
