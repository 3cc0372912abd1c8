"""Runs to report: one pure function, the same runs always give the same report.json.

Everything a page shows is decided here; the renderers only lay it out. A sweep with nothing usable still
gets a report, and its word is NO RESULT.
"""

import math
from typing import Any

import numpy as np

from attnlab.report.schema import (
    BudgetCheck,
    ClaimResult,
    ExperimentSummary,
    Provenance,
    Report,
    RunRow,
    Separation,
    Standing,
    TextSection,
    Timing,
    VerdictSection,
)
from attnlab.report.tables.config_diff import NOT_DESIGN, config_diff, reproduce
from attnlab.report.tables.curves import curves, positions
from attnlab.report.tables.heads import heads
from attnlab.report.tables.length import length
from attnlab.report.tables.races import races
from attnlab.report.tables.text.kinds import kinds
from attnlab.report.tables.text.written import written
from attnlab.report.tables.tradeoff import tradeoff
from attnlab.report.verdicts import comparability, leakage
from attnlab.report.verdicts.alike import broken, unlike
from attnlab.report.verdicts.budget import budget, repeated
from attnlab.report.verdicts.claims import claims, headline
from attnlab.report.verdicts.claims import waiting as waiting_claims
from attnlab.report.verdicts.effects import effects, metrics
from attnlab.report.verdicts.exchange import exchange, margin_said
from attnlab.report.verdicts.failures import departures, failures, lost
from attnlab.report.verdicts.runs import Asked, Run, Sweep
from attnlab.report.verdicts.tuning import cautions
from attnlab.store.declarations import Experiment
from attnlab.store.fingerprint import flatten
from attnlab.store.schema import Budget


def build(asked: Asked, runs: list[Run], timing: Timing | None, provenance: Provenance) -> Report:
    """The report of a sweep: numbers, decisions and warnings."""
    sweep = Sweep(asked, runs, timing)
    left = departures(sweep)
    table = budget(sweep)
    claim_rows = claims(sweep, table, exploratory=bool(left))
    rows = effects(sweep, claim_rows, table)
    apart = comparability.apart(sweep, table, asked.experiment.metric)
    finished = sum(run.done for run in sweep.planned)
    report = Report(
        experiment=summarize(sweep),
        verdict=VerdictSection(
            headline="EXPLORATORY" if asked.undeclared else headline(claim_rows),
            exploratory=bool(left),
            undeclared=asked.undeclared,
            departures=left or [],
            apart=_apart(sweep, table, claim_rows),
            unlike=[*_partial(sweep), *lost(sweep), *broken(sweep), *unlike(sweep), *repeated(sweep)],
            claims=claim_rows,
            finished=finished,
            planned=len(sweep.planned),
        ),
        place=asked.place,
        texts=None,  # what all texts say together: told once each has its report
        budget=table,
        leakage=leakage.summary(sweep),
        exchange=exchange(sweep),
        effects=rows,
        tradeoff=tradeoff(sweep, rows),
        curves=curves(sweep, apart),
        positions=positions(sweep),
        length=length(sweep),
        races=races(sweep, table),
        heads=heads(sweep),
        text=TextSection(kinds=kinds(sweep, apart), written=written(sweep)),
        failures=failures(sweep),
        config=config_diff(sweep),
        reproduce=reproduce(sweep, provenance),
        timing=timing,
        runs=[row(run, sweep) for run in sweep.planned],
        warnings=warnings(sweep, table, declared=left is not None),
        declared=None,
    )
    short = Report.model_validate(plain(report.plain()))
    return short.model_copy(update={"declared": asked.on_record})  # to the last digit, as its hash has it


def summarize(sweep: Sweep) -> ExperimentSummary:
    """The experiment as the head of a report shows it, its margin in the metric's unit."""
    declared = sweep.experiment.plain()
    return ExperimentSummary(
        **{key: declared[key] for key in Experiment.shown()}
        | {"margin": sweep.margin, "margin_said": margin_said(sweep)}
    )


def waiting(asked: Asked, runs: list[Run]) -> list[Standing]:
    """Per claim its word so far, its looks, and the seeds that it needs by now, of what has been trained."""
    sweep = Sweep(asked, runs)
    return waiting_claims(sweep, budget(sweep))


def _partial(sweep: Sweep) -> list[str]:
    """That more is to come, where the report does not wait for it."""
    finished = sum(run.done for run in sweep.planned)
    planned = len(sweep.planned)
    if not sweep.asked.under_way or finished == planned:
        return []
    return [
        f"Written while runs may be under way: {finished} of {planned} are finished. A verdict may change."
    ]


def _apart(sweep: Sweep, table: BudgetCheck, claims: list[ClaimResult]) -> list[Separation]:
    """The pairs that are not compared in a metric, each with its reasons: of the tables and of the claims."""
    asked = [(arm, sweep.baseline, metric) for metric in metrics(sweep) for arm in sweep.others]
    asked += [(claim.arm, claim.against, claim.metric) for claim in claims]
    found = []
    for arm, against, metric in dict.fromkeys(asked):
        if reasons := comparability.reasons(sweep, table, arm, against, metric):
            texts = [reason.text for reason in reasons]
            found.append(Separation(arm=arm, against=against, metric=metric, reasons=texts))
    return found


