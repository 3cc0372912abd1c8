"""How much of a level each look of a sequential t test may spend, so that all looks together spend it once.

The path of t over growing samples has one distribution whatever the truth's spread, so boundaries are
simulated once: those of the usual looks lie in boundaries.json, made by `python -m attnlab.stats.boundaries`.
Spending is linear in the number of seeds (Lan & DeMets 1983; exact group-sequential t: Jennison & Turnbull,
Biometrika 78:133, 1991). Surprising: a boundary is told as the tail of Student's t that it leaves, not as a
t, so that a look with a missing pair has one too.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy import special

PATHS = 500_000  # simulated, each in both directions, for looks that are not stored
STORED = 4_000_000
LEVELS = tuple(float(level) for level in np.geomspace(3e-4, 0.25, 16))  # one-sided, of all looks together
USUAL = (
    (2, 3), (2, 3, 5, 8), (3, 4), (3, 5), (3, 5, 8), (3, 5, 8, 12), (3, 5, 8, 12, 16),
    (4, 6), (4, 6, 8), (4, 6, 9, 12), (4, 6, 9, 12, 16), (4, 8), (4, 8, 12), (4, 8, 12, 16),
    (4, 8, 12, 16, 24), (6, 12, 18, 24),
)  # fmt: skip
_FILE = Path(__file__).with_suffix(".json")


def tails(looks: Sequence[int], level: float) -> list[float]:
    """Per look the tail of Student's t (n - 1 degrees of freedom) beyond which a one-sided test at `level`
    over all looks rejects.

    Below the simulated levels each look has what it may spend and no more: valid, and a little strict.
    """
    spent = _spent(looks, level)
    if len(spent) == 1:
        return spent
    gains = _gains(tuple(looks))
    logs = np.log(LEVELS)
    strict = [np.interp(np.log(level), logs, gain, left=0.0) for gain in gains.T]
    return [float(part * np.exp(gain)) for part, gain in zip(spent, strict, strict=True)]


def level_of(looks: Sequence[int], look: int, tail: float) -> float:
    """The smallest one-sided level over all looks at which look number `look` (from 0) rejects a t that
    leaves this tail; 1 where none does.
    """
    share = _spent(looks, 1.0)[look]
    if len(looks) == 1:
        return tail
    known = np.log(share) + np.log(LEVELS) + _gains(tuple(looks))[:, look]  # log tails at those levels
    if tail >= np.exp(known[-1]):
        return 1.0
    if tail < np.exp(known[0]):
        return min(tail / share, LEVELS[0])
    return float(np.exp(np.interp(np.log(tail), known, np.log(LEVELS))))


def error(looks: Sequence[int], level: float) -> float:
    """The simulation's standard error of the level that is really spent at `level`."""
    paths = STORED if _key(looks) in _stored() else PATHS
    return float(np.sqrt(level * (1 - level) / (2 * paths))) if len(looks) > 1 else 0.0


def _spent(looks: Sequence[int], level: float) -> list[float]:
    return [float(part) for part in level * np.diff([0, *looks]) / looks[-1]]


@lru_cache(maxsize=32)
def _gains(looks: tuple[int, ...]) -> np.ndarray:
    """[levels, looks]: log of a look's tail over what it may spend: some rejections repeat earlier ones."""
    kept = _stored().get(_key(looks))
    return np.array(kept) if kept is not None else _simulated(looks, PATHS)


@lru_cache(maxsize=1)
def _stored() -> dict[str, list[list[float]]]:
    return dict(json.loads(_FILE.read_text("utf-8"))) if _FILE.exists() else {}


def _key(looks: Sequence[int]) -> str:
    return ",".join(map(str, looks))


def _simulated(looks: tuple[int, ...], paths: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    parts = list[np.ndarray]()
    for start in range(0, paths, 500_000):
        found = _path(looks, min(500_000, paths - start), draw)
        few = (found < 2 * LEVELS[-1]).any(1)
        many = (found > 1 - 2 * LEVELS[-1]).any(1)  # the same path with its sign turned
        parts += [found[few], 1 - found[many]]
    seen = np.concatenate(parts)
    gains = np.zeros((len(LEVELS), len(looks)))
    for row, level in enumerate(LEVELS):
        left = seen
        spent = _spent(looks, level)
        for look, share in enumerate(spent):
            if look:
                last = max(1, round(share * 2 * paths))
                tail = np.partition(left[:, look], last - 1)[last - 1]
                gains[row, look] = max(0.0, np.log(tail / share))
            left = left[left[:, look] > share * np.exp(gains[row, look])]
    # smooth in the logarithm of the level; a rejection more or less weighs most where there are few
    smooth = [np.polyfit(np.log(LEVELS), gain, 3, w=np.sqrt(LEVELS)) for gain in gains.T]
    return np.stack([np.maximum(0.0, np.polyval(curve, np.log(LEVELS))) for curve in smooth], axis=1)


def _path(looks: Sequence[int], size: int, draw: np.random.Generator) -> np.ndarray:
    """[paths, looks]: the upper tail of t at every look, where the truth is nought."""
    sums = np.zeros(size)
    squares = np.zeros(size)
    before = 0
    tails = np.empty((size, len(looks)), dtype=np.float32)
    for column, n in enumerate(looks):
        more = n - before
        part = draw.normal(size=size) * np.sqrt(more)
        within = 2 * draw.standard_gamma((more - 1) / 2, size=size) if more > 1 else np.zeros(size)
        between = (sums / before - part / more) ** 2 * before * more / n if before else 0.0
        sums = sums + part
        squares = squares + within + between
        before = n
        t = sums / n / np.sqrt(squares / (n - 1) / n)
        tails[:, column] = special.stdtr(n - 1, -t)
    return tails


if __name__ == "__main__":
    made = {_key(looks): np.round(_simulated(looks, STORED), 5).tolist() for looks in USUAL}
    _FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n", "utf-8")
