"""How the learning rate came about: the whole grid that was trained for it, what was picked, what it cost."""

from statistics import mean
from typing import Any

from attnlab.report.verdicts.runs import Sweep
from attnlab.store import declarations
from attnlab.store.schema import Metric

SPENT = Metric(declarations.SPENT, "tokens spent on tuning", kind="count")


def tuning(sweep: Sweep) -> dict[str, Any] | None:
    """A row per rate and a cell per arm: mean over the tuning's seeds, values by seed, whether it was picked.

    None where the experiment tunes nothing.
    """
    grid = sweep.asked.tuning
    if not grid:
        return None
    rows = [
        {"lr": rate, "cells": [_cell(grid["arms"][arm], arm, n) for arm in sweep.arms]}
        for n, rate in enumerate(grid["rates"])
    ]
    return {
        "metric": grid["metric"],
        "seeds": grid["seeds"],
        "committed": grid["committed"],
        "rows": rows,
        "tokens": [{"arm": arm, "value": grid["arms"][arm]["tokens"]} for arm in sweep.arms],
    }


def _cell(result: dict[str, Any], arm: str, n: int) -> dict[str, Any]:
    row = result["rows"][n]
    whole = None not in row["values"]
    return {
        "arm": arm,
        "mean": mean(row["values"]) if whole else None,
        "values": row["values"],
        "picked": row["lr"] == result["picked"],
    }


def sentence(found: dict[str, Any] | None) -> str:
    """How the rate was tuned, in one line."""
    if found is None:
        return "not declared, so read any difference as one at this learning rate"
    rates, seeds = len(found["rows"]), ", ".join(map(str, found["seeds"]))
    came = "the result lies beside the experiment" if found["committed"] else "trained for this report"
    return (
        f"every arm at {rates} rates with seeds {seeds}, which are none of the comparison's ({came}); "
        f"each arm has the rate with the best mean {found['metric']}"
    )


def cautions(sweep: Sweep, found: dict[str, Any] | None) -> list[str]:
    """What a reader should know of the grid: a pick at its end, or one made for other settings."""
    if found is None:
        return []
    out = []
    ends = {found["rows"][0]["lr"], found["rows"][-1]["lr"]}
    for n, arm in enumerate(sweep.arms):
        picked = [row["lr"] for row in found["rows"] if row["cells"][n]["picked"]]
        if not picked:
            out.append(f"{arm}: no learning rate of the grid finished with every seed, so it has no run.")
        elif picked[0] in ends:
            out.append(
                f"{arm}: the learning rate picked, {picked[0]:g}, is at the end of the grid; "
                "a better one may lie beyond it."
            )
        if sweep.asked.tuning and sweep.asked.tuning["arms"][arm]["same_settings"] is False:
            out.append(f"{arm}: its learning rate was tuned for other settings than the ones compared here.")
    return out
