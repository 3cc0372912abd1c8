"""Learning rates as tuning tells them to the report."""

from collections.abc import Iterable
from typing import Any

from attnlab.report.schema import TuningFound
from attnlab.sweep.plan.tuning.found import Entry, Tuning
from attnlab.sweep.plan.tuning.search import Found, Grid


def tuned(arms: Iterable[str], found: Found, committed: bool = False, **changes: Any) -> TuningFound:
    """What tuning tells the report, where `found` gives the loss of a rate and a seed."""
    grid = Grid(
        (0.001, 0.003, 0.01), (100, 101, 102), changes.pop("widen", 3), 1 / 3, changes.pop("steady", None)
    )
    one = Tuning(grid, "val/loss", "lower", "debug", committed)
    search = one.search(found)
    known = {"settings": "config-a", "compared": "config-a", "tokens": 10 * len(search.asked), **changes}
    one.arms = {arm: Entry(search, most=180, comparison=180, **known) for arm in arms}
    return one.told()
