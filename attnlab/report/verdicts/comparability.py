"""Whether two arms may be compared in a metric: like with like, or NOT COMPARABLE with the reason.

Claims, effects and rankings all ask here. What is counted or timed depends on no data and sees no target, so
only budgets that are declared held stand against it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attnlab.report.schema import BudgetCheck
from attnlab.report.verdicts import leakage
from attnlab.report.verdicts.budget import crosses
from attnlab.report.verdicts.runs import Reason, Sweep
from attnlab.store.declarations import SPENT
from attnlab.store.schema import Budget, RunRecord

DATA = ("name", "val_tokens", "val_windows", "vocab_size")  # facts that tell two validation sets apart
LOSS_UNITS = ("nats", "bits")


def reasons(sweep: Sweep, table: BudgetCheck, arm: str, against: str, metric: str) -> list[Reason]:
    """Why these two arms cannot be compared in a metric, one reason each; [] where they can."""
    found = crosses(table, arm, against)
    if not _is_prediction(sweep, metric):
        return found
    found += leakage.reasons(sweep, arm, against)
    pairs = [pair for pair in _pairs(sweep, arm, against) if not any(map(_is_on_paper, pair))]
    for check in (_data, _declarations, _settings, _prefix):
        found += next(
            ([reason] for pair in pairs if (reason := check(sweep, metric, arm, against, *pair))), []
        )
    return found


def apart(sweep: Sweep, table: BudgetCheck, metric: str) -> set[str]:
    """The arms that cannot be compared with the baseline in a metric."""
    return {arm for arm in sweep.others if reasons(sweep, table, arm, sweep.baseline, metric)}


def _is_prediction(sweep: Sweep, metric: str) -> bool:
    """Whether a metric comes from a model's predictions: it is no resource, memory, speed, time or count."""
    if metric in sweep.times or metric in Budget.model_fields or metric == SPENT:
        return False
    if any(metric in (record.memory | record.speed) for record in sweep.records):
        return False
    return not sweep.counted(metric, sweep.arms)


def _pairs(sweep: Sweep, arm: str, against: str) -> Iterator[tuple[RunRecord, RunRecord]]:
    """The records of both arms, of each seed that both finished."""
    for seed in sweep.seeds:
        ours = sweep.at[arm, seed]
        theirs = sweep.at[against, seed]
        if ours.done and theirs.done and ours.record and theirs.record:
            yield ours.record, theirs.record


def _is_on_paper(record: RunRecord) -> bool:
    """Whether a run's figures are stated or come from shapes alone: it has looked at no data."""
    return bool(record.config.get("measurement")) and record.estimate.data.get("validation") is None


def _data(
    sweep: Sweep, metric: str, arm: str, against: str, ours: RunRecord, theirs: RunRecord
) -> Reason | None:
    """Losses are compared on the same validation data in the same unit; per byte, on the same text."""
    a = ours.estimate.data
    b = theirs.estimate.data
    said = sweep.metric(metric)
    measured = bool(ours.config.get("measurement") or theirs.config.get("measurement"))
    if measured and said.unit not in LOSS_UNITS:
        return None  # a study's own figure, such as a share of heads
    same_text = a.get("val_text") is not None and a.get("val_text") == b.get("val_text")
    if said.scores == "bytes":
        text = f"{metric} of {arm} and {against} is of different validation texts"
        return None if same_text or _unknown(a, b, "val_text") else Reason("validation text", text)
    if said.scores == "lengths":
        spans = [_spans(record) for record in (ours, theirs)]
        if spans[0] == spans[1] or _unknown(a, b, "val_text"):
            return None
        text = f"{metric} of {arm} and {against} is of different texts or lengths: {_differing(*spans)}"
        return Reason("validation text", text)
    if a.get("unit") != b.get("unit") and not _unknown(a, b, "unit"):
        text = f"{metric} is per {a['unit']} in {arm} and per {b['unit']} in {against}"
        text += _per_byte(sweep) if same_text else ", and they share no text to compare bytes of"
        return Reason("unit of the loss", text)
    if a.get("validation") == b.get("validation") or _unknown(a, b, "validation"):
        return None
    facts = [{key: data.get(key) for key in DATA} for data in (a, b)]
    for one, record in zip(facts, (ours, theirs), strict=True):
        one["length"] = record.estimate.context
    differing = _differing(*facts) or "other tokens or targets"
    text = f"{arm} and {against} are validated on different data ({differing})"
    text += _per_byte(sweep) if same_text else ": use the same data for both"
    return Reason("validation data", text)


