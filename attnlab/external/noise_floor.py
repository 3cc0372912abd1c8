"""The smallest difference that a number of runs can show, from repeated runs of one configuration."""

import statistics
from collections.abc import Sequence
from typing import Any

from attnlab import stats
from attnlab.errors import InvalidConfig
from attnlab.external.result_files import ExternalRun

RUNS_PER_SIDE = (2, 3, 5, 7, 10, 20, 40)
POWER, ALPHA = 0.8, 0.05


def measure_noise_floor(
    runs: Sequence[ExternalRun],
    metric: str,
    how: str,
    margin: float | None = None,
    lower_is_better: bool | None = None,
) -> dict[str, Any]:
    """Noise between runs, and the differences that two groups of runs detect with 80% power at 5%, two-sided.

    The test is Student's t between independent groups. Pairs that share a seed may detect less; the gain of
    pairing takes both arms to measure.

    Args:
        runs: Runs of one configuration that differ in their seed alone.
        how: Reduction of each run to one number (`ExternalRun.reduce`).
        margin: A difference; the answer has the runs per side that detect it.
        lower_is_better: Of the metric; needed for the best value of a run.

    Raises:
        InvalidConfig: fewer than two finished runs, runs of unequal length, or all values equal.
    """
    finished = [run for run in runs if run.status == "done"]
    if len(finished) < 2:
        raise InvalidConfig(
            f"--noise: {len(finished)} finished {'run' if len(finished) == 1 else 'runs'}; the noise between "
            "runs takes at least two"
        )
    require_equal_steps(finished, how)
    values = [run.reduce(how, lower_is_better) for run in finished]
    mean, sd = statistics.mean(values), statistics.stdev(values)
    if stats.is_rounding_error(sd, values):
        raise InvalidConfig(
            f"--noise: all {len(values)} runs have {metric}={values[0]:g}: they are one run, or rounded "
            "too much"
        )
    low, high = stats.estimate_sd_bounds(sd, len(values))
    rows = []
    for n in sorted({*RUNS_PER_SIDE, len(values)}):
        effect = stats.find_detectable_group_effect(n, POWER, ALPHA)
        rows.append(
            {"runs_per_side": n, "difference": effect * sd, "low": effect * low, "high": effect * high}
        )
    needed = None
    if margin is not None:
        needed = stats.find_group_seeds_needed(margin / sd, POWER, ALPHA)
    return {
        "metric": metric,
        "reduce": how,
        "optimistic": how == "best",  # the best of several values is better than the run
        "runs": len(values),
        "diverged": sum(run.status == "diverged" for run in runs),
        "missing": sum(run.status == "missing" for run in runs),
        "mean": mean,
        "sd": sd,
        "sd_interval": {"low": low, "high": high, "level": 0.9},
        "power": POWER,
        "alpha": ALPHA,
        "detectable": rows,
        "margin": margin,
        "runs_per_side_for_margin": needed,
    }


def format_noise_floor(noise: dict[str, Any]) -> list[str]:
    """The noise floor as lines of text, with a column for each number of runs per side."""
    failed = [f"{noise[word]} {word}" for word in ("diverged", "missing") if noise[word]]
    metric, count = noise["metric"], noise["runs"]
    metric += " (best of each run, which is optimistic)" if noise["optimistic"] else ""
    low, high = (f"{noise['sd_interval'][end]:.3g}" for end in ("low", "high"))
    rows = {"runs": "runs_per_side", "shown": "difference", "at low": "low", "at high": "high"}
    lines = [
        f"{', '.join([f'{metric} of {count} runs', *failed])}: mean "
        f"{noise['mean']:.6g}, standard deviation {noise['sd']:.3g}, 90% interval [{low}, {high}]",
        f"runs per side, and the difference that they show with {noise['power']:.0%} power:",
        *(
            f"{label:7}" + "".join(f"{row[key]:9.3g}" for row in noise["detectable"])
            for label, key in rows.items()
        ),
    ]
    if noise["margin"] is not None:
        needed = noise["runs_per_side_for_margin"]
        lines.append(
            f"{needed or 'more than 10,000'} runs per side show a difference of {noise['margin']:g}."
        )
    return lines


def require_equal_steps(runs: Sequence[ExternalRun], how: str) -> None:
    """Check that a reduction reads evaluations at the same steps in all runs.

    Raises:
        InvalidConfig: two runs differ in these steps, or in what their axis counts.
    """
    first = runs[0]
    spans = [tuple(run.select_reduced(how, run.steps)) for run in runs]
    for run, span in zip(runs, spans, strict=True):
        if run.axis != first.axis:
            axes = [f"by {each.axis}" if each.axis else "without an axis" for each in (run, first)]
            raise InvalidConfig(
                f"{run.place}: evaluations {axes[0]}, and {first.place} {axes[1]}: give both sides one axis"
            )
        if span != spans[0]:
            texts = [_describe_span(each) for each in (span, spans[0])]
            raise InvalidConfig(
                f"{run.place}: --reduce {how} reads {texts[0]}, and in {first.place} {texts[1]}: compare "
                "runs of equal length, evaluated at the same steps"
            )


def _describe_span(steps: Sequence[int]) -> str:
    return (
        f"step {steps[0]:,}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]:,} to {steps[-1]:,}"
    )
