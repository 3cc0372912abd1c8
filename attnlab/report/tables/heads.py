"""Head scores by layer, pooled over seeds, with their chance levels, and what heads are called by them.

Head numbers mean nothing across seeds or arms, so scores are compared as distributions and maps only stand
side by side; nothing here averages "head 3".
"""

from typing import Any

import numpy as np

from attnlab.measure.patterns import RULES, names_of
from attnlab.report.tables import head_maps
from attnlab.report.verdicts.runs import Sweep

# label, what it is, threshold for the count
SCORES: dict[str, tuple[str, str, float | None]] = {
    "previous": ("previous token", "mean attention from each token to the one before it", 0.3),
    "current": ("current token", "mean attention of a token to itself", 0.3),
    "duplicate": ("duplicate token", "attention to earlier copies of the same token", 0.3),
    "induction": ("induction", "attention to what followed the earlier copies of this token", 0.3),
    "copying": ("copying (OV)", "share of the rise in logits that goes to the attended token, -1 to 1", 0.0),
    "sink": ("attention sink", "mean attention to the first token", 0.3),
    "entropy": ("entropy", "of each row, as a share of the uniform one: 1 is uniform", 0.9),
    "local": ("local (8 tokens)", "mean attention to the last 8 tokens", 0.7),
    "distance": ("mean distance", "how far back attention reaches, in tokens", None),
    "confidence": ("confidence", "mean of the largest weight of each row", 0.5),
    "positional": ("positional", "share of rows whose maximum sits at one offset", 0.9),
}


def _chance(sweep: Sweep) -> dict[str, float]:
    levels: dict[str, float] = {}
    for run in sweep.planned:
        levels.update(((run.record or {}).get("head_scores") or {}).get("chance") or {})
    return levels


def _scores(sweep: Sweep, chance: dict[str, float]) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for run in sweep.planned:
        for name, table in run.head_scores.items():
            found.setdefault(name, []).append({"arm": run.arm, "seed": run.seed, "values": table})
    out = []
    for name in sorted(found, key=lambda name: (list(SCORES).index(name) if name in SCORES else 99, name)):
        label, about, threshold = SCORES.get(name, (name, "", None))
        counts = [
            _count(
                arm, [np.asarray(row["values"], float) for row in found[name] if row["arm"] == arm], threshold
            )
            for arm in sweep.arms
            if any(row["arm"] == arm for row in found[name])
        ]
        out.append(
            {
                "name": name,
                "label": label,
                "about": about,
                "threshold": threshold,
                "chance": chance.get(name),
                "runs": found[name],
                "counts": counts,
            }
        )
    return out


def _count(arm: str, tables: list[np.ndarray], threshold: float | None) -> dict[str, Any]:
    over = [int((table > threshold).sum()) for table in tables] if threshold is not None else []
    return {
        "arm": arm,
        "heads": int(tables[0].size),
        "seeds": len(tables),
        "mean": float(np.mean(np.concatenate([table.ravel() for table in tables]))),
        "mean_low": float(min(table.mean() for table in tables)),
        "mean_high": float(max(table.mean() for table in tables)),
        "over": float(np.mean(over)) if over else None,
        "over_low": min(over, default=None),
        "over_high": max(over, default=None),
    }


def _patterns(sweep: Sweep, chance: dict[str, float]) -> list[dict[str, Any]]:
    """How many heads of an arm have each name: mean and range over seeds."""
    named = {
        arm: [n for run in sweep.done(arm) if (n := names_of(run.head_scores, chance))] for arm in sweep.arms
    }
    out = []
    for name, rule in RULES.items():
        counts = []
        for arm, runs in named.items():
            each = [sum(name in head for layer in run for head in layer) for run in runs]
            if each:
                heads = sum(map(len, runs[0]))
                row = {"arm": arm, "heads": heads, "seeds": len(each), "mean": float(np.mean(each))}
                counts.append({**row, "low": min(each), "high": max(each)})
        if counts:
            out.append({"name": name, "rule": rule.says, "counts": counts})
    return out


def heads(sweep: Sweep) -> dict[str, Any] | None:
    """Scores, names, packed maps, and max|eager - fused| per arm; None where nothing was measured."""
    chance = _chance(sweep)
    scores, runs = _scores(sweep, chance), head_maps.shown(sweep)
    packed = head_maps.packed(runs, chance)
    if not scores and not packed:
        return None
    agreement = []
    for arm in sweep.arms:
        kernels = [
            run.record["kernels"] for run in sweep.done(arm) if run.record and run.record.get("kernels")
        ]
        errors = [k["max_abs_eager_fused"] for k in kernels if k.get("max_abs_eager_fused") is not None]
        notes = sorted({k["note"] for k in kernels if k.get("note")})
        agreement.append(
            {"arm": arm, "max_abs": max(errors, default=None), "runs": len(errors), "notes": notes}
        )
    layers = max((run.maps["maps"].shape[1] for run in runs if run.maps), default=0)
    return {
        "scores": scores,
        "absent": _absent(sweep),
        "patterns": _patterns(sweep, chance),
        "maps": packed,
        "picks": head_maps.picks(sweep, chance),
        "agreement": agreement,
        "layers": layers,
        "layers_shown": len(packed[0]["layers"]) if packed else 0,
    }


def _absent(sweep: Sweep) -> list[dict[str, str]]:
    """Scores that an arm does not have, and why."""
    out = {}
    for run in sweep.planned:
        for name, why in (((run.record or {}).get("head_scores") or {}).get("notes") or {}).items():
            out[run.arm, name] = {"arm": run.arm, "label": SCORES.get(name, (name,))[0], "why": why}
    return list(out.values())