def row(run: Run, sweep: Sweep | None = None) -> RunRow:
    """What it is and all its figures, in groups; a loss without the targets that count in no arm."""
    record = run.record
    figures: dict[str, float | None] = dict(record.metrics) if record else {}
    if record and run.done and sweep is not None and sweep.left_out:
        figures |= {name: sweep.value(run.arm, run.seed, name) for name in record.by_position}
    return RunRow(
        arm=run.arm,
        seed=run.seed,
        id=run.id,
        axes=dict(run.axes),
        status=run.status,
        seconds=record.seconds if record else None,
        started=record.started if record else None,
        metrics=figures,
        budget=Budget(**record.estimate.budget()) if record else Budget(),
        memory=record.memory if record else {},
        speed=record.speed if record else {},
    )


def warnings(sweep: Sweep, table: BudgetCheck, *, declared: bool) -> list[str]:
    """What a careful reader should know before believing a number, each as one sentence."""
    out = []
    if not declared:
        out.append(
            "Nothing says what the experiment file declares, so departures from it could not be checked."
        )
    least = min(len(sweep.of(arm)) for arm in sweep.arms)
    if least < 6:
        floor = 2.0 ** (1 - least)
        out.append(
            f"With {least} seeds the exact sign-flip test cannot go below {floor:.3g}: "
            "read the interval instead."
        )
    for row in table.rows:
        if row.held and row.mark == "unknown":
            out.append(f"{row.label} declared held, but no finished run says what it was.")
    for arm in sweep.others:
        if apart := comparability.reasons(sweep, table, arm, sweep.baseline, sweep.experiment.metric):
            out.append(f"{arm}: {'; '.join(reason.text for reason in apart)}.")
    out += [*confounds(sweep), *shared_seeds(sweep)]
    out += cautions(sweep)
    for run in sweep.planned:
        parts = run.record.split if run.record else 1
        if parts > 1:
            out.append(
                f"{run.arm}, seed {run.seed}: each batch was trained in {parts} parts for want of memory; "
                "the effective batch is the same, the speed and the peak of memory are not."
            )
    out += [told for run in sweep.planned if (told := resumptions(run))]
    for run in sweep.planned:
        memory = run.record.memory if run.record else {}
        formula = memory.get("kv_bytes_per_token_formula")
        live = memory.get("kv_bytes_per_token_live")
        if formula is not None and live is not None and formula != live:
            out.append(
                f"{run.arm}, seed {run.seed}: the live cache holds {live} B per token, "
                f"the formula says {formula}."
            )
    return out


def resumptions(run: Run) -> str:
    """How close a run that went on from a checkpoint comes to what it was; on a CPU it is the same."""
    record = run.record
    if record is None or not record.resumed:
        return ""
    off = max((row["off"] for row in record.resumed if row["off"] is not None), default=None)
    if not off and record.environment.get("device") == "cpu":
        return ""
    says = "no step was trained twice, which would have shown how close it comes to what it was"
    says = says if off is None else f"of a step that was trained twice the loss was {off:.2g} nats off"
    return f"{run.arm}, seed {run.seed}: it went on from a checkpoint; {says}."


def plain(value: Any) -> Any:
    """JSON's own types only: numbers of numpy become Python's, and what is not a number becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else None
    return value


def confounds(sweep: Sweep) -> list[str]:
    """A sentence for each arm that changes the model and, beside it, how it is trained: its effect is that of
    both. A learning rate that was tuned for each arm, and what matches budgets, are no such change.
    """
    configs = {
        arm: next((dict(flatten(run.record.config)) for run in sweep.of(arm) if run.record), None)
        for arm in sweep.arms
    }
    base = configs[sweep.baseline]
    own = {"measurement", sweep.experiment.match_by}
    own |= {"optim.lr"} if sweep.asked.tuning else set()
    skipped = (NOT_DESIGN - {"parent"}) | {"measure", "decode"}
    out = []
    for arm in sweep.others:
        if base is None or (config := configs[arm]) is None:
            continue
        differing = {key for key in config.keys() | base.keys() if config.get(key) != base.get(key)} - own
        beside = sorted(
            key for key in differing if key.partition(".")[0] not in {"model", *skipped} and key not in own
        )
        if beside and any(key.startswith("model.") for key in differing):
            out.append(
                f"{arm} changes the model and also {', '.join(beside)}: its difference from "
                f"{sweep.baseline} is that of both."
            )
    return out


def shared_seeds(sweep: Sweep) -> list[str]:
    """A sentence for each arm whose seeds have one initialization, data order or dropout in common: its runs
    are less independent than their number says.
    """
    out = []
    for arm in sweep.arms:
        for part in ("model", "data", "optim"):
            seeds = [run.record.config.get(part, {}).get("seed") for run in sweep.done(arm) if run.record]
            own = {*seeds}
            if len(seeds) > 1 and len(own) == 1 and None not in own:
                shared = f"{part}.seed={own.pop()}"
                out.append(f"All seeds of {arm} share {shared}: the interval covers less than it says.")
    return out
