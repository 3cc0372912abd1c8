"""Seeds per verdict of gqa_vs_mha: gain and bias of estimators that could need fewer seeds.

Reads the runs of the three arms on 64 reserved seeds and prints docs/noise.md:

    python -m attnlab +experiment=gqa_vs_mha 'seed=range(7000,7064)' 'arms=[mha,gqa,mqa]' 'unmatched=[]' \
      'corpora=[pydocs]' looks=null compute_calibration=null margin=0.0181 measure.timing=false \
      measure.maps=0 measure.every=25
    python .ci/calibration/seed_noise.py runs > docs/noise.md

after the runs that `noise_sources.py` names.

Samples are drawn with replacement, so that the mean over the reserved seeds is the true effect.
"""

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import calibration
import noise_sources
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats as distributions

from attnlab.store import run_directories

RESERVED_SEEDS = range(7000, 7064)
ARMS = ("mha", "gqa", "mqa")
PAIRS = (("gqa", "mha"), ("mqa", "mha"))
STEPS = 400
EARLY_STEPS = (50, 100, 200, 300, 350)
FLAGSHIP_SEEDS, FLAGSHIP_MINUTES = 22, 6.0
SAMPLE_SIZES = (3, 4, 6, 8, 12, 16, 22)
REQUIRED_GAIN = 1.3
DRAWS = 20_000
BOOTSTRAPS = 2_000
LEVEL = 0.95
FloatArray = NDArray[np.float64]


def load_losses(root: Path) -> dict[int, FloatArray]:
    """Return val/loss [arm, seed] by step, over the reserved seeds that finished in all arms."""
    losses: dict[tuple[str, int], dict[int, float]] = {}
    for folder in sorted(path.parent for path in root.glob("*/run.json")):
        run_config = run_directories.load_run_config(folder)
        result = run_directories.load_run_result(folder)
        if not result or not result.is_done or run_config.seed not in RESERVED_SEEDS:
            continue
        table = pq.read_table(folder / "curves.parquet").to_pylist()
        curve = {row["step"]: row["value"] for row in table if row["name"] == "val/loss"}
        losses[run_config.arm, run_config.seed] = curve
    seeds = [seed for seed in RESERVED_SEEDS if all((arm, seed) in losses for arm in ARMS)]
    return {
        step: np.array([[losses[arm, seed][step] for seed in seeds] for arm in ARMS])
        for step in (*EARLY_STEPS, STEPS)
    }


def subtract(losses: FloatArray, pair: tuple[str, str]) -> FloatArray:
    """Return the paired differences [seed] of two arms."""
    arm, against = (ARMS.index(name) for name in pair)
    return losses[arm] - losses[against]


def compute_gain(squared_correlation: float, cost: float) -> float:
    """Variance ratio at equal cost of plain pairs to double sampling at the best mix of long and short pairs.

    With n long pairs among m, each short pair at `cost` of a long one, the variance is
    sd^2 ((1 - r^2) / n + r^2 / m) at a cost of n (1 - cost) + m cost (Cochran 1977, section 12.6). With too
    small an r^2 the best mix has no short pairs, and the gain is 1.
    """
    if squared_correlation <= cost:
        return 1.0
    root = math.sqrt((1 - squared_correlation) * (1 - cost)) + math.sqrt(squared_correlation * cost)
    return 1 / root**2


def fit_r_squared(response: FloatArray, covariates: FloatArray) -> float:
    """R^2 of a regression on covariates [covariate, seed], adjusted for their number; at least 0."""
    design = np.column_stack([np.ones(response.size), *covariates])
    residuals = response - design @ np.linalg.lstsq(design, response, rcond=None)[0]
    df = response.size - design.shape[1]
    return max(0.0, 1 - float((residuals**2).sum() / df) / float(response.var(ddof=1)))


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def draw_indices(n_seeds: int, n: int, draws: int = DRAWS) -> NDArray[np.int64]:
    """Draw [draws, n] indices of seeds with replacement, the same in each call."""
    return np.random.default_rng(n).integers(n_seeds, size=(draws, n))


