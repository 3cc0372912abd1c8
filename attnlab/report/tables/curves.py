"""Learning curves as measured: every seed, the mean, and the paired difference to the baseline, unsmoothed.

Long curves keep every k-th point on the page, which states k; curves.parquet next to the report has all.
"""

from collections.abc import Collection, Sequence

from attnlab.report.schema import (
    ArmPositionLosses,
    CurveLine,
    CurvesSection,
    MeanCurve,
    PositionLosses,
    average_lines,
)
from attnlab.report.verdicts.results import Run, SweepResults

MAX_POINTS = 160  # points of one line on the page


def _get_curve(run: Run, name: str) -> dict[int, float]:
    """Return tokens -> value of one curve of a run."""
    if run.curves is None:
        return {}
    table = run.curves.to_pydict()
    return {
        t: v
        for t, n, v in zip(table["tokens"], table["name"], table["value"], strict=True)
        if n == name and v == v
    }


def _thin_points(tokens: list[int]) -> tuple[list[int], int]:
    step = -(-len(tokens) // MAX_POINTS) or 1
    thinned = tokens[::step]
    return (thinned if not tokens or thinned[-1] == tokens[-1] else [*thinned, tokens[-1]]), step


def _round_value(value: float) -> float:
    """Six significant digits, far below the noise between runs: curves are much of a stored report."""
    return float(f"{value:.6g}")


def _average_and_round(lines: Sequence[CurveLine]) -> list[MeanCurve]:
    return [
        mean.model_copy(update={"values": [_round_value(value) for value in mean.values]})
        for mean in average_lines(lines)
    ]


def build_curves(sweep: SweepResults, incomparable_arms: Collection[str] = ()) -> CurvesSection | None:
    """Build the curves of the primary metric, else of the first measured metric with a curve, else of any.

    None without a curve.
    """
    tables = [run.curves for run in sweep.planned_runs if run.curves is not None]
    names = {name for table in tables for name in table.column("name").unique().to_pylist()}
    metrics = [name for result in sweep.run_results for name in result.metrics]
    candidates = (sweep.experiment.metric, *metrics, *sorted(names))
    name = next((candidate for candidate in candidates if candidate in names), None)
    if name is None:
        return None
    series = {(run.arm, run.seed): curve for run in sweep.planned_runs if (curve := _get_curve(run, name))}
    points, step = _thin_points(sorted({t for curve in series.values() for t in curve}))
    lines = []
    for (arm, seed), curve in series.items():
        tokens = [t for t in points if t in curve]
        lines.append(
            CurveLine(
                arm=arm,
                seed=seed,
                done=sweep.run_by_arm_seed[arm, seed].is_done,
                tokens=tokens,
                values=[_round_value(curve[t]) for t in tokens],
            )
        )
    excluded = {sweep.baseline, *incomparable_arms}
    return CurvesSection(
        name=name,
        every=step,
        lines=lines,
        means=_average_and_round(lines),
        baseline=sweep.baseline,
        compared=[arm for arm in dict.fromkeys(line.arm for line in lines) if arm not in excluded],
    )


def build_position_losses(sweep: SweepResults) -> PositionLosses | None:
    """Build the final loss at each position, averaged over seeds; it shows whether more context helps."""
    name = next((name for result in sweep.run_results for name in result.by_position), None)
    if name is None:
        return None
    lines = []
    for run in sweep.planned_runs:
        values = run.result.by_position.get(name) if run.result and run.is_done else None
        by_position = [(i, v) for i, v in enumerate(values or [], 1) if v is not None]
        if by_position:
            thinned = set(_thin_points([i for i, _ in by_position])[0])
            shown = [(i, v) for i, v in by_position if i in thinned]
            positions = [i for i, _ in shown]
            values = [v for _, v in shown]
            lines.append(CurveLine(arm=run.arm, seed=run.seed, done=True, tokens=positions, values=values))
    means = [
        ArmPositionLosses(arm=mean.arm, position=mean.tokens, values=mean.values, seeds=mean.seeds)
        for mean in _average_and_round(lines)
    ]
    return PositionLosses(name=name, unit=sweep.get_metric(name).unit, means=means) if means else None
