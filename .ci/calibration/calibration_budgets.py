"""Error rates of budget verdicts where the truth is known, and how often a true one is given.

`make calibration` writes `docs/calibration_budgets.md` with it. It draws trajectories of differences, one per
seed, on which `apply_budget_rule` decides, as in a report. Each cell has its own random stream and can be
drawn alone.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import calibration
import numpy as np
from calibration import format_cells, format_table
from calibration_ladders import LADDERS, format_error_rate

from attnlab.report.ladder_schema import load_ladder
from attnlab.report.number_format import format_number
from attnlab.stats.replications.budget_verdict import (
    BUDGET_VERDICTS,
    PERSISTS,
    SAME_PLATEAU,
    apply_budget_rule,
)
from attnlab.stats.replications.scaling_verdict import GROWS, INCONCLUSIVE

BUDGETS = (1, 2, 4, 8)
SEEDS = 4, 8, 16
MARGINS = 1.65, 3.0  # in sd of a seed's difference at the smallest budget
MEASURED = {"gate": "output_gate@tokens_code"}  # arm -> the ladder that compares it with its baseline
REFERENCES = Path(__file__).parents[2] / "reports" / "reference"


def correlate_budgets(correlation: float, spreads: Sequence[float] = (1, 1, 1, 1)) -> np.ndarray:
    """Noise with this correlation between any two budgets of a seed and these sd.

    It is returned as loadings [budgets, parts]: weights of independent parts with variance 1.
    """
    shared = np.full((len(BUDGETS), 1), math.sqrt(correlation))
    return np.array(spreads)[:, None] * np.hstack([shared, math.sqrt(1 - correlation) * np.eye(len(BUDGETS))])


def read_differences(arm: str) -> np.ndarray:
    """The differences [seeds, budgets] of an arm of `MEASURED`."""
    comparisons = load_ladder(REFERENCES / MEASURED[arm]).comparisons
    [effects] = [row.effects for row in comparisons if row.arm == arm]
    return np.array([effect.differences for effect in effects]).T


def measure_loadings(arm: str) -> np.ndarray:
    """Loadings with the covariance of an arm of `MEASURED`, in sd of its smallest budget."""
    covariance = np.cov(read_differences(arm), rowvar=False)
    return np.linalg.cholesky(covariance / covariance[0, 0])


@dataclass(frozen=True)
class Noise:
    """Loadings [budgets, parts] and the distribution of the parts."""

    loadings: np.ndarray
    distribution: str = "normal"


ASSUMED: Mapping[str, Noise] = {
    "independent": Noise(correlate_budgets(0)),
    "correlated": Noise(correlate_budgets(0.5)),
    "closely correlated": Noise(correlate_budgets(0.9)),
    "quieter": Noise(correlate_budgets(0.5, (1, 0.8, 0.6, 0.5))),
    "heavy tails": Noise(correlate_budgets(0.5), "heavy tails"),
    "skewed": Noise(correlate_budgets(0.5), "skewed"),
}
NOISES: Mapping[str, Noise] = {
    **ASSUMED,
    **{f"measured {arm}": Noise(measure_loadings(arm)) for arm in MEASURED},
}
TRUTHS: Mapping[str, tuple[float, float, float, float]] = {  # the effect at each budget, in margins
    "no effect": (0, 0, 0, 0),
    "the margin everywhere": (1, 1, 1, 1),
    "shrinks to the margin": (3, 2, 1.5, 1),
    "shrinks to 0": (3, 1.5, 0.5, 0),
    "shrinks to twice the margin": (4, 3, 2.5, 2),
    "twice the margin everywhere": (2, 2, 2, 2),
    "grows to the margin": (0, 0.5, 0.8, 1),
    "grows to three margins": (1, 1.7, 2.4, 3),
    "through 0": (-2, -0.7, 0.7, 2),
}


# The probability that a run has learned a task by each budget. A run that has not is 20 margins behind.
LEARNED: Mapping[str, tuple[float, float, float, float]] = {
    "half learn by the largest": (0, 0.1, 0.3, 0.5),
    "nine of ten learn by the largest": (0, 0.3, 0.6, 0.9),
    "99 of 100 learn by the largest": (0, 0.5, 0.9, 0.99),
    "all learn by the third": (0, 0.5, 1, 1),
}
MARGINS_BEHIND = 20.0


def list_true_verdicts(truth: tuple[float, ...]) -> set[str]:
    """The verdicts that a truth in margins does not contradict, by their definitions in `budget_verdict`."""
    first, last = truth[0], truth[-1]
    verdicts = {INCONCLUSIVE}
    verdicts |= {SAME_PLATEAU} if 0 < abs(first) > abs(last) < 1 else set()
    verdicts |= {PERSISTS} if abs(last) > 1 and first * last > 0 else set()
    verdicts |= (
        {GROWS} if abs(last) > 1 and (last - first) * last > 0 and first * np.sign(last) > -1 else set()
    )
    return verdicts


def draw_trajectories(
    noise: str, truth: str, seeds: int, margin: float, ladders: int = LADDERS
) -> np.ndarray:
    """Trajectories [ladders, seeds, budgets] of a noise and a truth, from their own random stream."""
    loadings, distribution = NOISES[noise].loadings, NOISES[noise].distribution
    rng = np.random.default_rng(zlib.crc32(f"budgets {noise}: {truth}, {seeds}, {margin}".encode()))
    n_parts = loadings.shape[1]
    flat = calibration.NOISES[distribution](rng, (ladders * n_parts, seeds))
    parts = flat.reshape(ladders, n_parts, seeds).transpose(0, 2, 1)
    return np.asarray(parts @ loadings.T + margin * np.array(TRUTHS[truth]))


def measure_verdict_rates(
    noise: str, truth: str, seeds: int, margin: float, ladders: int = LADDERS
) -> dict[str, float]:
    """How often each verdict is given."""
    trajectories = draw_trajectories(noise, truth, seeds, margin, ladders)
    indices = apply_budget_rule(np.log2(BUDGETS), trajectories, margin)
    return {verdict: float((indices == number).mean()) for number, verdict in enumerate(BUDGET_VERDICTS)}


def format_rate_table(noise: str, margins: Sequence[float] = MARGINS) -> str:
    """Per truth: the rate of wrong words, and that of each true word, by seeds and margin."""
    lines = []
    for truth, values in TRUTHS.items():
        true_verdicts = list_true_verdicts(values)
        columns = [
            measure_verdict_rates(noise, truth, seeds, margin) for margin in margins for seeds in SEEDS
        ]
        errors = [
            sum(rate for verdict, rate in rates.items() if verdict not in true_verdicts) for rates in columns
        ]
        lines.append(format_cells(truth, "wrong", *map(format_error_rate, errors)))
        lines += [
            format_cells(truth, verdict, *(f"{100 * rates[verdict]:.0f}" for rates in columns))
            for verdict in BUDGET_VERDICTS[1:]
            if verdict in true_verdicts
        ]
    heads = [f"{seeds} seeds, {margin:.3g} sd" for margin in margins for seeds in SEEDS]
    return format_table(["truth", "word", *heads], lines)


def format_learning_table() -> str:
    """As `format_rate_table`, of runs that learn a task at some budget, and keep it, or do not.

    Within both groups the sd is a tenth of the margin.
    """
    lines = []
    for truth, learned in LEARNED.items():
        true_verdicts = list_true_verdicts(tuple(MARGINS_BEHIND * (1 - rate) for rate in learned))
        columns = []
        for seeds in SEEDS:
            rng = np.random.default_rng(zlib.crc32(f"budgets that learn: {truth}, {seeds}".encode()))
            has_learned = rng.random((LADDERS, seeds, 1)) < np.array(learned)
            noise = 0.1 * rng.standard_normal(has_learned.shape)
            indices = apply_budget_rule(np.log2(BUDGETS), noise + MARGINS_BEHIND * ~has_learned, 1.0)
            columns.append([float((indices == number).mean()) for number in range(len(BUDGET_VERDICTS))])
        for number, verdict in enumerate(BUDGET_VERDICTS):
            rates = [column[number] for column in columns]
            if verdict in true_verdicts:
                lines.append(format_cells(truth, verdict, *(f"{100 * rate:.0f}" for rate in rates)))
            elif any(rates):
                lines.append(format_cells(truth, f"{verdict} (wrong)", *map(format_error_rate, rates)))
    return format_table(["truth", "word", *(f"{seeds} seeds" for seeds in SEEDS)], lines)


def format_measured_noise(arm: str) -> str:
    """The sd of an arm's differences at each budget, and the correlations between budgets."""
    differences = read_differences(arm)
    names = [f"{budget}x" for budget in BUDGETS]
    rows = [
        format_cells(name, f"{sd:.4f}", *(format_number(float(value), 2) for value in correlations))
        for name, sd, correlations in zip(
            names, differences.std(0, ddof=1), np.corrcoef(differences, rowvar=False), strict=True
        )
    ]
    return format_table(["budget", "sd", *(f"correlation with {name}" for name in names)], rows)


def format_measured_rates(arm: str) -> str:
    """`format_rate_table` with the margin of the ladder, and with 1.65 sd."""
    margin = load_ladder(REFERENCES / MEASURED[arm]).margin
    own_margin = float(margin / read_differences(arm)[:, 0].std(ddof=1))
    return format_rate_table(f"measured {arm}", (own_margin, MARGINS[0]))


TABLES: Mapping[str, Callable[[], str]] = {
    **{noise.replace(" ", "_"): partial(format_rate_table, noise) for noise in ASSUMED},
    **{f"measured_{arm}": partial(format_measured_rates, arm) for arm in MEASURED},
    **{f"noise_of_{arm}": partial(format_measured_noise, arm) for arm in MEASURED},
    "learning": format_learning_table,
}

if __name__ == "__main__":
    page = Path(__file__).with_suffix(".md").read_text("utf-8")
    print(page.format(ladders=f"{LADDERS:,}", **{name: table() for name, table in TABLES.items()}), end="")
