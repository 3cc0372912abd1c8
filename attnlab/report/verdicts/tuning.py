"""How the learning rates came about: every rate that was tried, what became of it, what was picked, what it
cost.
"""

import math
from collections.abc import Sequence

from attnlab.report.schema import ArmTuning, ArmTuningFound, RateFound, TriedRate, Tuning, TuningFound
from attnlab.report.verdicts.runs import Sweep
from attnlab.store import declarations
from attnlab.store.schema import Metric

SPENT = Metric(declarations.SPENT, "tokens spent on tuning", kind="count")


def tuning(sweep: Sweep) -> Tuning | None:
    """Per arm a row for each rate: values by seed ("diverged" for one without, null where it was not tried),
    their median where all seeds are there, and what became of it. None where the experiment tunes nothing.
    """
    found = sweep.asked.tuning
    if not found:
        return None
    return Tuning(
        metric=found.metric,
        seeds=found.seeds,
        committed=found.committed,
        arms=[
            ArmTuning(
                arm=arm,
                tokens=entry.tokens,
                of_comparison=_ratio(sweep, [arm]),
                rows=[
                    TriedRate(
                        lr=row.lr,
                        values=row.values,
                        median=row.median,
                        picked=row.lr == entry.picked,
                        fate=_fate(row, entry, found),
                    )
                    for row in entry.rows
                ],
            )
            for arm in sweep.arms
            for entry in [found.arms[arm]]
        ],
    )


def _fate(row: RateFound, entry: ArmTuningFound, found: TuningFound) -> str:
    if None in row.values[: row.tried]:
        fate = "not finished"
    elif row.tried < len(found.seeds):
        fate = "dropped in the first rung"
    else:
        fate = "picked" if row.lr == entry.picked else "second rung"
    return fate if row.lr in found.lr else f"{fate}, beyond the grid"


def _ratio(sweep: Sweep, arms: Sequence[str]) -> float | None:
    """What tuning cost, as a share of what the comparison of these arms costs by now: look by look."""
    assert sweep.asked.tuning is not None
    found = sweep.asked.tuning.arms
    whole = sum(found[arm].comparison * len(sweep.of(arm)) / len(sweep.seeds) for arm in arms)
    return sum(found[arm].tokens for arm in arms) / whole if whole else None


def sentence(sweep: Sweep) -> str:
    """How the rates were tuned, in two sentences."""
    found = sweep.asked.tuning
    if not found:
        return "not declared, so read any difference as one at this learning rate"
    first, *others = found.seeds
    rest = ", ".join(map(str, others))
    rates = len(found.lr)
    came = "the result lies beside the experiment" if found.committed else "trained for this report"
    ratio = _ratio(sweep, sweep.arms)
    cost = "" if ratio is None else f"; all that took {_percent(ratio)} of the comparison's tokens"
    return (
        f"every arm was tried at {rates} rates with seed {first} (the first rung), then at the best and its "
        f"neighbours with {rest} too (the second), each time for {_percent(found.share)} of its steps, "
        f"with none of the comparison's seeds ({came}); {_rule(found)}. Where the best rate was at an end of "
        f"those tried, the next one beyond it was tried too, {found.widen} times at most{cost}"
    )


def _rule(found: TuningFound) -> str:
    if (near := found.steady) is None:
        return f"it has the rate with the best median {found.metric}"
    return (
        f"it has the lowest of the rates whose mean {found.metric} is at most {near:g} worse than the "
        "best, since a rate that goes wrong now and then is dearer than one that is a little low"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def cautions(sweep: Sweep) -> list[str]:
    """What a reader should know: no pick, one at an end of what was tried, or one made for other settings."""
    out = []
    for arm, entry in sweep.asked.tuning.arms.items() if sweep.asked.tuning else ():
        if entry.picked is None:
            out.append(f"{arm}: {entry.lack}, so it has no run.")
        elif entry.at_end:
            out.append(
                f"{arm}: the learning rate picked, {entry.picked:g}, is at the end of those tried, and no "
                "more may be added; a better one may lie beyond it."
            )
        elif other := _steadier(sweep, entry):
            out.append(
                f"{arm}: by the worst of its tuning seeds {other:g} would have been picked, not "
                f"{entry.picked:g}, at which one of them went wrong: some of its runs may do so too."
            )
        if not entry.same_settings:
            out.append(
                f"{arm}: its learning rate was tuned for other settings than the ones compared here; with "
                "tuned=none it is tuned anew."
            )
    return out


def _steadier(sweep: Sweep, entry: ArmTuningFound) -> float | None:
    """The rate whose worst seed is better than that of the picked one by more than the margin, if any is."""
    sign = 1 if sweep.experiment.direction == "lower" else -1
    worst = {
        row.lr: max(
            math.inf if value == "diverged" else sign * value for value in row.values if value is not None
        )
        for row in entry.rows
        if row.median is not None
    }
    assert entry.picked is not None
    best = min(worst, key=lambda rate: worst[rate])
    return best if worst[best] + (sweep.margin or 0.0) < worst[entry.picked] else None
