"""Results of a learning-rate search, as the search passes them to the report."""

from collections.abc import Iterable
from typing import Any

from attnlab.report.schema import TuningResult
from attnlab.sweep.plan.tuning.lr_search import LossLookup, RateGrid
from attnlab.sweep.plan.tuning.tuning_results import ArmSearch, TuningState


def build_tuning_result(
    arms: Iterable[str], look_up_loss: LossLookup, committed: bool = False, **changes: Any
) -> TuningResult:
    """Run a learning-rate search in which `look_up_loss` gives the loss of a rate and a seed."""
    grid = RateGrid(
        (0.001, 0.003, 0.01), (100, 101, 102), changes.pop("extend", 3), 1 / 3, changes.pop("robust", None)
    )
    state = TuningState(grid, "val/loss", "lower", "debug", committed)
    search = state.search_rates(look_up_loss)
    fields = {
        "settings": "config-a",
        "compared_settings": "config-a",
        "search_tokens": 10 * len(search.requested_losses),
        **changes,
    }
    state.arms = {arm: ArmSearch(search, max_tokens=180, comparison_tokens=180, **fields) for arm in arms}
    return state.summarize()
