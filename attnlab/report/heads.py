"""Head scores by layer, pooled over seeds, and the attention maps of one run of each arm on the same text.

Head numbers mean nothing across seeds or arms, so scores are compared as distributions and maps only stand
side by side; nothing here averages "head 3".
"""

from typing import Any

import numpy as np

from attnlab.report import maps
from attnlab.report.runs import Run, Sweep

# label, what it is, threshold for the count, chance under uniform causal attention over T positions
SCORES: dict[str, tuple[str, str, float | None, Any]] = {
    "previous": (
        "previous token",
        "mean attention from each token to the one before it",
        0.3,
        lambda t: _harmonic(t)[1:].mean(),
    ),
    "current": ("current token", "mean attention of a token to itself", 0.3, lambda t: _harmonic(t).mean()),
    "duplicate": ("duplicate token", "attention to earlier copies of the same token", 0.3, None),
    "induction": ("induction", "attention to what followed the earlier copy of this token", 0.3, None),
    "copying": (
        "copying (OV)",
        "share of the rise in logits that goes to the attended token, -1 to 1",
        0.3,
        lambda t: 0.0,
    ),
    "sink": ("attention sink", "mean attention to the first token", 0.3, lambda t: _harmonic(t).mean()),
    "entropy": ("entropy", "of each row, as a share of the uniform one: 1 is uniform", None, lambda t: 1.0),
    "local": (
        "local (8 tokens)",
        "mean attention to the last 8 tokens",
        0.7,
        lambda t: (8 * _harmonic(t)[8:]).mean() if t > 8 else 1.0,
    ),
    "distance": ("mean distance", "how far back attention reaches, in tokens", None, lambda t: (t - 1) / 4),
    "confidence": (
        "confidence",
        "mean of the largest weight of each row",
        0.5,
        lambda t: _harmonic(t).mean(),
    ),
}
ALIASES = {
    "previous_token": "previous",
    "current_token": "current",
    "duplicate_token": "duplicate",
    "local_8": "local",
    "mean_distance": "distance",
    "copying_ov": "copying",
}
ROOM = 2_000_000  # characters of packed maps in one report


def _harmonic(length: int) -> np.ndarray:
    return 1 / np.arange(1, length + 1)


def _length(sweep: Sweep) -> int | None:
    lengths = [run.maps["maps"].shape[-1] for run in sweep.planned if run.maps is not None]
    return int(lengths[0]) if lengths else None


def _scores(sweep: Sweep) -> list[dict[str, Any]]:
    length = _length(sweep)
    found: dict[str, list[dict[str, Any]]] = {}
    given: dict[str, Any] = {}
    for run in sweep.planned:
        scores = (run.record or {}).get("head_scores") or {} if run.done else {}
        given.update(scores.get("chance") or {})
        for name, table in scores.items():
            if name != "chance":
                found.setdefault(name, []).append({"arm": run.arm, "seed": run.seed, "values": table})
    out = []
    for name in sorted(found):
        label, about, threshold, chance = SCORES.get(ALIASES.get(name, name), (name, "", None, None))
        level = given.get(name, float(chance(length)) if chance and length else None)
        counts = []
        for arm in sweep.arms:
            tables = [np.asarray(row["values"], float) for row in found[name] if row["arm"] == arm]
            if tables:
                over = [int((table > threshold).sum()) for table in tables] if threshold is not None else []
                pooled = np.concatenate([table.ravel() for table in tables])
                counts.append(
                    {
                        "arm": arm,
                        "heads": int(tables[0].size),
                        "seeds": len(tables),
                        "mean": float(np.mean(pooled)),
                        "mean_low": float(min(table.mean() for table in tables)),
                        "mean_high": float(max(table.mean() for table in tables)),
                        "over": float(np.mean(over)) if over else None,
                        "over_low": min(over, default=None),
                        "over_high": max(over, default=None),
                    }
                )
        out.append(
            {
                "name": name,
                "label": label,
                "about": about,
                "threshold": threshold,
                "chance": level,
                "runs": found[name],
                "counts": counts,
            }
        )
    return out


def _shown(sweep: Sweep) -> list[Run]:
    """One run of each arm, all of the same seed where there is such a seed."""
    having = {arm: [run for run in sweep.done(arm) if run.maps is not None] for arm in sweep.arms}
    having = {arm: runs for arm, runs in having.items() if runs}
    seeds = [{run.seed for run in runs} for runs in having.values()]
    shared = next((seed for seed in sweep.seeds if seeds and all(seed in some for some in seeds)), None)
    return [next((run for run in runs if run.seed == shared), runs[0]) for runs in having.values()]


def _packed(runs: list[Run]) -> list[dict[str, Any]]:
    """The runs' maps, of as many evenly spaced layers as there is room for; in all arms the same ones."""

    def pack(layers: list[int] | None) -> list[dict[str, Any]]:
        return [
            {"arm": run.arm, "seed": run.seed, "run": run.id, **maps.encode(run.maps, layers)}
            for run in runs
            if run.maps is not None
        ]

    found = pack(None)
    size = sum(len(entry["weights"]) for entry in found)
    shared = min((len(entry["layers"]) for entry in found), default=0)
    if size <= ROOM:
        return found
    kept = max(1, shared * ROOM // size)
    return pack(sorted({round(i * (shared - 1) / max(1, kept - 1)) for i in range(kept)}))


def heads(sweep: Sweep) -> dict[str, Any] | None:
    """Scores, packed maps and max|eager - fused| per arm; None where nothing was measured."""
    scores, runs = _scores(sweep), _shown(sweep)
    packed = _packed(runs)
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
    shown = len(packed[0]["layers"]) if packed else 0
    return {"scores": scores, "maps": packed, "agreement": agreement, "layers": layers, "layers_shown": shown}
