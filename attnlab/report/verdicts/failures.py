"""Failure is data: every run that did not end well, by name, with its last lines; and what else to keep in
mind. A run that its infrastructure failed is listed under a word of its own, and is no failure of its arm.
"""

from collections.abc import Iterable
from typing import Any

from attnlab.report.schema import FailedRun, FailureCount, Failures
from attnlab.report.verdicts import leakage
from attnlab.report.verdicts.runs import Sweep
from attnlab.store.declarations import Experiment, Training

WORDS = {
    "diverged": "diverged",
    "out_of_memory": "ran out of memory",
    "crashed": "crashed",
    "timed_out": "timed out",
    "killed": "lost to the machine",
    "host_out_of_memory": "lost to the machine",
    "missing": "left no record",
}


def failures(sweep: Sweep) -> Failures:
    """The failed runs and the counts per arm; an arm's denominator is what was planned."""
    rows = []
    for run in sweep.planned:
        if run.done:
            continue
        failure = run.record.failure if run.record else None
        rows.append(
            FailedRun(
                arm=run.arm,
                seed=run.seed,
                id=run.id,
                status=run.status,
                word=WORDS[run.status],
                message=failure.message if failure else None,
                step=failure.step if failure else None,
                tail=list(failure.tail[-20:]) if failure else [],
            )
        )
    counts = [
        FailureCount(
            arm=arm,
            planned=len(sweep.of(arm)),
            failed=sum(not run.done and not run.lost for run in sweep.of(arm)),
            lost=sum(run.lost for run in sweep.of(arm)),
        )
        for arm in sweep.arms
    ]
    seen = [row.word for row in rows]
    words = [(word, seen.count(word)) for word in dict.fromkeys(WORDS.values()) if word in seen]
    return Failures(runs=rows, counts=counts, words=words, caveats=caveats(sweep))


def lost(sweep: Sweep) -> list[str]:
    """The sentence about runs that their infrastructure failed; [] where there are none."""
    runs = [f"{run.arm} seed {run.seed}" for run in sweep.planned if run.lost]
    if not runs:
        return []
    them = "it" if len(runs) == 1 else "them"
    return [
        f"Lost to the machine: {', '.join(runs)}. A lost run is no outcome of its arm, and claims that need "
        f"{them} are pending: the same command trains {them} again."
    ]


def caveats(sweep: Sweep) -> list[str]:
    """What the interval does not cover, in plain words."""
    known = [record.estimate for record in sweep.records]
    data = sorted({estimate.data["name"] for estimate in known if "name" in estimate.data})
    sizes = sorted({estimate.parameters for estimate in known if estimate.parameters})
    scale = (
        f"{sizes[0]:,} to {sizes[-1]:,} parameters"
        if len(sizes) > 1
        else f"{sizes[0]:,} parameters"
        if sizes
        else "this size"
    )
    rates = sorted({estimate.lr for estimate in known if estimate.lr is not None})
    lr = ", ".join(f"{rate:g}" for rate in rates) or "one learning rate"
    unchecked = [
        f"A law of attention does not hold, and the sweep was told to go on: {line}."
        for line in sweep.asked.unchecked
    ]
    return [
        *unchecked,
        *leakage.notes(sweep),
        "The interval covers other seeds of these same runs. "
        f"It does not cover other data than {', '.join(data) or 'these'}, "
        f"other scales than {scale}, or other hyper-parameters (learning rate {lr}).",
        "Attention weights show where information is routed from. "
        "They do not explain why the model said what it said.",
        "Training speed seen while other runs were busy is indicative only; the timing figures come from "
        "a process that had the machine to itself.",
    ]


def departures(sweep: Sweep) -> list[str] | None:
    """Where the sweep left what its file declares, and where that was changed after results were known, in
    words; None where neither is known. Of what was never declared, what is missing.
    """
    if sweep.asked.undeclared:
        alone = "one seed, so no difference has an interval: seed=0,1,2 gives each one"
        return ["no claim, no margin and no number of seeds", *([alone] if len(sweep.seeds) == 1 else ())]
    late = sweep.asked.on_record.departures if sweep.asked.on_record else []
    declared = sweep.asked.declared
    used = sweep.experiment.plain()
    if not declared:
        return late or None
    said = {key: value for key, value in declared.items() if value is not None}
    meant = _defaults(declared) | Experiment.model_validate(used | said).model_dump(include=set(said))
    if isinstance(looks := declared.get("looks"), list) and declared.get("seeds") is None:
        meant["seeds"] = list(range(looks[-1]))  # as many as the last look has
    if {"claims", "arms"} <= set(said):  # a ladder may leave out arms, and what is claimed of them
        known = {*meant["arms"], None}
        meant["claims"] = [claim for claim in meant["claims"] if {claim["arm"], claim["against"]} <= known]
    was = sweep.experiment.model_dump(include=set(declared))
    kept = {key: (meant[key], was[key]) for key in declared}
    kept["overrides"] = [], list(sweep.asked.overrides)
    left = [
        f"{key}: declared {_say(before)}, used {_say(now)}"
        for key, (before, now) in sorted(kept.items())
        if before != now
    ]
    return left + late


def _defaults(keys: Iterable[str]) -> dict[str, Any]:
    """What an experiment has where its file is silent; None for what it must say."""
    fields = {key: Experiment.model_fields[key] for key in keys}
    return {
        key: None if field.is_required() else field.get_default(call_default_factory=True)
        for key, field in fields.items()
    }


def _say(value: Any) -> str:
    if value is None or value == []:
        return "nothing"
    if isinstance(value, dict) and "training" in value:
        return str(Training.model_validate(value))
    if not isinstance(value, list):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return f"{len(value)} claims" if isinstance(value[0], dict) else ", ".join(map(str, value))