def _per_byte(sweep: Sweep) -> str:
    """The metric that compares other units of the same text, if the runs have one."""
    known = {**sweep.records[0].declared, **sweep.records[0].estimate.declared}
    name = next((name for name, metric in known.items() if metric.scores == "bytes"), None)
    return f": compare {name}" if name else ""


def _spans(record: RunRecord) -> dict[str, Any]:
    """What decides on which tokens losses at several lengths are taken."""
    measure = record.config.get("measurement") or record.config.get("measure", {})
    data = record.estimate.data
    trained = measure.get("trained") or record.estimate.context
    facts = {key: data.get(key) for key in ("unit", "vocab_size", "val_text")}
    return {**facts, "trained length": trained, "lengths": measure.get("lengths")}


def _declarations(
    sweep: Sweep, metric: str, arm: str, against: str, ours: RunRecord, theirs: RunRecord
) -> Reason | None:
    """Both arms mean the same by a metric's name."""
    said = [record.metric(metric) for record in (ours, theirs)]
    if None in said or said[0] == said[1]:
        return None
    facts = [{key: getattr(one, key) for key in ("unit", "kind", "direction")} for one in said]
    stated = [key for key in facts[0] if facts[0][key] and facts[1][key]]  # who is silent contradicts nobody
    differing = _differing(*({key: one[key] for key in stated} for one in facts))
    text = f"{arm} and {against} declare {metric} differently ({differing})"
    return Reason("meaning of the metric", text) if differing else None


def _settings(
    sweep: Sweep, metric: str, arm: str, against: str, ours: RunRecord, theirs: RunRecord
) -> Reason | None:
    """What is looked for at every validation depends on how often and how long it is looked for."""
    if metric not in sweep.budgets and sweep.metric(metric).scores != "best":
        return None
    facts = [
        {"measure.every": record.config.get("measure", {}).get("every"), "steps": record.estimate.steps}
        for record in (ours, theirs)
    ]
    if not (differing := _differing(*facts)):
        return None
    return Reason("validations", f"{metric} depends on how often it is taken ({differing})")


def _prefix(
    sweep: Sweep, metric: str, arm: str, against: str, ours: RunRecord, theirs: RunRecord
) -> Reason | None:
    """Targets in a prefix that an arm sees whole are left out of what is known by position, no more."""
    seen = [name for name in (arm, against) if sweep.prefix(name) > 1]
    counts = [record.targets_by_position for record in (ours, theirs)]
    none_inside = all(counts) and not any(sum(each[: sweep.left_out]) for each in counts)
    if not seen or none_inside or (all(counts) and metric in ours.by_position):
        return None
    without = next(iter(ours.by_position or theirs.by_position), "another run")
    text = f"{seen[0]} sees its prefix whole, whose targets {metric} counts: compare {without}"
    return Reason("prefix", text)


def _unknown(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    """Whether one of the two does not say: a trainer of a user's, or an older record."""
    return a.get(key) is None or b.get(key) is None


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """The keys in which two mappings differ, with both values; "" where they do not."""
    shown = [(key, str(a[key])[:60], str(b.get(key))[:60]) for key in a if a[key] != b.get(key)]
    return ", ".join(f"{key} {one} and {other}" for key, one, other in shown)
