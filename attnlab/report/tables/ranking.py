"""What else ranks the arms where a page has many of them: the other metrics, the loss past the trained
length, and who is ahead among those that keep as many bytes of every token.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from attnlab import stats

MANY = 8  # arms; of more, a page lets its reader pick one out
STATES = {  # the start of an effect's word: how an arm stands to the baseline, in a table of many
    "BETTER": "better",
    "WORSE": "worse",
    "EQUIVALENT": "as good",
    "NOT WORSE": "no worse",
    "INCONCLUSIVE": "open",
}
BYTES = ("kv_bytes_per_token", "carried_bytes")  # two arms keep as much where both are the same

Report = Mapping[str, Any]


def state(word: str) -> str | None:
    """How an arm stands to the baseline, shortly; None where that was not judged."""
    return next((said for start, said in STATES.items() if word.startswith(start)), None)


def reached(values: list[float]) -> dict[str, Any]:
    """The mean over seeds and its 95 % interval; None of each where there are no values."""
    found = stats.paired(values) if values else None
    low, high = (found and found.interval) or (None, None)
    return {"mean": found.mean if found else None, "low": low, "high": high, "n": len(values)}


def by_seed(rows: Iterable[Any], arm: str, baseline: str) -> dict[int, float]:
    """Seed -> what an arm reached in its complete pairs, by the effects of one metric; of the baseline those
    with the arm that has most.
    """
    own = [row["pairs"] for row in rows if arm in (baseline, row["arm"])]
    side = "against" if arm == baseline else "value"
    return {pair["seed"]: pair[side] for pair in max(own, key=len, default=[])}


def columns(report: Report) -> list[dict[str, Any]]:
    """What the arms of many are ranked by beside the experiment's metric: `label`, `unit`, `digits`, and of
    each arm in `cells` its mean and interval.
    """
    arms = report["experiment"]["arms"]
    baseline = report["experiment"]["baseline"]
    if len(arms) <= MANY:
        return []
    found: dict[str, list[Any]] = {}
    for row in report["effects"]:
        if not row["primary"]:
            found.setdefault(row["metric"], []).append(row)
    return [
        {
            "label": rows[0]["label"],
            "unit": rows[0]["unit"],
            "digits": max(row["digits"] for row in rows),
            "cells": {arm: reached([*by_seed(rows, arm, baseline).values()]) for arm in arms},
        }
        for rows in found.values()
    ] + _longest(report)


def _longest(report: Report) -> list[dict[str, Any]]:
    """The loss at the longest text, where losses at several lengths were measured."""
    rows = [row for table in report["length"] if table["key"] == "length" for row in table["rows"]]
    plain = [row for row in rows if not row["series"] and (row["x"] or 0) > 1]
    return [
        {
            "label": f"loss at {row['x']:g} times the trained length",
            "unit": "nats",
            "digits": 3,
            "cells": {cell["arm"]: cell for cell in row["cells"]},
        }
        for row in sorted(plain, key=lambda row: row["x"])[-1:]
    ]


def equal_bytes(report: Report) -> list[dict[str, Any]]:
    """The arms of many that keep as much as another one does, the most bytes first and among equals the best
    first: `bytes` (a token's and a text's), `arm`, what it `reached`, and how it differs from the first.
    """
    known = report["answer"]
    baseline = report["experiment"]["baseline"]
    effects = [row for row in report["effects"] if row["primary"]]
    places = [at for at, cost in enumerate(known["costs"]) if cost["key"] in BYTES]
    groups: dict[tuple[float, ...], list[Any]] = {}
    for row in known["arms"]:
        kept = tuple(row["costs"][at] for at in places)
        if kept and None not in kept and row["reached"]["mean"] is not None and row["ranked"]:
            groups.setdefault(kept, []).append(row)
    shared = {kept: rows for kept, rows in groups.items() if len(rows) > 1}
    if len(report["experiment"]["arms"]) <= MANY or len(shared) < 2:
        return []
    told = []
    for kept, rows in sorted(shared.items(), reverse=True):
        best = by_seed(effects, rows[0]["arm"], baseline)
        for row in rows:
            own = by_seed(effects, row["arm"], baseline)
            differs = reached([own[seed] - best[seed] for seed in best if seed in own])
            told.append({"bytes": kept, "arm": row["arm"], "reached": row["reached"], "differs": differs})
    return told
