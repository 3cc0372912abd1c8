"""How often the one word about a ladder is wrong where the truth is known, and how often it is found. `make
calibration` writes `docs/calibration_ladders.md` with it.

Surprising: nothing is decided here; ladders are drawn by the thousand into the arrays that `word` itself
decides on. Each cell has a stream of its own and can be drawn alone.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import calibration
import numpy as np
from calibration import format_cells, format_table

from attnlab.stats.across.holdout import surprise
from attnlab.stats.across.rungs import Ladder, Sums
from attnlab.stats.across.trend import AHEAD
from attnlab.stats.across.word import WORDS, findings, rule
from attnlab.stats.designs import Look

LADDERS = 10_000
ALLOWED = 0.05
STEP = math.log10(6.25)
SEEDS = (16, 16, 8, 4), (16, 16, 8, 3), (8, 8, 8, 8), (12, 12, 6, 4)
LOOKS = 4, 6, 9, 12, 16  # after so many seeds a rung may end
MARGINS = 1.65, 3.0  # in sd of the differences at the smallest rung
Shape = tuple[int, int, int]  # ladders, rungs, seeds
Noise = Callable[[np.random.Generator, Shape], np.ndarray]


def alike(noise: str, spreads: Sequence[float] = (1, 1, 1, 1)) -> Noise:
    """The noise of the calibration page, with so many sd at each rung."""

    def drawn(draw: np.random.Generator, shape: Shape) -> np.ndarray:
        flat = calibration.NOISES[noise](draw, (shape[0] * shape[1], shape[2]))
        return np.asarray(flat.reshape(shape) * np.array(spreads)[:, None])

    return drawn


def shared(draw: np.random.Generator, shape: Shape) -> np.ndarray:
    """Half of the variance of a seed is its own at every rung."""
    of_seed = draw.normal(size=(shape[0], 1, shape[2]))
    rest = draw.normal(size=shape)
    return np.asarray((of_seed + rest) * math.sqrt(0.5))


def wobbling(draw: np.random.Generator, shape: Shape) -> np.ndarray:
    """All seeds of a rung are moved together by 0.3 sd, which no seed shows."""
    return draw.normal(size=shape) + 0.3 * draw.normal(size=(*shape[:2], 1))


NOISES: Mapping[str, Noise] = {
    "normal": alike("normal"),
    "quieter upwards": alike("normal", (1, 0.7, 0.5, 0.35)),
    "louder upwards": alike("normal", (1, 1.4, 2, 2.8)),
    "loud at the top": alike("normal", (1, 1, 1, 2)),
    "same seeds": shared,
    "heavy tails": alike("heavy tails"),
    "skewed": alike("skewed"),
    "rungs wobble": wobbling,
}
TRUTHS: Mapping[str, tuple[float, float, float, float]] = {  # the effect at each rung, in margins
    "no effect": (0, 0, 0, 0),
    "the same everywhere": (1, 1, 1, 1),
    "grows by the margin": (1, 4 / 3, 5 / 3, 2),
    "from 0 to the margin": (0, 1 / 3, 2 / 3, 1),
    "from the margin to 0": (1, 2 / 3, 1 / 3, 0),
    "through 0, by the margin": (-1 / 2, -1 / 6, 1 / 6, 1 / 2),
    "grows by twice the margin": (1 / 2, 7 / 6, 11 / 6, 5 / 2),
    "shrinks by twice the margin": (5 / 2, 11 / 6, 7 / 6, 1 / 2),
    "flips, to as much": (-1, -1 / 3, 1 / 3, 1),
    "flips, to three times as much": (-1 / 2, 1 / 6, 5 / 6, 3 / 2),
    "saturates at the margin": (0, 0.7, 0.9, 1),
    "comes late, to the margin": (0, 0.05, 0.2, 1),
    "rises and falls back": (0, 1, 1, 0),
    "flips and saturates": (-1, 0.8, 0.95, 1),
}


def true(truth: Sequence[float]) -> set[str]:
    """The words that a truth in margins does not contradict, by what `word` says that they say."""
    bottom = truth[0]
    top = truth[-1]
    words = {"CANNOT TELL"}
    words |= {"HOLDS"} if abs(top - bottom) < 1 else set()
    words |= {"FLIPS"} if bottom * top < 0 else set()
    words |= {"GROWS"} if abs(top) > abs(bottom) else set()
    return words | ({"SHRINKS"} if abs(top) < abs(bottom) else set())


def drawn(noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int = LADDERS) -> Ladder:
    values = _values(noise, truth, seeds, margin, ladders)
    used = [values[:, rung, :n] for rung, n in enumerate(seeds)]
    means = np.stack([each.mean(1) for each in used], -1)
    variances = np.stack([each.var(1, ddof=1) for each in used], -1)
    return Ladder(STEP * np.arange(len(seeds)), np.array(seeds), means, variances)


def stopped(noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int = LADDERS) -> Ladder:
    """As `drawn`, but each rung ends at the look of `LOOKS` that decides whether the effect is below the
    margin.
    """
    values = _values(noise, truth, seeds, margin, ladders)
    n, means, variances = (np.zeros((ladders, len(seeds))) for _ in range(3))
    for rung, last in enumerate(seeds):
        looks = (*(look for look in LOOKS if look < last), last)
        goes_on = np.ones(ladders, bool)
        for number, count in enumerate(looks):
            mean = values[:, rung, :count].mean(1)
            variance = values[:, rung, :count].var(1, ddof=1)
            for kept, now in ((n, count), (means, mean), (variances, variance)):
                kept[:, rung] = np.where(goes_on, now, kept[:, rung])
            far = Look(looks, number).critical(count, 0.05)
            goes_on &= np.abs(mean - margin) < far * np.sqrt(variance / count)
    return Ladder(STEP * np.arange(len(seeds)), n, means, variances)


def _values(noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int) -> np.ndarray:
    draw = np.random.default_rng(zlib.crc32(f"{noise}: {truth}, {seeds}".encode()))
    values = NOISES[noise](draw, (ladders, len(seeds), max(seeds)))
    return np.asarray(values + margin * np.array(TRUTHS[truth])[:, None])


Draw = Callable[[str, str, Sequence[int], float, int], Ladder]


def said(
    noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int = LADDERS, draw: Draw = drawn
) -> dict[str, float]:
    """How often each word is said."""
    words = rule(findings(draw(noise, truth, seeds, margin, ladders)), margin)
    return {word: float((words == number).mean()) for number, word in enumerate(WORDS)}


def wrong(
    noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int = LADDERS, draw: Draw = drawn
) -> float:
    words = said(noise, truth, seeds, margin, ladders, draw)
    return sum(share for word, share in words.items() if word not in true(TRUTHS[truth]))


def most(ladders: int = LADDERS) -> float:
    """The largest rate that may come by chance: three standard errors above what is allowed."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / ladders)


