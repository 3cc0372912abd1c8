"""Error rates of scaling verdicts where the truth is known, and how often a true one is given.

`make calibration` writes `docs/calibration_ladders.md` with it. This module decides nothing: it draws
thousands of ladders into the arrays on which `apply_rule` itself decides. Each cell has its own random stream
and can be drawn alone.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import calibration
import numpy as np
from calibration import format_cells, format_table

from attnlab.stats.replications.holdout import compute_holdout_error
from attnlab.stats.replications.ladder_sample import LadderSample, WeightedSum
from attnlab.stats.replications.scaling_verdict import SCALING_VERDICTS, apply_rule, compute_rule_inputs
from attnlab.stats.replications.trend import EXTRAPOLATION_DECADES
from attnlab.stats.stopping_rules import GroupSequential

LADDERS = 10_000
ALLOWED = 0.05
STEP = math.log10(6.25)
SEEDS = (16, 16, 8, 4), (16, 16, 8, 3), (8, 8, 8, 8), (12, 12, 6, 4)
LOOKS = 4, 6, 9, 12, 16  # a size may stop after so many seeds
MARGINS = 1.65, 3.0  # in sd of the differences at the smallest size
Shape = tuple[int, int, int]  # ladders, sizes, seeds
Noise = Callable[[np.random.Generator, Shape], np.ndarray]


def scale_noise(noise: str, spreads: Sequence[float] = (1, 1, 1, 1)) -> Noise:
    """The noise of the calibration page, with so many sd at each size."""

    def draw_scaled(draw: np.random.Generator, shape: Shape) -> np.ndarray:
        flat = calibration.NOISES[noise](draw, (shape[0] * shape[1], shape[2]))
        return np.asarray(flat.reshape(shape) * np.array(spreads)[:, None])

    return draw_scaled


def draw_shared_noise(draw: np.random.Generator, shape: Shape) -> np.ndarray:
    """Half of the variance of a seed is common to all sizes."""
    shared_part = draw.normal(size=(shape[0], 1, shape[2]))
    own_part = draw.normal(size=shape)
    return np.asarray((shared_part + own_part) * math.sqrt(0.5))


def draw_wobbling_noise(draw: np.random.Generator, shape: Shape) -> np.ndarray:
    """All seeds of a size are shifted together by 0.3 sd, which no seed reveals."""
    return draw.normal(size=shape) + 0.3 * draw.normal(size=(*shape[:2], 1))


NOISES: Mapping[str, Noise] = {
    "normal": scale_noise("normal"),
    "noise falls with size": scale_noise("normal", (1, 0.7, 0.5, 0.35)),
    "noise rises with size": scale_noise("normal", (1, 1.4, 2, 2.8)),
    "twice the noise at the largest": scale_noise("normal", (1, 1, 1, 2)),
    "shared seeds": draw_shared_noise,
    "heavy tails": scale_noise("heavy tails"),
    "skewed": scale_noise("skewed"),
    "shift for each size": draw_wobbling_noise,
}
TRUTHS: Mapping[str, tuple[float, float, float, float]] = {  # the effect at each size, in margins
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


def list_true_verdicts(truth: Sequence[float]) -> set[str]:
    """The verdicts that a truth in margins does not contradict, by their definitions in `scaling_verdict`."""
    bottom = truth[0]
    top = truth[-1]
    verdicts = {"INCONCLUSIVE"}
    verdicts |= {"HOLDS"} if abs(top - bottom) < 1 else set()
    verdicts |= {"FLIPS"} if bottom * top < 0 else set()
    verdicts |= {"GROWS"} if abs(top) > abs(bottom) else set()
    return verdicts | ({"SHRINKS"} if abs(top) < abs(bottom) else set())


def draw_ladders(
    noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int = LADDERS
) -> LadderSample:
    """Simulated ladders of a noise and a truth, from their own random stream."""
    values = _values(noise, truth, seeds, margin, ladders)
    values_by_size = [values[:, index, :n] for index, n in enumerate(seeds)]
    means = np.stack([size_values.mean(1) for size_values in values_by_size], -1)
    variances = np.stack([size_values.var(1, ddof=1) for size_values in values_by_size], -1)
    return LadderSample(STEP * np.arange(len(seeds)), np.array(seeds), means, variances)


def draw_stopped_ladders(
    noise: str,
    truth: str,
    seeds: Sequence[int],
    margin: float,
    ladders: int = LADDERS,
    *,
    threshold: float = 1.0,
) -> LadderSample:
    """`draw_ladders`, with each size stopped at the analysis of `LOOKS` that decides a claim about it.

    Args:
        threshold: That of the claim, in margins.
    """
    values = _values(noise, truth, seeds, margin, ladders)
    n, means, variances = (np.zeros((ladders, len(seeds))) for _ in range(3))
    for index, last in enumerate(seeds):
        analyses = (*(analysis for analysis in LOOKS if analysis < last), last)
        goes_on = np.ones(ladders, bool)
        for number, count in enumerate(analyses):
            mean = values[:, index, :count].mean(1)
            variance = values[:, index, :count].var(1, ddof=1)
            for target, current in ((n, count), (means, mean), (variances, variance)):
                target[:, index] = np.where(goes_on, current, target[:, index])
            critical = GroupSequential(analyses, number).critical_value(count, 0.05)
            goes_on &= np.abs(mean - threshold * margin) < critical * np.sqrt(variance / count)
    return LadderSample(STEP * np.arange(len(seeds)), n, means, variances)


def _values(noise: str, truth: str, seeds: Sequence[int], margin: float, ladders: int) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(f"{noise}: {truth}, {seeds}".encode()))
    values = NOISES[noise](rng, (ladders, len(seeds), max(seeds)))
    return np.asarray(values + margin * np.array(TRUTHS[truth])[:, None])


Draw = Callable[[str, str, Sequence[int], float, int], LadderSample]


def measure_verdict_rates(
    noise: str,
    truth: str,
    seeds: Sequence[int],
    margin: float,
    ladders: int = LADDERS,
    draw: Draw = draw_ladders,
) -> dict[str, float]:
    """How often each verdict is given."""
    indices = apply_rule(compute_rule_inputs(draw(noise, truth, seeds, margin, ladders)), margin)
    return {verdict: float((indices == number).mean()) for number, verdict in enumerate(SCALING_VERDICTS)}


def measure_error_rate(
    noise: str,
    truth: str,
    seeds: Sequence[int],
    margin: float,
    ladders: int = LADDERS,
    draw: Draw = draw_ladders,
) -> float:
    """How often a verdict contradicts the truth."""
    rates = measure_verdict_rates(noise, truth, seeds, margin, ladders, draw)
    return sum(rate for verdict, rate in rates.items() if verdict not in list_true_verdicts(TRUTHS[truth]))


def get_max_rate(ladders: int = LADDERS) -> float:
    """The largest rate that may occur by chance: three standard errors above the allowed one."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / ladders)


