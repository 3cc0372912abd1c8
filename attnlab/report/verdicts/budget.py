"""Is it a fair fight? What each arm was given, against the baseline, and whether it is the same.

A row that the experiment declares `held` and that differs makes a claim NOT COMPARABLE; any other
difference is shown and may well be the point of the experiment (fewer KV bytes), so it is marked in words
and never in alarm.
"""

import math
from typing import Any, get_args

from attnlab.report.schema import ArmSeeds, BudgetCell, BudgetCheck, BudgetRow
from attnlab.report.verdicts.runs import Reason, Run, Sweep, common
from attnlab.report.verdicts.tuning import SPENT, sentence, tuning
from attnlab.store.declarations import canonical
from attnlab.store.schema import Budget, Metric
from attnlab.store.values import EPOCHS, worn

# How far two arms may be apart, as a share; the others that are numbers must be equal, and so must words.
TOLERANCES = {
    "parameters": 0.01,
    "parameters_non_embedding": 0.01,
    "parameters_attention": 0.01,
    "flops_per_token": 0.01,
}


TOKENS = "tokens"


def tolerance_of(key: str) -> float | None:
    """Relative, of a resource; None for one that is told in words."""
    field = Budget.model_fields.get(key)
    return None if field and str in get_args(field.annotation) else TOLERANCES.get(key, 0.0)


def _measured(runs: list[Run], key: str) -> tuple[Any, bool]:
    """The arm's value, and whether its seeds disagree on it: then it is their mean, or all their words."""
    known = [run.record.estimate.get(key) for run in runs if run.record]
    if key == TOKENS:  # those that a parent was trained on count too
        known = [
            None if own is None or run.ancestor_tokens is None else own + run.ancestor_tokens
            for own, run in zip(known, (run for run in runs if run.record), strict=True)
        ]
    seen = [value for value in known if value is not None]
    if not seen or common(seen) is not None:
        return (seen[0] if seen else None), False
    if all(isinstance(value, int | float) for value in seen):
        return sum(seen) / len(seen), True
    return ", ".join(sorted({str(value) for value in seen})), True


def _same(value: Any, base: Any, tolerance: float | None) -> bool:
    if tolerance is None or not isinstance(value, int | float) or not isinstance(base, int | float):
        return bool(value == base)
    return abs(value - base) <= tolerance * abs(base)


def budget(sweep: Sweep) -> BudgetCheck:
    """A row per resource, a cell per arm with its value, its ratio to the baseline and its mark."""
    held = {canonical(name) for name in sweep.experiment.held}
    resources = tuple(Budget.model_fields)
    rows = list[BudgetRow]()
    for key in [*resources, *sorted(held - {*resources, SPENT.name})]:
        measured = {arm: _measured(sweep.done(arm), key) for arm in sweep.arms}
        if key == EPOCHS and key not in held and not any(value for value, _ in measured.values()):
            continue  # no text is read twice where all is drawn, and an older record does not say
        rows.append(_row(sweep, sweep.metric(key), measured, key in held))
    tuned = tuning(sweep)
    if tuned is not None:
        spent: dict[str, tuple[Any, bool]] = {entry.arm: (entry.tokens, False) for entry in tuned.arms}
        rows.append(_row(sweep, SPENT, spent, SPENT.name in held))
    counts = [
        ArmSeeds(arm=arm, planned=len(sweep.of(arm)), finished=len(sweep.done(arm))) for arm in sweep.arms
    ]
    return BudgetCheck(
        rows=rows,
        held=sorted(held),
        seeds=counts,
        match=sweep.experiment.match,
        match_by=sweep.experiment.match_by,
        unmatched=sweep.experiment.unmatched,
        lr_tuning=sentence(sweep),
        tuning=tuned,
    )


def repeated(sweep: Sweep) -> list[str]:
    """The sentence about arms that read their text too often; [] where none did."""
    sentence = worn({arm: _measured(sweep.done(arm), EPOCHS)[0] for arm in sweep.arms})
    return [f"{sentence[0].upper()}{sentence[1:]}."] if sentence else []


FEW = 50  # steps: fewer train no model to be judged
GUESS = 0.98  # of the loss of guessing uniformly: above it, nothing was learned


def untrained(sweep: Sweep, arm: str, against: str) -> str | None:
    """Why these two arms show nothing of what training makes of them; None where they do. Runs that measure
    or go on from another are as trained as that one.
    """
    records = [run.record for name in (arm, against) for run in sweep.done(name) if run.record]
    own = [
        record for record in records if not (record.config.get("parent") or record.config.get("measurement"))
    ]
    if few := [
        int(steps) for record in own if (steps := record.estimate.get("steps")) is not None and steps < FEW
    ]:
        return f"trained for {min(few)} step{'s' if min(few) > 1 else ''} of the {FEW} that it takes at least"
    metric = sweep.metric(sweep.experiment.metric)
    reached = [(record.figure(metric.name), record.estimate.data.get("vocab_size")) for record in own]
    if (
        reached
        and metric.unit == "nats"
        and all(loss and size and size > 1 and loss > GUESS * math.log(size) for loss, size in reached)
    ):
        return "no better than guessing when their training ended"
    return None


def _row(sweep: Sweep, metric: Metric, measured: dict[str, tuple[Any, bool]], held: bool) -> BudgetRow:
    tolerance = tolerance_of(metric.name)
    base = measured[sweep.baseline][0]
    cells = []
    for arm in sweep.arms:
        value, varies = measured[arm]
        missing = value is None or base is None
        same = None if missing else _same(value, base, tolerance) and not varies
        ratio = value / base if not missing and isinstance(value, int | float) and base else None
        cells.append(BudgetCell(arm=arm, value=value, ratio=ratio, same=same, varies=varies))
    known = [cell.same for cell in cells if cell.same is not None]
    return BudgetRow(
        key=metric.name,
        label=metric.words,
        unit=metric.unit,
        tolerance=tolerance,
        held=held,
        cells=cells,
        mark="unknown" if not known else "equal" if all(known) else "differs",
    )


def crosses(table: BudgetCheck, arm: str, against: str) -> list[Reason]:
    """Why a claim about these two arms cannot be decided: the held rows in which they differ, in words. What
    would have been made equal in an arm that was left out of that is no reason.
    """
    excused = canonical(table.match) if {arm, against} & set(table.unmatched) else None
    reasons = list[Reason]()
    for row in table.rows:
        if not row.held or row.key == excused:
            continue
        ours, theirs = (row.cell(name) for name in (arm, against))
        if ours.value is None or theirs.value is None:
            continue
        if ours.varies or theirs.varies:
            text = f"{row.label} declared held, but changing from seed to seed"
            reasons.append(Reason(row.label, text))
        elif not _same(ours.value, theirs.value, row.tolerance):
            difference = f"{_plain(ours)} in {arm} and {_plain(theirs)} in {against}"
            text = f"{row.label} declared held, but {difference}"
            reasons.append(Reason(row.label, text))
    return reasons


def _plain(cell: BudgetCell) -> str:
    value = cell.value
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.6g}"
        if isinstance(value, float)
        else str(value)
    )