def errors(noise: str, draw: Draw = drawn) -> str:
    lines = []
    for truth in TRUTHS:
        cells = []
        for margin in MARGINS:
            rates = [wrong(noise, truth, seeds, margin, draw=draw) for seeds in SEEDS]
            cells += [f"**{100 * rate:.1f}**" if rate > most() else f"{100 * rate:.1f}" for rate in rates]
        lines.append(format_cells(truth, *cells))
    heads = [f"{'/'.join(map(str, seeds))}, {margin:g} sd" for margin in MARGINS for seeds in SEEDS]
    return format_table(["truth", *heads], lines)


def powers(margin: float) -> str:
    """Of normal noise: every true word, and how often it is said."""
    lines = []
    for truth, values in TRUTHS.items():
        for word in sorted(true(values) - {"CANNOT TELL"}):
            shares = [said("normal", truth, seeds, margin)[word] for seeds in SEEDS]
            lines.append(format_cells(truth, word, *(f"{100 * share:.0f}" for share in shares)))
    return format_table(["truth", "word", *("/".join(map(str, seeds)) for seeds in SEEDS)], lines)


def covered(noise: str, seeds: Sequence[int], ladders: int = LADDERS) -> dict[str, float]:
    """How often the 95 % intervals hold the truth, which is 0 everywhere."""
    held = drawn(noise, "no effect", seeds, 1.0, ladders)
    sums: dict[str, Sums] = {
        "slope": held.sums(held.slope()),
        "band at the top": held.sums(held.at(held.x[-1])),
        "ten times further": held.sums(held.at(held.x[-1] + AHEAD)),
        "top from the others": surprise(held),
    }
    return {name: float((np.abs(each.estimate) <= each.half(0.025)).mean()) for name, each in sums.items()}


def coverage() -> str:
    lines = []
    for noise in NOISES:
        found = [covered(noise, seeds) for seeds in SEEDS]
        lines += [
            format_cells(f"{noise}: {name}", *(f"{rates[name]:.1%}" for rates in found)) for name in found[0]
        ]
    return format_table(["interval", *("/".join(map(str, seeds)) for seeds in SEEDS)], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    **{noise.replace(" ", "_"): partial(errors, noise) for noise in NOISES},
    "stopped": partial(errors, "normal", stopped),
    "powers": lambda: powers(MARGINS[0]),
    "powers_wide": lambda: powers(MARGINS[1]),
    "coverage": coverage,
}

if __name__ == "__main__":
    page = Path(__file__).with_suffix(".md").read_text("utf-8")
    print(page.format(ladders=f"{LADDERS:,}", **{name: table() for name, table in TABLES.items()}), end="")
