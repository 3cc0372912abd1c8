"""Head scores by layer, pooled over seeds, with their chance levels, and what heads are called by them.

Head numbers mean nothing across seeds or arms, so scores are compared as distributions and maps only stand
side by side; nothing here averages "head 3". The maps themselves are in attention.npz (`head_maps`).
"""

from itertools import chain

import numpy as np

from attnlab.measure.patterns import RULES, names_of
from attnlab.measure.scores import SCORES, Score
from attnlab.report.schema import (
    AbsentScore,
    Agreement,
    Heads,
    HeadScore,
    Pattern,
    PatternCount,
    ScoreCount,
    ScoredRun,
)
from attnlab.report.verdicts.runs import Sweep, common


def _scores(sweep: Sweep) -> list[HeadScore]:
    rows: dict[str, list[ScoredRun]] = {}
    for run in sweep.planned:
        for name, table in run.head_scores.items():
            rows.setdefault(name, []).append(
                ScoredRun(arm=run.arm, seed=run.seed, values=table, chance=run.chance.get(name))
            )
    out = []
    for name in sorted(rows, key=lambda name: (list(SCORES).index(name) if name in SCORES else 99, name)):
        score = SCORES.get(name, Score(name))
        counts = []
        for arm in sweep.arms:
            tables: list[np.ndarray] = [
                np.array([*chain.from_iterable(row.values)], float) for row in rows[name] if row.arm == arm
            ]
            if tables:  # an arm may have a text or a length of its own, and so a chance level
                chance = common(run.chance.get(name) for run in sweep.done(arm))
                counts.append(_count(arm, tables, score.threshold, chance))
        out.append(
            HeadScore(
                name=name,
                label=score.label,
                about=score.about,
                threshold=score.threshold,
                chance=common(count.chance for count in counts),
                runs=rows[name],
                counts=counts,
            )
        )
    return out


def _count(arm: str, tables: list[np.ndarray], threshold: float | None, chance: float | None) -> ScoreCount:
    over = [int((table > threshold).sum()) for table in tables] if threshold is not None else []
    return ScoreCount(
        arm=arm,
        chance=chance,
        heads=int(tables[0].size),
        seeds=len(tables),
        mean=float(np.mean(np.concatenate(tables))),
        mean_low=float(min(table.mean() for table in tables)),
        mean_high=float(max(table.mean() for table in tables)),
        over=float(np.mean(over)) if over else None,
        over_low=min(over, default=None),
        over_high=max(over, default=None),
    )


def _patterns(sweep: Sweep) -> list[Pattern]:
    """How many heads of an arm have each name: mean and range over seeds."""
    named = {
        arm: [n for run in sweep.done(arm) if (n := names_of(run.head_scores, run.chance))]
        for arm in sweep.arms
    }
    out = []
    for name, rule in RULES.items():
        counts = []
        for arm, runs in named.items():
            each = [sum(name in head for layer in run for head in layer) for run in runs]
            if each:
                heads = sum(map(len, runs[0]))
                mean = float(np.mean(each))
                counts.append(
                    PatternCount(
                        arm=arm, heads=heads, seeds=len(each), mean=mean, low=min(each), high=max(each)
                    )
                )
        if counts:
            out.append(Pattern(name=name, rule=rule.says, counts=counts))
    return out


def heads(sweep: Sweep) -> Heads | None:
    """Scores, names, and max|eager - fused| per arm, and how many layers have maps in attention.npz; None
    where nothing was measured.
    """
    scores = _scores(sweep)
    layers = max((run.maps["maps"].shape[1] for run in sweep.planned if run.done and run.maps), default=0)
    if not scores and not layers:
        return None
    agreement = []
    for arm in sweep.arms:
        kernels = [run.record.kernels for run in sweep.done(arm) if run.record and run.record.kernels]
        errors = [k["max_abs_eager_fused"] for k in kernels if k.get("max_abs_eager_fused") is not None]
        notes = sorted({k["note"] for k in kernels if k.get("note")})
        agreement.append(Agreement(arm=arm, max_abs=max(errors, default=None), runs=len(errors), notes=notes))
    return Heads(
        scores=scores,
        absent=_absent(sweep),
        patterns=_patterns(sweep),
        agreement=agreement,
        layers=layers,
    )


def _absent(sweep: Sweep) -> list[AbsentScore]:
    """Scores that an arm does not have, and why."""
    out = {}
    for run in sweep.planned:
        for name, why in ((run.record.head_scores.get("notes") if run.record else None) or {}).items():
            out[run.arm, name] = AbsentScore(arm=run.arm, label=SCORES.get(name, Score(name)).label, why=why)
    return list(out.values())
