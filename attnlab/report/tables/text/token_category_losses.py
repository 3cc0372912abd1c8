"""Loss by token category and arm: means over seeds, and paired differences to the baseline.

Surprising: there is no interval and no verdict. The seven categories are not preregistered, and the range
over seeds is the only measure of their noise.
"""

from collections.abc import Collection

import numpy as np

from attnlab.measure.text.category_rules import TOKEN_CATEGORIES
from attnlab.report.schema import ArmTokenLoss, SeedRange, TokenCategory
from attnlab.report.verdicts.results import SweepResults


def build_token_categories(
    sweep: SweepResults, incomparable_arms: Collection[str] = ()
) -> list[TokenCategory]:
    """Build a row per category that some run has: its label, its number of targets, and each arm's loss.

    Arms in `incomparable_arms` have no difference.
    """
    rows = []
    for name, label in TOKEN_CATEGORIES.items():
        losses = {
            arm: {
                run.seed: run.result.by_token_category[name]
                for run in sweep.get_finished_runs(arm)
                if run.result and name in run.result.by_token_category
            }
            for arm in sweep.arms
        }
        target_counts = [category.targets for by_seed in losses.values() for category in by_seed.values()]
        if target_counts:
            baseline_losses = losses[sweep.baseline]
            arms = [
                ArmTokenLoss(
                    arm=arm,
                    seeds=len(by_seed),
                    loss=_summarize_seeds([category.loss for category in by_seed.values()]),
                    difference=None
                    if arm in (sweep.baseline, *incomparable_arms)
                    else _summarize_seeds(
                        [
                            category.loss - baseline_losses[seed].loss
                            for seed, category in by_seed.items()
                            if seed in baseline_losses
                        ]
                    ),
                )
                for arm, by_seed in losses.items()
                if by_seed
            ]
            rows.append(TokenCategory(name=name, label=label, targets=max(target_counts), arms=arms))
    return rows


def _summarize_seeds(values: list[float]) -> SeedRange | None:
    """Return mean and range; None without values."""
    if not values:
        return None
    return SeedRange(mean=float(np.mean(values)), low=min(values), high=max(values))
