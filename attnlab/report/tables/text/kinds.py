"""Loss by kind of token, by arm: means over seeds, and paired differences to the baseline.

Surprising: no interval and no word. The kinds were not declared, there are seven of them, and the range over
seeds is what is seen of their noise.
"""

from collections.abc import Collection

import numpy as np

from attnlab.measure.text.signs import KINDS
from attnlab.report.schema import KindArm, Range, TokenKind
from attnlab.report.verdicts.runs import Sweep


def kinds(sweep: Sweep, apart: Collection[str] = ()) -> list[TokenKind]:
    """A row per kind that some run has: its label, how many targets there were, and what each arm lost; no
    differences of the arms that stand `apart`.
    """
    rows = []
    for name, label in KINDS.items():
        losses = {
            arm: {
                run.seed: run.record.by_kind[name]
                for run in sweep.done(arm)
                if run.record and name in run.record.by_kind
            }
            for arm in sweep.arms
        }
        known = [kind.targets for of_arm in losses.values() for kind in of_arm.values()]
        if known:
            against = losses[sweep.baseline]
            arms = [
                KindArm(
                    arm=arm,
                    seeds=len(of_arm),
                    loss=_summary([kind.loss for kind in of_arm.values()]),
                    difference=None
                    if arm in (sweep.baseline, *apart)
                    else _summary(
                        [kind.loss - against[seed].loss for seed, kind in of_arm.items() if seed in against]
                    ),
                )
                for arm, of_arm in losses.items()
                if of_arm
            ]
            rows.append(TokenKind(name=name, label=label, targets=max(known), arms=arms))
    return rows


def _summary(values: list[float]) -> Range | None:
    """Mean and range; None of nothing."""
    if not values:
        return None
    return Range(mean=float(np.mean(values)), low=min(values), high=max(values))
