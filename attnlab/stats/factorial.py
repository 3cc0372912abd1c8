"""Crossed (factorial) designs: option means, balanced subsets, and shares of variance.

Values are arrays [option of axis 1, ..., option of axis k, seed]. Seeds are blocks: a seed is shared by all
cells, so what it changes in all of them alike is no noise of a comparison between cells.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class VarianceComponent:
    """A sum of squares with its degrees of freedom, and its share of the total."""

    sum_of_squares: float
    df: int
    share: float


@dataclass(frozen=True)
class VarianceDecomposition:
    """The variance of all runs of a balanced grid; all shares add to 1.

    - `effects`: by axes, one for a main effect, two for an interaction
    - `higher`: interactions of three and more axes together; None with at most two axes
    - `seeds`: the effect of a seed on all cells alike; None with one seed
    - `noise`: all else that differs between the seeds of a cell; None with one seed
    """

    effects: dict[tuple[int, ...], VarianceComponent]
    higher: VarianceComponent | None
    seeds: VarianceComponent | None
    noise: VarianceComponent | None
    total: float

    @property
    def noise_variance(self) -> float | None:
        """The variance of a run about its cell and its seed; None without degrees of freedom."""
        return self.noise.sum_of_squares / self.noise.df if self.noise and self.noise.df else None

    def compute_noise_share(self, component: VarianceComponent) -> float | None:
        """Return the mean share of a component if only noise varies; None if noise is unknown."""
        variance = self.noise_variance
        return None if variance is None else component.df * variance / self.total


def decompose_variance(values: FloatArray) -> VarianceDecomposition | None:
    """Decompose the variance of a complete grid by a balanced analysis of variance (eta squared).

    Args:
        values: [option of axis 1, ..., option of axis k, seed], with at least one axis.

    Returns:
        None if all values are equal, so that there is nothing to divide.

    Raises:
        ValueError: a value is missing (not finite), or an axis has fewer than two options.
    """
    if not np.isfinite(values).all():
        raise ValueError("values must be finite: select a balanced subset first")
    *sizes, n_seeds = values.shape
    if not sizes or min(sizes) < 2 or n_seeds < 1:
        raise ValueError(f"shape {values.shape}: each axis needs two options, and there must be a seed")
    centered = values - values.mean()
    total = float((centered**2).sum())
    if total <= np.finfo(np.float64).eps ** 2 * float((values**2).sum()):
        return None
    cells = centered.mean(axis=-1)
    axes = range(len(sizes))

    def make_component(sum_of_squares: float, df: int) -> VarianceComponent:
        return VarianceComponent(sum_of_squares, df, sum_of_squares / total)

    def compute_effect(selected: Sequence[int]) -> FloatArray:
        """Mean over all other axes, without the effects of fewer of the selected axes."""
        others = tuple(axis for axis in axes if axis not in selected)
        effect: FloatArray = np.asarray(cells.mean(axis=others, keepdims=True))
        for count in range(1, len(selected)):
            for part in itertools.combinations(selected, count):
                effect = effect - compute_effect(part)
        return effect

    effects = {}
    for count in (1, 2):
        for selected in itertools.combinations(axes, count):
            effect = compute_effect(selected)
            scale = values.size / effect.size
            df = int(np.prod([sizes[axis] - 1 for axis in selected]))
            effects[selected] = make_component(float((effect**2).sum()) * scale, df)
    explained = sum(component.sum_of_squares for component in effects.values())
    between = float((cells**2).sum()) * n_seeds
    df_higher = cells.size - 1 - sum(component.df for component in effects.values())
    higher = make_component(max(between - explained, 0.0), df_higher) if len(sizes) > 2 else None
    if n_seeds == 1:
        return VarianceDecomposition(effects, higher, None, None, total)
    by_seed = centered.reshape(-1, n_seeds).mean(axis=0)
    seeds = make_component(float((by_seed**2).sum()) * cells.size, n_seeds - 1)
    residual = centered - cells[..., None] - by_seed
    noise = make_component(float((residual**2).sum()), (cells.size - 1) * (n_seeds - 1))
    return VarianceDecomposition(effects, higher, seeds, noise, total)


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


def find_balanced_subset(present: BoolArray) -> list[list[int]] | None:
    """Select options and seeds so that every cell has a value for every seed.

    The option or seed with the largest proportion of missing values is left out until none is missing; of
    equal ones a seed goes first, then the last option of the last axis. Each axis keeps two options.

    Args:
        present: [option of axis 1, ..., option of axis k, seed].

    Returns:
        The indices that remain in each dimension, seeds last; None if no such subset was found.
    """
    kept = [list(range(size)) for size in present.shape]
    least = [2] * (present.ndim - 1) + [1]
    if any(len(indices) < count for indices, count in zip(kept, least, strict=True)):
        return None
    while True:
        subset = present[np.ix_(*kept)]
        if subset.all():
            return kept
        candidates = [
            (1 - float(np.take(subset, position, axis=dimension).mean()), dimension, position)
            for dimension in range(present.ndim)
            if len(kept[dimension]) > least[dimension]
            for position in range(len(kept[dimension]))
        ]
        proportion, dimension, position = max(candidates, default=(0.0, 0, 0))
        if not proportion:
            return None
        del kept[dimension][position]