def format_error_rate(rate: float) -> str:
    """In percent; bold if it is above what chance allows."""
    text = f"{100 * rate:.1f}"
    return f"**{text}**" if rate > get_max_rate() else text


def format_error_table(noise: str, draw: Draw = draw_ladders) -> str:
    lines = []
    for truth in TRUTHS:
        cells = []
        for margin in MARGINS:
            rates = [measure_error_rate(noise, truth, seeds, margin, draw=draw) for seeds in SEEDS]
            cells += map(format_error_rate, rates)
        lines.append(format_cells(truth, *cells))
    heads = [f"{'/'.join(map(str, seeds))}, {margin:g} sd" for margin in MARGINS for seeds in SEEDS]
    return format_table(["truth", *heads], lines)


def format_power_table(margin: float) -> str:
    """With normal noise: every true verdict, and how often it is given."""
    lines = []
    for truth, values in TRUTHS.items():
        for verdict in sorted(list_true_verdicts(values) - {"INCONCLUSIVE"}):
            rates = [measure_verdict_rates("normal", truth, seeds, margin)[verdict] for seeds in SEEDS]
            lines.append(format_cells(truth, verdict, *(f"{100 * share:.0f}" for share in rates)))
    return format_table(["truth", "word", *("/".join(map(str, seeds)) for seeds in SEEDS)], lines)


def measure_coverage(noise: str, seeds: Sequence[int], ladders: int = LADDERS) -> dict[str, float]:
    """How often the 95% intervals contain the truth, which is 0 everywhere."""
    sample = draw_ladders(noise, "no effect", seeds, 1.0, ladders)
    sums: dict[str, WeightedSum] = {
        "slope": sample.compute_weighted_sum(sample.compute_slope_weights()),
        "band at the top": sample.compute_weighted_sum(sample.compute_line_weights(sample.x[-1])),
        "ten times further": sample.compute_weighted_sum(
            sample.compute_line_weights(sample.x[-1] + EXTRAPOLATION_DECADES)
        ),
        "top from the others": compute_holdout_error(sample),
    }
    return {
        name: float((np.abs(weighted_sum.estimate) <= weighted_sum.compute_half_width(0.025)).mean())
        for name, weighted_sum in sums.items()
    }


def format_coverage_table() -> str:
    lines = []
    for noise in NOISES:
        rates_by_seeds = [measure_coverage(noise, seeds) for seeds in SEEDS]
        lines += [
            format_cells(f"{noise}: {name}", *(f"{rates[name]:.1%}" for rates in rates_by_seeds))
            for name in rates_by_seeds[0]
        ]
    return format_table(["interval", *("/".join(map(str, seeds)) for seeds in SEEDS)], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    **{noise.replace(" ", "_"): partial(format_error_table, noise) for noise in NOISES},
    "stopped": partial(format_error_table, "normal", draw_stopped_ladders),
    **{
        f"stopped_{name}": partial(
            format_error_table, "normal", partial(draw_stopped_ladders, threshold=threshold)
        )
        for name, threshold in {"above_0": 0.0, "below_minus_margin": -1.0}.items()
    },
    "powers": lambda: format_power_table(MARGINS[0]),
    "powers_wide": lambda: format_power_table(MARGINS[1]),
    "coverage": format_coverage_table,
}

if __name__ == "__main__":
    page = Path(__file__).with_suffix(".md").read_text("utf-8")
    print(page.format(ladders=f"{LADDERS:,}", **{name: table() for name, table in TABLES.items()}), end="")
