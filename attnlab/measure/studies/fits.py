"""How a quantity grows: the exponent of a power law, and how well a line explains it."""

from collections.abc import Mapping, Sequence

import numpy as np


def exponent(points: Mapping[int, float]) -> float:
    """The slope of log y over log x, by least squares: 2 where doubling x quadruples y."""
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


def upper(points: Mapping[int, float]) -> dict[int, float]:
    """The upper half of the points and the one before it: where the largest power has taken over."""
    kept = sorted(points)[(len(points) - 1) // 2 :]
    return {x: points[x] for x in kept}


def explained(x: Sequence[float], y: Sequence[float]) -> float:
    """R² of a straight line: the share of the variance of y that it explains. 0 where x does not vary."""
    if not np.ptp(x) or not np.ptp(y):
        return 0.0
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def increasing(values: Sequence[int], key: str, least: int = 2) -> list[int]:
    """The values, where they are at least `least` different whole numbers above 0 in order. Else
    ValueError.
    """
    whole = all(type(value) is int and value > 0 for value in values)
    if not whole or len(values) < least or sorted(set(values)) != list(values):
        raise ValueError(
            f"{key}={list(values)}: give at least {least} different whole numbers, increasing, above 0"
        )
    return list(values)


def positive(**settings: int) -> None:
    """ValueError names the first setting that is no whole number above 0."""
    for key, value in settings.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"measurement.{key}={value}: give a whole number of at least 1")
