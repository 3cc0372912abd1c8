"""Fits of growth: the exponent of a power law, and R² of a line."""

from collections.abc import Mapping, Sequence

import numpy as np


def fit_exponent(points: Mapping[int, float]) -> float:
    """Return the least-squares slope of log y over log x: 2 if doubling x quadruples y."""
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


def take_upper_half(points: Mapping[int, float]) -> dict[int, float]:
    """Return the upper half of the points and the one before it, where the largest power dominates."""
    upper = sorted(points)[(len(points) - 1) // 2 :]
    return {x: points[x] for x in upper}


def compute_r_squared(x: Sequence[float], y: Sequence[float]) -> float:
    """Return R² of a straight line: the proportion of y's variance that it explains.

    0 if x or y is constant.
    """
    if not np.ptp(x) or not np.ptp(y):
        return 0.0
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def validate_increasing(values: Sequence[int], key: str, min_count: int = 2) -> list[int]:
    """Return the values if they are at least `min_count` positive whole numbers in increasing order."""
    is_whole = all(type(value) is int and value > 0 for value in values)
    if not is_whole or len(values) < min_count or sorted(set(values)) != list(values):
        raise ValueError(
            f"{key} must be at least {min_count} increasing integers above 0, got {list(values)}"
        )
    return list(values)


def validate_positive(**settings: int) -> None:
    """Validate settings of a measurement.

    Raises:
        ValueError: a setting is no positive whole number; the message names the first one.
    """
    for key, value in settings.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"measurement.{key} must be an integer of at least 1, got {value}")
