"""Compute multiplier: the baseline's compute for the arm's loss at its largest size, over the arm's.

The baseline's losses follow L = E + A C^-alpha (Hestness 2017, 1712.00409; Hoffmann 2022, 2203.15556). Four
small sizes hardly identify the floor E, so several are assumed and the result is a range. At a given E the
law is a line in logarithms. With the losses B and b of the baseline and the arm there, the log multiplier is
log(C_B / C_b) + log((B - E) / (b - E)) / alpha.

It uses the baseline's own loss at its largest size and not the fitted curve, so that an arm that equals the
baseline has exactly 1 however badly the curve fits; the curve gives only alpha. The interval is Fieller's
(J. R. Stat. Soc. B 16:175, 1954), from seeds alone: it accounts for B and alpha coming from the same seeds
and for B and b being pairs, but not for the uncertainty of E, which the range shows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from attnlab.stats.evidence import CONFIDENCE_LEVEL, IntervalResult, validate_finite

FLOOR_FRACTIONS = (0.0, 0.25, 0.5, 0.75)  # assumed floors, as fractions of the lowest loss
MAX_ALPHA = 2.0  # the sizes do not identify an alpha at an end of (0, MAX_ALPHA)
MAX_LOG_MULTIPLIER = math.log(1000)  # an interval that extends further has no end


@dataclass(frozen=True)
class SizeLosses:
    """One ladder size of one arm: training FLOPs of a run, and the final losses in nats, one per seed."""

    compute: float
    losses: Sequence[float]


@dataclass(frozen=True)
class ComputeMultiplier(IntervalResult):
    """2.0: the baseline needs twice the arm's compute for the arm's loss, at a `floor` of the loss in nats.

    An end is None where it is unbounded or unknown: each size of the baseline, and the arm's largest, needs
    two seeds.
    """

    floor: float
    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MultiplierRange:
    """Multipliers by floor: "0 %", "25 %", ... of the lowest loss, and "fitted" where sizes identify one.

    `lowest` and `highest` are the range of the estimates, None where the baseline's loss does not fall.
    """

    by_floor: Mapping[str, ComputeMultiplier]
    lowest: float | None
    highest: float | None


def fit_alpha(sizes: Sequence[SizeLosses], floor: float) -> float | None:
    """alpha of the law at an assumed floor, by least squares over all seeds in logarithms.

    None where the loss does not fall.

    Raises:
        ValueError: the floor is not below every loss, or the sizes are invalid.
    """
    compute, losses = _validate_sizes(sizes, 2)
    if not floor < min(size_losses.min() for size_losses in losses):
        raise ValueError(f"floor={floor:g} must lie below every loss")
    y = np.array([np.log(size_losses - floor).mean() for size_losses in losses])
    alpha = -float(_compute_slope_weights(compute, losses) @ y)
    return alpha if alpha > 0 else None


def fit_loss_floor(sizes: Sequence[SizeLosses]) -> float | None:
    """The floor of the best-fitting law over all seeds, in nats; None where the sizes do not identify it.

    That is the case with fewer than four sizes, and where the best fit is at the end of alpha's range or has
    a floor that is not between 0 and the lowest loss.
    """
    compute, losses = _validate_sizes(sizes, 2)
    if len(losses) < 4:
        return None
    x = np.repeat(np.log(compute / compute[0]), [each.size for each in losses])
    y = np.concatenate(losses)

    def fit_at_alpha(alpha: float) -> tuple[np.ndarray, float]:
        terms = np.stack([np.ones_like(x), np.exp(-alpha * x)], axis=1)
        coefficients = np.linalg.lstsq(terms, y, rcond=None)[0]
        return coefficients, float(((y - terms @ coefficients) ** 2).sum())

    min_alpha = 1e-3
    from scipy import optimize  # imported here: takes longer than computing most reports

    best = optimize.minimize_scalar(
        lambda alpha: fit_at_alpha(alpha)[1], bounds=(min_alpha, MAX_ALPHA), method="bounded"
    )
    (floor, scale), _ = fit_at_alpha(best.x)
    is_identified = min_alpha * 1.1 < best.x < MAX_ALPHA * 0.999 and 0 <= floor < y.min() and scale > 0
    return float(floor) if is_identified else None


def estimate_multiplier(
    baseline: Sequence[SizeLosses], arm: SizeLosses, floor: float
) -> ComputeMultiplier | None:
    """Multiplier of the arm at its largest size; None where the baseline's loss does not fall.

    The arm's losses are paired by seed with those of the baseline's largest size, if there are as many.

    Args:
        floor: the assumed floor of the loss.

    Raises:
        ValueError: fewer than two sizes, a compute that is not positive or occurs twice, a floor that is not
            below every loss.
    """
    compute, losses = _validate_sizes(baseline, 2)
    (arm_compute,), (arm_losses,) = _validate_sizes([arm], 1)
    alpha = fit_alpha(baseline, floor)
    if not floor < arm_losses.min():
        raise ValueError(f"floor={floor:g} must lie below every loss")
    if alpha is None:
        return None
    slope = _compute_slope_weights(compute, losses)
    log_losses = [np.log(values_of_size - floor) for values_of_size in losses]
    arm_log_losses = np.log(arm_losses - floor)

    # log((B - E) / (b - E)) - ratio x alpha, 0 at the truth: the sum over sizes of mean(offset + ratio slope)
    slopes = [c * y for c, y in zip(slope, log_losses, strict=True)]
    offsets = [np.zeros_like(y) for y in log_losses]
    offsets[-1] = (
        log_losses[-1] - arm_log_losses if arm_log_losses.size == log_losses[-1].size else log_losses[-1]
    )
    if arm_log_losses.size != log_losses[-1].size:
        offsets.append(-arm_log_losses)
        slopes.append(np.zeros_like(arm_log_losses))
    n = np.array([values_of_size.size for values_of_size in offsets])

    def compute_excess(ratio: np.ndarray) -> np.ndarray:
        """How far the interval of that sum extends beyond 0."""
        values = [a[:, None] + b[:, None] * ratio for a, b in zip(offsets, slopes, strict=True)]
        variances = np.array(
            [values_of_size.var(0, ddof=1) / values_of_size.shape[0] for values_of_size in values]
        )
        df = variances.sum(0) ** 2 / (variances**2 / (n[:, None] - 1)).sum(0)
        half = -special.stdtrit(df, (1 - CONFIDENCE_LEVEL) / 2) * np.sqrt(variances.sum(0))
        return np.asarray(half - np.abs(sum(values_of_size.mean(0) for values_of_size in values)))

    ratio = float(sum(values_of_size.mean() for values_of_size in offsets)) / alpha
    log_compute_ratio = math.log(compute[-1] / arm_compute)
    has_spread = n.min() > 1 and any(np.ptp(a + ratio * b) for a, b in zip(offsets, slopes, strict=True))
    ends = [_find_interval_end(compute_excess, ratio, side) if has_spread else None for side in (-1, 1)]
    low, high = (None if end is None else math.exp(log_compute_ratio + end) for end in ends)
    return ComputeMultiplier(floor, math.exp(log_compute_ratio + ratio), low, high)


def estimate_multiplier_range(baseline: Sequence[SizeLosses], arm: SizeLosses) -> MultiplierRange:
    """Multipliers at the assumed floors, fractions of the lowest loss of both, and at the fitted one."""
    lowest = min(
        float(estimate.min())
        for estimate in _validate_sizes([*baseline], 2)[1] + _validate_sizes([arm], 1)[1]
    )
    floors = {f"{fraction:.0%}".replace("%", " %"): fraction * lowest for fraction in FLOOR_FRACTIONS}
    fitted_floor = fit_loss_floor(baseline)
    if fitted_floor is not None and fitted_floor < lowest:
        floors["fitted"] = fitted_floor
    estimates_by_floor = {name: estimate_multiplier(baseline, arm, floor) for name, floor in floors.items()}
    known_estimates = {
        name: estimate for name, estimate in estimates_by_floor.items() if estimate is not None
    }
    estimates = [estimate.estimate for estimate in known_estimates.values()]
    return MultiplierRange(known_estimates, min(estimates, default=None), max(estimates, default=None))


def _validate_sizes(sizes: Sequence[SizeLosses], min_count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    compute = validate_finite([size.compute for size in sizes], "compute", min_count)
    if compute.min() <= 0 or len(set(compute)) < len(compute):
        raise ValueError(f"compute {compute.tolist()}: need positive numbers, one per ladder size")
    order = np.argsort(compute)
    return compute[order], [
        validate_finite(sizes[i].losses, f"losses at {compute[i]:g} FLOPs") for i in order
    ]


def _compute_slope_weights(compute: np.ndarray, losses: list[np.ndarray]) -> np.ndarray:
    """Weights of the sizes' means in the slope over log compute, by least squares over all seeds."""
    n = np.array([each.size for each in losses])
    x = np.log(compute)
    centered = x - n @ x / n.sum()
    return np.asarray(n * centered / (n @ centered**2))


def _find_interval_end(
    compute_excess: Callable[[np.ndarray], np.ndarray], ratio: float, side: int
) -> float | None:
    """The log ratio on one side of the estimate at which `compute_excess` first reaches 0."""
    grid = ratio + side * np.concatenate([[0.0], np.geomspace(1e-6, 2 * MAX_LOG_MULTIPLIER, 120)])
    is_rejected = compute_excess(grid) < 0
    if not is_rejected.any() or is_rejected[0]:
        return None
    first = int(is_rejected.argmax())
    from scipy import optimize  # imported here: takes longer than computing most reports

    end = float(
        optimize.brentq(lambda r: float(compute_excess(np.array([r]))[0]), grid[first - 1], grid[first])
    )
    return end if abs(end) <= MAX_LOG_MULTIPLIER else None
