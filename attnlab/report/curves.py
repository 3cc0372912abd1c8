"""Learning curves as measured: every seed, the mean, and the paired difference to the baseline. No smoothing.

Long curves keep every k-th point on the page, and say so; curves.parquet beside the report has them all.
"""

from typing import Any

from attnlab.report.runs import Run, Sweep

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


def _mean(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean, only where every seed of the arm has a point: a seed that stops must not bend it."""
    out = []
    for arm in dict.fromkeys(line["arm"] for line in lines):
        members = [
            dict(zip(line["tokens"], line["values"], strict=True)) for line in lines if line["arm"] == arm
        ]
        shared = sorted(set.intersection(*(set(member) for member in members)))
        means = [sum(member[t] for member in members) / len(members) for t in shared]
        out.append({"arm": arm, "tokens": shared, "values": means, "seeds": len(members)})
    return out


def curves(sweep: Sweep) -> dict[str, Any] | None:
    """Lines of the primary metric, of a loss where it has no curve, or None without any."""
    names = {
        n
        for run in sweep.planned
        if run.curves is not None
        for n in run.curves.column("name").unique().to_pylist()
    }
    metric = sweep.experiment["metric"]
    name = next((n for n in (metric, "val/loss", "train/loss") if n in names), None)
    if name is None:
        return None
    series = {(run.arm, run.seed): found for run in sweep.planned if (found := _series(run, name))}
    kept, step = _thin(sorted({t for found in series.values() for t in found}))
    lines, differences = [], []
    for (arm, seed), found in series.items():
        tokens = [t for t in kept if t in found]
        lines.append({"arm": arm, "seed": seed, "tokens": tokens, "values": [found[t] for t in tokens]})
        base = series.get((sweep.baseline, seed))
        if arm != sweep.baseline and base:
            shared = [t for t in tokens if t in base]
            values = [found[t] - base[t] for t in shared]
            differences.append({"arm": arm, "seed": seed, "tokens": shared, "values": values})
    return {
        "name": name,
        "every": step,
        "lines": lines,
        "means": _mean(lines),
        "differences": differences,
        "mean_differences": _mean([d for d in differences if d["tokens"]]),
    }
