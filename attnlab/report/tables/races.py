"""Phase-change metrics, such as the steps to 90 % accuracy: who got there, when, and what an arm saved.

A record holds them as `censored`: {metric: {"value": steps or null, "budget": steps}}; null is not reached.

- Everywhere else in a report (claims, effects, trade-off) the value of a run is min(value, budget), so that a
  run that did not get there counts with the whole budget. A claim `below: -100` says that the arm needs more
  than 100 steps fewer; that is a bound on what was saved within this budget, not beyond it.
- A run that diverged did not get there. One that crashed, ran out of memory or left no record says nothing
  about learning: its pair is left out, and stays in the denominator.
- Fewer steps are better, unless a claim's or the experiment's `direction` says otherwise.
"""

from dataclasses import asdict

from attnlab import stats
from attnlab.report.schema import BudgetCheck, Race, RaceRow, RaceTable, Saved, SignFlipTest, Solved
from attnlab.report.verdicts import comparability
from attnlab.report.verdicts.runs import Sweep


def races(sweep: Sweep, budget: BudgetCheck) -> list[RaceTable]:
    """A table per censored metric: each arm's solved fraction and median, and its race with the baseline."""
    return [
        _table(sweep, metric, most, comparability.apart(sweep, budget, metric))
        for metric, most in sorted(sweep.budgets.items())
    ]


def _table(sweep: Sweep, metric: str, budget: float, apart: set[str]) -> RaceTable:
    rows = []
    for arm in sweep.arms:
        counted = [seed for seed in sweep.seeds if sweep.value(arm, seed, metric) is not None]
        if not counted:
            continue
        steps = [sweep.reached(arm, seed, metric) for seed in counted]
        shared = [seed for seed in counted if sweep.value(sweep.baseline, seed, metric) is not None]
        race = None
        if arm not in (sweep.baseline, *apart) and shared:
            ours, theirs = (
                [sweep.reached(name, seed, metric) for seed in shared] for name in (arm, sweep.baseline)
            )
            found = stats.race(ours, theirs, budget)
            race = Race(
                n=found.n,
                saved=Saved(**asdict(found.saved)),
                flips=SignFlipTest(**asdict(found.flips)),
                logrank_p=found.logrank_p,
            )
        alone = stats.race(steps, steps, budget)  # an arm against itself: its own fraction and median
        rows.append(
            RaceRow(
                arm=arm,
                solved=Solved(**asdict(alone.a)),
                median=alone.a_median,
                planned=len(sweep.of(arm)),
                race=race,
            )
        )
    return RaceTable(
        metric=metric,
        label=sweep.metric(metric).words,
        unit=sweep.metric(metric).unit,
        budget=budget,
        against=sweep.baseline,
        rows=rows,
    )
