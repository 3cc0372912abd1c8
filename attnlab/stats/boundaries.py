"""Alpha spending of a sequential t test: how much of a level each interim analysis may spend.

The path of t over growing samples has one distribution whatever the true spread, so the boundaries are
simulated once. boundaries.json holds those of the common schedules and is made by
`python -m attnlab.stats.boundaries`. Spending is linear in the number of seeds (Lan & DeMets 1983; exact
group-sequential t: Jennison & Turnbull, Biometrika 78:133, 1991).

A boundary is a tail probability of Student's t and not a t value, so that it also applies to an interim
analysis with a missing pair.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy import special

PATH_COUNT = 500_000  # simulated paths, each in both directions, for schedules that are not stored
STORED_PATH_COUNT = 4_000_000
LEVELS = tuple(float(level) for level in np.geomspace(3e-4, 0.25, 16))  # one-sided, over all interim analyses
COMMON_ANALYSES = (
    (2, 3), (2, 3, 5, 8), (3, 4), (3, 5), (3, 5, 8), (3, 5, 8, 12), (3, 5, 8, 12, 16),
    (4, 6), (4, 6, 8), (4, 6, 9, 12), (4, 6, 9, 12, 16), (4, 8), (4, 8, 12), (4, 8, 12, 16),
    (4, 8, 12, 16, 24), (6, 12, 18, 24),
)  # fmt: skip
_FILE = Path(__file__).with_suffix(".json")


def compute_tails(analyses: Sequence[int], level: float) -> list[float]:
    """Tail of Student's t (n - 1 degrees of freedom) beyond which each interim analysis rejects.

    The tests are one-sided, and `level` holds over all interim analyses. Below the simulated levels each
    analysis may spend only its own share of alpha: valid, and slightly conservative.
    """
    alpha_parts = _allocate_alpha(analyses, level)
    if len(alpha_parts) == 1:
        return alpha_parts
    gains = _get_gains(tuple(analyses))
    logs = np.log(LEVELS)
    log_gains = [np.interp(np.log(level), logs, gain, left=0.0) for gain in gains.T]
    return [float(alpha_part * np.exp(gain)) for alpha_part, gain in zip(alpha_parts, log_gains, strict=True)]


def find_level(analyses: Sequence[int], index: int, tail: float) -> float:
    """Smallest one-sided level over all interim analyses at which analysis `index` rejects this tail.

    Args:
        index: the number of the interim analysis, from 0.
        tail: the tail probability of the observed t; 1 is returned where no level rejects it.
    """
    fraction = _allocate_alpha(analyses, 1.0)[index]
    if len(analyses) == 1:
        return tail
    log_tails = (
        np.log(fraction) + np.log(LEVELS) + _get_gains(tuple(analyses))[:, index]
    )  # log tails at those levels
    if tail >= np.exp(log_tails[-1]):
        return 1.0
    if tail < np.exp(log_tails[0]):
        return min(tail / fraction, LEVELS[0])
    return float(np.exp(np.interp(np.log(tail), log_tails, np.log(LEVELS))))


def _allocate_alpha(analyses: Sequence[int], level: float) -> list[float]:
    return [float(part) for part in level * np.diff([0, *analyses]) / analyses[-1]]


@lru_cache(maxsize=32)
def _get_gains(analyses: tuple[int, ...]) -> np.ndarray:
    """[levels, analyses]: log of an analysis' tail over its share of alpha.

    Positive, because some rejections repeat those of earlier analyses.
    """
    stored = _load_stored_gains().get(_format_key(analyses))
    return np.array(stored) if stored is not None else _simulate_gains(analyses, PATH_COUNT)


@lru_cache(maxsize=1)
def _load_stored_gains() -> dict[str, list[list[float]]]:
    return dict(json.loads(_FILE.read_text("utf-8"))) if _FILE.exists() else {}


def _format_key(analyses: Sequence[int]) -> str:
    return ",".join(map(str, analyses))


def _simulate_gains(analyses: tuple[int, ...], paths: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tail_parts = list[np.ndarray]()
    for start in range(0, paths, 500_000):
        tails = _simulate_paths(analyses, min(500_000, paths - start), rng)
        rejected_high = (tails < 2 * LEVELS[-1]).any(1)
        rejected_low = (tails > 1 - 2 * LEVELS[-1]).any(1)  # the same path with the opposite sign
        tail_parts += [tails[rejected_high], 1 - tails[rejected_low]]
    tails_near_boundary = np.concatenate(tail_parts)
    gains = np.zeros((len(LEVELS), len(analyses)))
    for row, level in enumerate(LEVELS):
        remaining = tails_near_boundary
        alpha_parts = _allocate_alpha(analyses, level)
        for index, alpha_part in enumerate(alpha_parts):
            if index:
                rank = max(1, round(alpha_part * 2 * paths))
                tail = np.partition(remaining[:, index], rank - 1)[rank - 1]
                gains[row, index] = max(0.0, np.log(tail / alpha_part))
            remaining = remaining[remaining[:, index] > alpha_part * np.exp(gains[row, index])]
    # smooth in the logarithm of the level; one rejection more or less matters most where there are few
    fits = [np.polyfit(np.log(LEVELS), gain, 3, w=np.sqrt(LEVELS)) for gain in gains.T]
    return np.stack([np.maximum(0.0, np.polyval(curve, np.log(LEVELS))) for curve in fits], axis=1)


def _simulate_paths(analyses: Sequence[int], size: int, rng: np.random.Generator) -> np.ndarray:
    """[paths, analyses]: upper tail of t at every interim analysis under the null hypothesis."""
    sums = np.zeros(size)
    squares = np.zeros(size)
    previous_n = 0
    tails = np.empty((size, len(analyses)), dtype=np.float32)
    for column, n in enumerate(analyses):
        added = n - previous_n
        added_sum = rng.normal(size=size) * np.sqrt(added)
        within = 2 * rng.standard_gamma((added - 1) / 2, size=size) if added > 1 else np.zeros(size)
        between = (sums / previous_n - added_sum / added) ** 2 * previous_n * added / n if previous_n else 0.0
        sums = sums + added_sum
        squares = squares + within + between
        previous_n = n
        t = sums / n / np.sqrt(squares / (n - 1) / n)
        tails[:, column] = special.stdtr(n - 1, -t)
    return tails


if __name__ == "__main__":
    made = {
        _format_key(looks): np.round(_simulate_gains(looks, STORED_PATH_COUNT), 5).tolist()
        for looks in COMMON_ANALYSES
    }
    _FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n", "utf-8")
