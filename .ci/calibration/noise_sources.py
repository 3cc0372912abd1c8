"""Noise of gqa_vs_mha by source: initialization, data order, the rest, and the sample of validation windows.

Its runs are a grid of initialization seeds and data-order seeds that no experiment may use:

    for i in 0 1 2 3; do for j in 0 1 2 3; do
      python -m attnlab +experiment=gqa_vs_mha 'corpora=[pydocs]' 'arms=[mha,gqa,mqa]' 'unmatched=[]' \
        model.seed=900$i data.seed=900$j seed=$((9000 + 100 * i + j)) looks=null compute_calibration=null \
        margin=0.0181 measure.timing=false measure.maps=0
    done; done

`seed_noise.py` prints the result as the last section of docs/noise.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from crossed_components import FloatArray, estimate_crossed_components, estimate_sampling_error
from window_scores import measure_window_scores

from attnlab.report.number_format import format_number
from attnlab.stats import find_detectable_effect
from attnlab.store import run_directories
from attnlab.store.guards import trust

ARMS = ("mha", "gqa", "mqa")
PAIRS = (("gqa", "mha"), ("mqa", "mha"), ("mqa", "gqa"))  # of the claims about val/loss
METRIC = "val/loss"
FIRST_SEED, LEVELS = 9000, 4
CELL_SEEDS = {
    FIRST_SEED + 100 * row + column: (row, column) for row in range(LEVELS) for column in range(LEVELS)
}
SEED_COUNTS = (2, 4, 8, 16, 22, 32)
POWER, ALPHA = 0.8, 0.05
N_CLAIMS = 3  # that seeds decide; they share alpha
N_ARMS, SLOTS = 4, 2  # of the experiment, and of the machine
DIGITS = 4
NAMES = {"rows": "initialization", "columns": "data order"}


@dataclass
class ArmGrid:
    """Results of an arm: loss [row, column], seconds and folders of its runs."""

    values: FloatArray = field(default_factory=lambda: np.full((LEVELS, LEVELS), np.nan))
    seconds: list[float] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def load_grid(root: Path) -> dict[str, ArmGrid]:
    """Load the finished runs of the grid; a missing run leaves NaN."""
    grids = {arm: ArmGrid() for arm in ARMS}
    for folder in sorted(path.parent for path in root.glob("*/run.json")):
        run_config = run_directories.load_run_config(folder)
        result = run_directories.load_run_result(folder)
        if run_config.seed in CELL_SEEDS and run_config.arm in ARMS and result and result.is_done:
            grid = grids[run_config.arm]
            grid.values[CELL_SEEDS[run_config.seed]] = result.metrics[METRIC]
            grid.seconds.append(result.seconds or 0.0)
            grid.folders.append(folder)
    return grids


def average_windows(grid: ArmGrid) -> tuple[FloatArray, FloatArray]:
    """Score every validation window; return the loss averaged over the runs, and the number of targets."""
    scores = []
    for folder in grid.folders:
        result, run_config = run_directories.load_run_result(folder), run_directories.load_run_config(folder)
        assert result
        trust.require_trusted_objects(result.config, folder / "run.json", run_config.use.user_targets)
        scores.append(measure_window_scores(folder))
    return np.mean([run["loss"] for run in scores], axis=0), np.array(scores[0]["targets"])


def format_sources(
    values: Mapping[str, FloatArray],
    windows: Mapping[str, tuple[FloatArray, FloatArray]],
    seconds: Mapping[str, float],
) -> list[str]:
    """Format the section as blocks of Markdown.

    Args:
        values: loss [initialization, data order] by arm.
        windows: mean loss and targets of each window, by arm.
        seconds: mean training time of a run, by arm.
    """
    rows, notes = [], []
    sds: dict[str, float] = {}
    for pair in (*((arm,) for arm in ARMS), *PAIRS):
        name = " − ".join(pair)
        arm, *against = pair
        combined = values[arm] - sum(values[other] for other in against)
        sums = windows[arm][0] - sum(windows[other][0] for other in against)
        parts = estimate_crossed_components(combined)
        low, high = parts.compute_sd_interval()
        cells = (math.sqrt(parts.rows), math.sqrt(parts.columns), math.sqrt(parts.rest), parts.sd)
        rows.append(
            [
                name,
                format_number(parts.mean, DIGITS, sign=bool(against)),
                *(f"{cell:.{DIGITS}f}" for cell in cells),
                f"[{low:.{DIGITS}f}, {high:.{DIGITS}f}]",
                f"{estimate_sampling_error(sums, windows[arm][1]):.{DIGITS}f}",
            ]
        )
        if parts.truncated:
            names = " and ".join(NAMES[source] for source in parts.truncated)
            notes.append(f"{name}: the estimated variance of {names} is negative, and shown as 0.")
        sds |= {name: parts.sd} if against else {}
    minutes = float(np.mean([*seconds.values()])) * N_ARMS / SLOTS / 60
    effects = [
        [str(n), f"{n * minutes:.1f}"]
        + [
            f"{find_detectable_effect(n, POWER, ALPHA) * sd:.{DIGITS}f} "
            f"({find_detectable_effect(n, POWER, ALPHA / N_CLAIMS) * sd:.{DIGITS}f})"
            for sd in sds.values()
        ]
        for n in SEED_COUNTS
    ]
    times = ", ".join(f"{arm} {value:.1f} s" for arm, value in seconds.items())
    return [
        "### Noise of gqa_vs_mha at size S",
        f"Standard deviations of {METRIC} (nats) from {LEVELS} initialization seeds, each with {LEVELS} "
        "data-order seeds. `all` is the standard deviation of one run, with its 95% interval. `evaluation` "
        "is the standard error over the validation windows; more seeds do not lower it, and claims are about "
        "these windows.",
        format_aligned_table(["", "mean", *NAMES.values(), "rest", "all", "95% CI", "evaluation"], rows),
        *notes,
        f"The smallest effect that a t test of paired seeds detects with {POWER:.0%} power, in one analysis "
        f"after all seeds: at a two-sided alpha of {ALPHA:g}, and in parentheses at {ALPHA:g}/{N_CLAIMS}, "
        f"the first Holm step of {N_CLAIMS} claims.",
        format_aligned_table(["seeds", "minutes", *sds], effects),
        f"Minutes are for all arms of the experiment on {SLOTS} slots, at these mean times of a run: "
        f"{times}.",
    ]


def format_aligned_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        for cells in (headings, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def describe_sources(root: Path) -> list[str]:
    """Describe the finished grid below a folder of runs; no block if a run of it is missing."""
    grids = load_grid(root)
    if any(np.isnan(grid.values).any() for grid in grids.values()):
        return []
    return format_sources(
        {arm: grid.values for arm, grid in grids.items()},
        {arm: average_windows(grid) for arm, grid in grids.items()},
        {arm: float(np.mean(grid.seconds)) for arm, grid in grids.items()},
    )
