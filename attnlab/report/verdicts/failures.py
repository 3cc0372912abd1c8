"""Failure is data: every run that did not end well, by name, with its last lines; and what else to keep in
mind.
"""

from typing import Any

from attnlab.report.verdicts.runs import Sweep

WORDS = {
    "diverged": "diverged",
    "out_of_memory": "ran out of memory",
    "crashed": "crashed",
    "timed_out": "timed out",
    "killed": "was killed",
    "missing": "left no record",
}


def failures(sweep: Sweep) -> dict[str, Any]:
    """The failed runs and the counts per arm; an arm's denominator is what was planned."""
    rows = []
    for run in sweep.planned:
        if run.done:
            continue
        failure = (run.record or {}).get("failure") or {}
        rows.append(
            {
                "arm": run.arm,
                "seed": run.seed,
                "id": run.id,
                "status": run.status,
                "word": WORDS[run.status],
                "message": failure.get("message"),
                "step": failure.get("step"),
                "tail": list(failure.get("tail") or [])[-20:],
            }
        )
    counts = [
        {"arm": arm, "planned": len(sweep.seeds), "failed": sum(not r.done for r in sweep.of(arm))}
        for arm in sweep.arms
    ]
    seen = [row["word"] for row in rows]
    words = [[word, seen.count(word)] for word in WORDS.values() if word in seen]
    return {"runs": rows, "counts": counts, "words": words, "caveats": caveats(sweep)}


def caveats(sweep: Sweep) -> list[str]:
    """What the interval does not cover, in plain words."""
    records = [run.record for run in sweep.planned if run.record]
    data = sorted({record["data"]["name"] for record in records})
    sizes = sorted(
        {record["budget"]["parameters"] for record in records if record["budget"].get("parameters")}
    )
    scale = (
        f"{sizes[0]:,} to {sizes[-1]:,} parameters"
        if len(sizes) > 1
        else f"{sizes[0]:,} parameters"
        if sizes
        else "this size"
    )
    rates = sorted({record["budget"]["lr"] for record in records if record["budget"].get("lr") is not None})
    lr = ", ".join(f"{rate:g}" for rate in rates) or "one learning rate"
    unchecked = [
        f"A law of attention does not hold, and the sweep was told to go on: {line}."
        for line in sweep.experiment.get("unchecked") or []
    ]
    return [
        *unchecked,
        "The interval covers other seeds of these same runs. "
        f"It does not cover other data than {', '.join(data) or 'these'}, "
        f"other scales than {scale}, or other hyper-parameters (learning rate {lr}).",
        "Attention weights show where information is routed from. "
        "They do not explain why the model said what it said.",
        "Training speed seen while other runs were busy is indicative only; the timing figures come from "
        "a process that had the machine to itself.",
    ]


def departures(sweep: Sweep) -> list[str] | None:
    """Where the sweep left what its file declares, in words; None where that is not known."""
    declared = sweep.experiment.get("declared")
    if not declared:
        return None
    return [
        f"{key}: declared {_say(declared[key])}, used {_say(sweep.experiment.get(key))}"
        for key in sorted(declared)
        if declared[key] != sweep.experiment.get(key)
    ]


def _say(value: Any) -> str:
    if value is None or value == []:
        return "nothing"
    if not isinstance(value, list):
        return str(value)
    return f"{len(value)} claims" if isinstance(value[0], dict) else ", ".join(map(str, value))
