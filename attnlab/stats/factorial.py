"""Crossed (factorial) designs: means of options over the same combinations and seeds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class OptionMeans:
    """The options of one axis, each averaged over the same blocks.

    A block is a combination of all other axes with a seed; only blocks with a value for every option count.

    - `differences`: to the first option, by paired blocks
    - `ranges`: smallest and largest such difference over the combinations of all other axes, each the mean
      over its seeds
    """

    means: list[float]
    differences: list[float]
    ranges: list[tuple[float, float]]
    n_combinations: int
    n_blocks: int


def average_options(values: FloatArray, present: BoolArray, axis: int) -> OptionMeans | None:
    """Average each option of an axis over all other axes and the seeds, paired; None without a block.

    Args:
        values: [option of axis 1, ..., option of axis k, seed]; ignored where `present` is false.
        axis: the index of the axis.
    """
    n_seeds = values.shape[-1]
    by_option = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1, n_seeds)
    complete: BoolArray = np.asarray(np.moveaxis(present, axis, 0).reshape(by_option.shape).all(axis=0))
    if not complete.any():
        return None
    blocks = by_option[:, complete]
    differences = blocks - blocks[0]
    combinations = [
        (row[:, seeds] - row[:1, seeds]).mean(axis=1)
        for row, seeds in zip(np.moveaxis(by_option, 1, 0), complete, strict=True)
        if seeds.any()
    ]
    return OptionMeans(
        means=blocks.mean(axis=1).tolist(),
        differences=differences.mean(axis=1).tolist(),
        ranges=[(float(min(column)), float(max(column))) for column in zip(*combinations, strict=True)],
        n_combinations=len(combinations),
        n_blocks=int(complete.sum()),
    )