def measure_intervals(final: FloatArray, pair: tuple[str, str], n: int) -> tuple[float, float, float, float]:
    """Coverage of the 95% interval and mean squared width, of plain and of pooled intervals of n seeds.

    The pooled variance of a difference is twice the residual mean square of arms and seeds.
    """
    samples = final[:, draw_indices(final.shape[1], n)]  # [arm, draw, seed]
    differences = subtract(samples, pair)
    means = differences.mean(-1)
    centered = samples - samples.mean(-1, keepdims=True)
    residuals = centered - centered.mean(0)
    df = (len(ARMS) - 1) * (n - 1)
    variances = (differences.var(-1, ddof=1), 2 * (residuals**2).sum((0, -1)) / df)
    truth = subtract(final, pair).mean()
    results: list[float] = []
    for variance, freedom in zip(variances, (n - 1, df), strict=True):
        half = distributions.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance / n)
        results += [float((abs(means - truth) <= half).mean()), float((half**2).mean())]
    return results[0], results[1], results[2], results[3]


def compare_variances(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Ratio of two variances of paired values, and the p-value of their equality (Pitman 1939)."""
    ratio = float(first.var(ddof=1) / second.var(ddof=1))
    return ratio, float(distributions.pearsonr(first + second, first - second).pvalue)


def simulate_double_sampling(
    final: FloatArray, early: FloatArray, pair: tuple[str, str], cost: float, n_long: int, n_all: int
) -> tuple[float, float, float]:
    """Bias, its standard error, and gain at equal cost of the regression estimate with a fitted slope.

    Each draw has `n_long` pairs trained to the end, among `n_all` of which the early difference is known.
    """
    response, covariate = subtract(final, pair), subtract(early, pair)
    indices = draw_indices(response.size, n_all)
    x, y = covariate[indices], response[indices[:, :n_long]]
    x_long = x[:, :n_long]
    centered = x_long - x_long.mean(1, keepdims=True)
    slopes = (centered * y).sum(1) / (centered**2).sum(1)
    estimates = y.mean(1) + slopes * (x.mean(1) - x_long.mean(1))
    errors = estimates - response.mean()
    plain_pairs = n_long * (1 - cost) + n_all * cost
    gain = float(response.var() / plain_pairs / errors.var())
    return float(errors.mean()), float(errors.std() / math.sqrt(errors.size)), gain


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return calibration.format_table(headings, [calibration.format_cells(*row) for row in rows])


def describe_effects(final: FloatArray) -> str:
    rows = []
    for pair in PAIRS:
        differences = subtract(final, pair)
        n, df = differences.size, differences.size - 1
        variance = differences.var(ddof=1)
        low, high = (math.sqrt(df * variance / distributions.chi2.ppf(q, df)) for q in (0.975, 0.025))
        half = distributions.t.ppf((1 + LEVEL) / 2, df) * math.sqrt(variance / n)
        arms = [final[ARMS.index(arm)] for arm in pair]
        unpaired = sum(arm.var(ddof=1) for arm in arms)
        rows.append(
            [
                " − ".join(pair), f"{differences.mean():+.4f} [{differences.mean() - half:+.4f}, "
                f"{differences.mean() + half:+.4f}]", f"{math.sqrt(variance):.4f} [{low:.4f}, {high:.4f}]",
                f"{unpaired / variance:.2f}", f"{np.corrcoef(arms)[0, 1]:.2f}",
            ]
        )  # fmt: skip
    return format_table(
        ["pair", "Δ val/loss, 95% CI", "sd of a paired difference, 95% CI", "gain of pairing", "correlation"],
        rows,
    )


def describe_pooling(final: FloatArray) -> tuple[str, float]:
    """Describe both intervals; also return the lowest coverage of the pooled one."""
    rows, lowest = [], 1.0
    for pair in PAIRS:
        for n in SAMPLE_SIZES:
            plain_coverage, plain_width, pooled_coverage, pooled_width = measure_intervals(final, pair, n)
            lowest = min(lowest, pooled_coverage)
            rows.append(
                [
                    " − ".join(pair), str(n), f"{plain_coverage:.1%}", f"{pooled_coverage:.1%}",
                    f"{plain_width / pooled_width:.2f}",
                    f"{compute_pooling_gain(n):.2f}",
                ]
            )  # fmt: skip
    headings = ["pair", "seeds", "coverage, plain", "coverage, pooled", "gain", "gain at equal variances"]
    return format_table(headings, rows), lowest


def compute_pooling_gain(n: int) -> float:
    """Ratio of the mean squared widths of both intervals where all differences have one variance."""
    plain, pooled = (distributions.t.ppf((1 + LEVEL) / 2, factor * (n - 1)) for factor in (1, len(ARMS) - 1))
    return float((plain / pooled) ** 2)


def count_pooled_seeds() -> int:
    """Count the seeds whose pooled interval is as short, on average, as the plain one of the flagship."""
    target = distributions.t.ppf((1 + LEVEL) / 2, FLAGSHIP_SEEDS - 1) ** 2 / FLAGSHIP_SEEDS
    return next(
        n
        for n in range(2, FLAGSHIP_SEEDS + 1)
        if distributions.t.ppf((1 + LEVEL) / 2, (len(ARMS) - 1) * (n - 1)) ** 2 / n <= target
    )


def measure_covariates(
    losses: dict[int, FloatArray], pair: tuple[str, str], indices: NDArray[np.int64] | slice
) -> list[tuple[str, str, float, float]]:
    """List covariate, its time, R^2 of the final difference on it, and its cost relative to a pair."""
    arms = [ARMS.index(name) for name in pair]
    final = losses[STEPS][:, indices]
    response = subtract(final, pair)
    results = []
    for step in EARLY_STEPS:
        early = losses[step][:, indices]
        cost = step / STEPS
        time = f"{cost:.1%}"
        results += [
            ("difference", time, fit_r_squared(response, subtract(early, pair)[None]), cost),
            ("losses of both arms", time, fit_r_squared(response, early[arms]), cost),
            ("loss of the baseline", time, fit_r_squared(response, early[arms[1:]]), cost / 2),
        ]
    results.append(("loss of the baseline", "100%", fit_r_squared(response, final[arms[1:]]), 0.5))
    return results


def describe_covariates(losses: dict[int, FloatArray], n_seeds: int) -> tuple[str, float]:
    """Describe all covariates; also return the largest gain at equal cost."""
    rows, best = [], 1.0
    resamples = draw_indices(n_seeds, n_seeds, BOOTSTRAPS)
    for pair in PAIRS:
        gains = [
            [
                compute_gain(r_squared, cost)
                for _, _, r_squared, cost in measure_covariates(losses, pair, drawn)
            ]
            for drawn in resamples
        ]
        for i, (name, time, r_squared, cost) in enumerate(measure_covariates(losses, pair, slice(None))):
            gain = compute_gain(r_squared, cost)
            low, high = bootstrap_interval([drawn[i] for drawn in gains])
            best = max(best, gain)
            rows.append(
                [
                    " − ".join(pair), name, time, f"{r_squared:.2f}", f"{1 / (1 - r_squared):.2f}",
                    f"{gain:.2f} [{low:.2f}, {high:.2f}]",
                ]
            )  # fmt: skip
    headings = ["pair", "covariate", "of training", "R²", "gain if its mean were known",
                "gain at equal cost, 95% CI"]  # fmt: skip
    return format_table(headings, rows), best


def describe_biases(losses: dict[int, FloatArray]) -> str:
    rows = []
    for pair in PAIRS:
        response = subtract(losses[STEPS], pair)
        for step in EARLY_STEPS:
            covariate = subtract(losses[step], pair)
            slope, r = np.polyfit(covariate, response, 1)[0], np.corrcoef(covariate, response)[0, 1]
            standard_error = abs(slope) * covariate.std(ddof=1) / math.sqrt(covariate.size)
            bias = -slope * covariate.mean()
            cost = step / STEPS
            simulated = simulate_double_sampling(losses[STEPS], losses[step], pair, cost, 12, 48)
            rows.append(
                [
                    " − ".join(pair), f"{cost:.1%}", f"{covariate.mean():+.4f}", f"{r:+.2f}",
                    f"{bias:+.4f} ± {1.96 * standard_error:.4f}", f"{1 / (1 - r * r):.2f}",
                    f"{simulated[0]:+.4f} ± {1.96 * simulated[1]:.4f}", f"{simulated[2]:.2f}",
                ]
            )  # fmt: skip
    headings = ["pair", "of training", "mean early Δ", "correlation", "bias of adjustment to zero",
                "its gain", "bias of double sampling", "its gain at equal cost"]  # fmt: skip
    return format_table(headings, rows)


def format_page(losses: dict[int, FloatArray], sources: Sequence[str]) -> str:
    """Format docs/noise.md; `sources` are the blocks of its last section."""
    final = losses[STEPS]
    n_seeds = final.shape[1]
    ratio, p_value = compare_variances(*(subtract(final, pair) for pair in PAIRS))
    pooling, lowest_coverage = describe_pooling(final)
    covariates, best = describe_covariates(losses, n_seeds)
    pooled_seeds = count_pooled_seeds()
    adopted = best >= REQUIRED_GAIN
    minutes = FLAGSHIP_MINUTES / FLAGSHIP_SEEDS
    verdicts = [
        ["plain paired difference", "1.00", "0", str(FLAGSHIP_SEEDS), f"{FLAGSHIP_MINUTES:.1f}"],
        ["pooled variance", f"{compute_pooling_gain(FLAGSHIP_SEEDS):.2f}", "of the interval only",
         str(pooled_seeds), f"{pooled_seeds * minutes:.1f}"],
        ["adjustment to the sample mean of early losses", "1.00", "0", str(FLAGSHIP_SEEDS),
         f"{FLAGSHIP_MINUTES:.1f}"],
        ["double sampling of early losses, best covariate", f"{best:.2f}", "0 at a fixed slope",
         f"{FLAGSHIP_SEEDS / best:.1f} in cost", f"{FLAGSHIP_MINUTES / best:.1f}"],
    ]  # fmt: skip
    conclusion = (
        f"A gain of {REQUIRED_GAIN} would be worth adopting, and double sampling exceeds it for its best "
        "covariate. That covariate was selected on these seeds, and the interval of its gain includes 1, so "
        "attnlab adopts none before a test on other seeds: a verdict still rests on the plain paired "
        "difference."
        if adopted
        else f"A gain of {REQUIRED_GAIN} would be worth adopting. No estimator of the same effect reaches it "
        f"at {FLAGSHIP_SEEDS} seeds: a verdict still rests on the plain paired difference."
    )
    blocks = [
        "# Noise and seeds per verdict",
        f"This page shows whether gqa_vs_mha could decide with fewer seeds. Its data are seeds "
        f"{RESERVED_SEEDS[0]} to {RESERVED_SEEDS[-1]} ({n_seeds} of {len(RESERVED_SEEDS)} finished), in "
        "three arms, at size S on the first corpus. These seeds are reserved: no experiment may use them. "
        "`.ci/calibration/seed_noise.py` names the commands that reproduce the page.",
        "## Result",
        format_table(["estimator", "gain", "bias", "seeds", "minutes"], verdicts),
        f"The gain is the ratio of variances at equal cost; of the pooled variance, the ratio of the mean "
        f"squared widths of intervals at {FLAGSHIP_SEEDS} seeds. Seeds and minutes are those that match the "
        f"precision of {FLAGSHIP_SEEDS} seeds in {FLAGSHIP_MINUTES:g} minutes, the time on an idle machine; "
        f"the last table has the times of this study. {conclusion}",
        "Averaging weights or validations, and a lower peak learning rate, also lower the variance. They "
        "change the model or the metric that a claim is about, so they are recipes of their own, not "
        "estimators, and need a learning-rate search of their own.",
        "## Paired differences",
        describe_effects(final),
        "The gain of pairing is the variance of a difference between independent runs over that of runs with "
        "the same seed.",
        "## Pooled variance",
        f"All differences share one variance, estimated from the residuals of {len(ARMS)} arms. The estimate "
        f"of the effect is the same; its interval has {len(ARMS) - 1} times the degrees of freedom. The "
        f"variance of {' − '.join(PAIRS[0])} is {ratio:.2f} times that of {' − '.join(PAIRS[1])} "
        f"(p = {p_value:.2g}, Pitman's test). The nominal coverage is {LEVEL:.0%}; the lowest coverage of a "
        f"pooled interval is {lowest_coverage:.1%}. At equal variances it gains {REQUIRED_GAIN} only up to "
        f"{max(n for n in range(2, FLAGSHIP_SEEDS) if compute_pooling_gain(n) >= REQUIRED_GAIN)} seeds.",
        pooling,
        "## Early losses as control variates",
        "The first table has the gain of double sampling: pairs trained to the end, and more pairs that "
        "stop early and estimate the mean of the covariate. Their cost counts. The additional baseline runs "
        "of the last covariate train to the end. With R² below the cost of the covariate, the best number "
        "of early pairs is none. Intervals are from a bootstrap over seeds.",
        covariates,
        "Adjustment to a mean early difference of zero has no such cost, but the arm itself changes the "
        "early loss: the estimate is biased by the slope times the mean early difference. Adjustment to the "
        "mean early difference of the same seeds changes nothing, so its gain is 1. Double sampling is "
        "simulated with 12 long pairs among 48 and a slope fitted to the 12.",
        describe_biases(losses),
    ]
    if sources:
        blocks += ["## Sources of noise", *sources]
    return re.sub(r"(?<![\w`.-])-(?=\d)", "−", "\n\n".join(blocks)) + "\n"


def main(arguments: Sequence[str]) -> None:
    root = Path(arguments[0])
    print(format_page(load_losses(root), noise_sources.describe_sources(root)), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
