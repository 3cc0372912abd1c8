"""Loss by length and accuracy by condition, where an experiment measures them.

The names carry the meaning: a metric `length/<multiple>` is the loss at that multiple of the trained length
on the same target tokens, and `recall/<condition>/<distance>` an accuracy. Anything under these two
prefixes is shown.
"""

import re
from typing import Any

from attnlab import stats
from attnlab.report.verdicts.runs import Sweep

TITLES = {"length": "Loss by length", "recall": "Accuracy by condition"}


def _natural(name: str) -> list[Any]:
    return [
        (0, float(part)) if re.fullmatch(r"[\d.]+", part) else (1, part)
        for part in re.split(r"([\d.]+)", name)
        if part
    ]


def _place(condition: str) -> float | None:
    """The number that places a condition on an axis: `4x`, `4` and `distance/4` are at 4."""
    last = re.fullmatch(r"(\d+(?:\.\d+)?)x?", condition.rsplit("/", 1)[-1])
    return float(last[1]) if last else None


def length(sweep: Sweep) -> list[dict[str, Any]]:
    """One table per prefix: rows are conditions, cells the arms; empty where nothing was measured.

    `undefined`: the arms that have no such figure, as learned positions have none past their table.
    """
    records = {arm: [run.record for run in sweep.done(arm) if run.record] for arm in sweep.arms}
    undefined = {
        arm: {name for one in found for name in one.get("undefined") or []} for arm, found in records.items()
    }
    names = {name for found in records.values() for one in found for name in one["metrics"]}
    names = names.union(*undefined.values())
    tables = []
    for prefix, title in TITLES.items():
        conditions = sorted((n[len(prefix) + 1 :] for n in names if n.startswith(prefix + "/")), key=_natural)
        rows = []
        for condition in conditions:
            cells = []
            for arm in sweep.arms:
                values = sweep.values(arm, f"{prefix}/{condition}")
                if values:
                    found = stats.paired(values)
                    cells.append(
                        {"arm": arm, "n": found.n, "mean": found.mean, "low": found.low, "high": found.high}
                    )
            rows.append(
                {
                    "condition": condition,
                    "x": _place(condition),
                    "series": condition.rpartition("/")[0],
                    "cells": cells,
                    "undefined": [arm for arm in sweep.arms if f"{prefix}/{condition}" in undefined[arm]],
                }
            )
        if rows:
            tables.append({"key": prefix, "title": title, "rows": rows})
    return tables
