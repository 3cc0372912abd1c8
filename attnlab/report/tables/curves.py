"""Learning curves as measured: every seed, the mean, and the paired difference to the baseline. No smoothing.

Long curves keep every k-th point on the page, and say so; curves.parquet beside the report has them all.
"""

from collections.abc import Collection, Sequence

from attnlab.report.schema import CurveLine, Curves, MeanCurve, PositionMeans, Positions
from attnlab.report.verdicts.runs import Run, Sweep

MOST = 160  # points of one line on the page


def _series(run: Run, name: str) -> dict[int, float]:
    """Tokens -> value of one curve of one run."""
    if run.curves is None:
        return {}
    table = run.curves.to_pydict()
    return {
        t: v
        for t, n, v in zip(table["tokens"], table["name"], table["value"], strict=True)
        if n == name and v == v
    }


def _thin(tokens: list[int]) -> tuple[list[int], int]:
    step = -(-len(tokens) // MOST) or 1
    kept = tokens[::step]
    return (kept if not tokens or kept[-1] == tokens[-1] else [*kept, tokens[-1]]), step


def _mean(lines: Sequence[CurveLine]) -> list[MeanCurve]:
    """The mean over finished seeds: one that stopped early is drawn, but must not bend or cut the mean."""
    out = []
    for arm in dict.fromkeys(line.arm for line in lines):
        ours = [line for line in lines if line.arm == arm]
        members = [
            dict(zip(line.tokens, line.values, strict=True))
            for line in [line for line in ours if line.done] or ours
        ]
        shared = sorted(set.intersection(*(set(member) for member in members)))
        means = [sum(member[t] for member in members) / len(members) for t in shared]
        out.append(MeanCurve(arm=arm, tokens=shared, values=means, seeds=len(members)))
    return out


def curves(sweep: Sweep, apart: Collection[str] = ()) -> Curves | None:
    """Lines of the primary metric, else of the first metric of the records that has a curve, else of any
    curve; or None without one.
    """
    tables = [run.curves for run in sweep.planned if run.curves is not None]
    names = {name for table in tables for name in table.column("name").unique().to_pylist()}
    measured = [name for record in sweep.records for name in record.metrics]
    wanted = (sweep.experiment.metric, *measured, *sorted(names))
    name = next((wish for wish in wanted if wish in names), None)
    if name is None:
        return None
    series = {(run.arm, run.seed): curve for run in sweep.planned if (curve := _series(run, name))}
    kept, step = _thin(sorted({t for curve in series.values() for t in curve}))
    lines = []
    differences = []
    for (arm, seed), curve in series.items():
        done = sweep.at[arm, seed].done
        tokens = [t for t in kept if t in curve]
        values = [curve[t] for t in tokens]
        lines.append(CurveLine(arm=arm, seed=seed, done=done, tokens=tokens, values=values))
        base = series.get((sweep.baseline, seed))
        shared = [t for t in tokens if t in base] if base and arm not in (sweep.baseline, *apart) else []
        if base and shared:
            paired = done and sweep.at[sweep.baseline, seed].done
            values = [curve[t] - base[t] for t in shared]
            differences.append(CurveLine(arm=arm, seed=seed, done=paired, tokens=shared, values=values))
    return Curves(
        name=name,
        every=step,
        lines=lines,
        means=_mean(lines),
        differences=differences,
        mean_differences=_mean(differences),
    )


def positions(sweep: Sweep) -> Positions | None:
    """The final loss at each position of the context, mean over seeds: does more context help?"""
    name = next((name for record in sweep.records for name in record.by_position), None)
    if name is None:
        return None
    lines = []
    for run in sweep.planned:
        values = run.record.by_position.get(name) if run.record and run.done else None
        known = [(i, v) for i, v in enumerate(values or [], 1) if v is not None]
        if known:
            kept = set(_thin([i for i, _ in known])[0])
            shown = [(i, v) for i, v in known if i in kept]
            at = [i for i, _ in shown]
            values = [v for _, v in shown]
            lines.append(CurveLine(arm=run.arm, seed=run.seed, done=True, tokens=at, values=values))
    means = [
        PositionMeans(arm=mean.arm, position=mean.tokens, values=mean.values, seeds=mean.seeds)
        for mean in _mean(lines)
    ]
    return Positions(name=name, unit=sweep.metric(name).unit, means=means) if means else None
