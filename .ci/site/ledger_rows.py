"""Rows of the ledger: one per claim, the cost of each report, and false-positive rates of the rules."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from conflicts import Conflict, find_conflicts
from false_positives import MIN_RUNS, measure_false_positives
from ledger_goals import GoalTable, LadderVerdicts, build_goal_tables
from outdated import load_outdated

from attnlab.config import CONF
from attnlab.report.ladder_schema import LADDER_FILE, LadderReport, load_ladder
from attnlab.report.number_format import NONE, format_number
from attnlab.report.replications.ladder_analysis import summarize_decision_accuracy
from attnlab.report.replications.ladder_page import describe_learning_rate_caveat
from attnlab.report.schema import ClaimResult, ExperimentSummary, PreregisteredClaim, Report, RunRow, Verdict
from attnlab.report.tables.claim_sources import Citation, build_citations, load_reworded_report
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import (
    find_claim_effect,
    format_conclusion,
    format_decision,
    format_effect,
    format_quantity,
    format_threshold,
    format_training,
    needs_fresh_seeds,
)
from attnlab.report.verdicts.evidence_bases import BASES

OTHER_AXIS = "other"  # axis of arms that set no config group
NULL_EXPERIMENT = "aa_null"  # the A/A experiment, in which no arms differ


@dataclass(frozen=True)
class LedgerRow:
    """A claim as both pages show it."""

    folder: str  # URL-quoted
    experiment: str  # with its size
    axis: str
    identity: bool
    says: str
    comparison: str  # quantity, arms and threshold
    reason: str
    sources: tuple[str, ...]
    source_says: str
    conflicting_source: str  # a source with the opposite finding; empty if none is known
    conflicting_says: str
    verdict: str
    corpus: str  # the corpus of the verdict, where the experiment has several; else empty
    exploratory: bool
    effect: str  # with its interval at CONFIDENCE_LEVEL
    training_equivalent: str  # in training compute; empty without a calibration
    decision_interval: str  # the deciding interval, with its level
    seeds: str
    ladder_verdict: str  # whether it holds across sizes or budgets, if there is a ladder
    corpora: str  # verdicts on corpora other than the report's own


@dataclass(frozen=True)
class LedgerReport:
    """Cost and origin of a report."""

    folder: str  # URL-quoted
    experiment: str
    question: str
    headline: str  # on every corpus of the experiment
    cost: str
    command: str
    commit: str  # the code that made it


@dataclass(frozen=True)
class FalsePositiveRates:
    """Rate at which each rule accepts a false claim: rule, rate, lower bound."""

    runs: int
    rounds: str
    rules: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Ledger:
    """Everything the pages show about a folder of reports."""

    rows: list[LedgerRow]
    reports: list[LedgerReport]
    false_positive_rates: FalsePositiveRates | None
    agreement: str = ""  # how often a smaller ladder size gives the verdict of the larger
    conflicts: tuple[tuple[str, Conflict], ...] = ()  # (folder, conflict with a later folder)
    goals: tuple[GoalTable, ...] = ()
    outdated: frozenset[str] = frozenset()  # folders, URL-quoted

    def select_rows(self, *, identity: bool) -> list[LedgerRow]:
        """Select the rows of one of the two tables."""
        return [row for row in self.rows if row.identity is identity]


def load_ledger(folder: Path) -> Ledger:
    """Load all reports of a folder, with the ladders' verdicts on the same comparisons.

    Reports of single ladder sizes and of further corpora appear only through the report they belong to, and
    where two reports differ on the same arms.

    Raises:
        ValueError: the folder holds no report, or one cannot be read.
    """
    sources = sorted(folder.glob("*/report.json"))
    if not sources:
        raise ValueError(
            f"{folder}: no */report.json found: give the folder that contains the report folders"
        )
    ladders = [load_ladder(source.parent) for source in sorted(folder.glob(f"*/{LADDER_FILE}"))]
    ladder_verdicts = summarize_scaling_verdicts(ladders)
    all_reports = {source.parent.name: load_reworded_report(source) for source in sources}
    reports = {
        quote(os.fsencode(name)): report
        for name, report in all_reports.items()
        if not report.replication or name == report.replication.combined_report
    }
    rows = [
        _build_row(name, report, claim, citation, ladder_verdicts)
        for name, report in reports.items()
        for claim, citation in zip(report.verdict.claims, build_citations(report), strict=True)
    ]
    false_positives = (
        _estimate_false_positives(reports[NULL_EXPERIMENT]) if NULL_EXPERIMENT in reports else None
    )
    return Ledger(
        rows,
        [_summarize_report(name, report) for name, report in reports.items()],
        false_positives,
        format_decision_accuracy(ladders),
        tuple(
            (name, conflict)
            for name, conflicts in sorted(find_conflicts(all_reports).items())
            for conflict in conflicts
            if name < conflict.folder
        ),
        tuple(
            build_goal_tables(
                reports,
                [report for report in all_reports.values() if report.corpora and not report.is_main],
                ladder_verdicts,
            )
        ),
        frozenset(quote(os.fsencode(name)) for name in load_outdated(folder)),
    )


def _build_row(
    name: str, report: Report, claim: ClaimResult, citation: Citation, ladder_verdicts: LadderVerdicts
) -> LedgerRow:
    experiment = report.experiment
    claim_effect = find_claim_effect(claim, report.effects)
    effect = claim_effect or claim
    return LedgerRow(
        folder=name,
        experiment=_format_experiment_name(experiment),
        axis=find_claim_axis(report, claim),
        identity=claim.holds_by_construction,
        says=claim.says,
        comparison=f"{format_quantity(claim)}, {claim.comparison_text}: {format_threshold(claim)}",
        reason=citation.reason or NONE,
        sources=tuple(source.strip() for source in (citation.source or NONE).split(";")),
        source_says=citation.source_says or NONE,
        conflicting_source=citation.other_source or "",
        conflicting_says=citation.other_says or NONE,
        verdict=claim.verdict,
        corpus=report.replication.name if report.replication and report.corpora else "",
        exploratory=claim.exploratory,
        effect=format_effect(effect),
        training_equivalent=format_training(effect.training_equivalent) if effect.training_equivalent else "",
        decision_interval=_format_decision_cell(claim),
        seeds=_format_seeds_cell(report, claim),
        ladder_verdict=_get_ladder_verdict(experiment, claim, ladder_verdicts),
        corpora=_format_corpus_verdicts(report, claim),
    )


def _format_decision_cell(claim: ClaimResult) -> str:
    """Format the deciding interval with its level and conclusion."""
    interval = format_decision(claim)
    return f"{interval}: {format_conclusion(claim)}" if interval else NONE


def _format_seeds_cell(report: Report, claim: ClaimResult) -> str:
    """Format the number of seeds behind a claim, their maximum, and the number that would decide it."""
    finished = len({run.seed for run in report.runs if run.is_done})
    used = claim.decision.n if BASES[claim.basis].has_interim_analyses else finished
    at_most = "at most " if isinstance(report.experiment.looks, list) else ""
    return f"{used} of {at_most}{len(report.experiment.seeds)}{_format_required_seeds(claim, report.runs)}"


def _get_ladder_verdict(
    experiment: ExperimentSummary, claim: ClaimResult, ladder_verdicts: LadderVerdicts
) -> str:
    if claim.decision.exact or claim.compare == "ratio" or claim.metric != experiment.metric:
        return NONE
    return ladder_verdicts.get((experiment.name, claim.arm, claim.against), NONE)


def _format_required_seeds(claim: ClaimResult, runs: Sequence[RunRow]) -> str:
    """Format the seeds that would decide an inconclusive claim with 80% power, and their training time.

    The time is for one run at a time; empty if there is no estimate.
    """
    estimate = claim.required_seeds
    if estimate is None or claim.verdict != Verdict.INCONCLUSIVE:
        return ""
    if not estimate.seeds:
        return f"; more than 10,000 for 80% power to {estimate.ends} it"
    fresh = " fresh, in a single analysis," if needs_fresh_seeds(claim) else ""
    seconds_by_arm = [[run.seconds or 0.0 for run in runs if run.arm == arm] for arm in claim.arms]
    hours = estimate.seeds * sum(fmean(seconds) for seconds in seconds_by_arm if seconds) / 3600
    return (
        f"; about {estimate.seeds:,}{fresh} for 80% power to {estimate.ends} it ({hours:.2g} h of training)"
    )


def _format_corpus_verdicts(report: Report, claim: ClaimResult) -> str:
    """Format a claim's verdicts on the corpora other than the report's own."""
    claims = [row for row in (report.corpora.claims if report.corpora else ()) if row.says == claim.says]
    own_corpus = report.replication.name if report.replication else None
    others = [
        f"{row.corpus}: {row.verdict}"
        for corpus_claims in claims
        for row in corpus_claims.rows
        if row.corpus != own_corpus
    ]
    return "; ".join(others) or NONE


def _format_experiment_name(experiment: ExperimentSummary) -> str:
    return f"{experiment.name}, size {experiment.size}" if experiment.size else experiment.name


def _summarize_report(name: str, report: Report) -> LedgerReport:
    provenance = report.reproduce
    seconds = sum(run.seconds or 0 for run in report.runs)
    return LedgerReport(
        name,
        _format_experiment_name(report.experiment),
        report.experiment.question or NONE,
        build_headline(report),
        f"{len(report.runs)} runs, {format_number(round(seconds))} s, {provenance.device or NONE}",
        provenance.command or NONE,
        (provenance.commit or NONE)[:10],
    )


def _estimate_false_positives(report: Report) -> FalsePositiveRates | None:
    """Estimate false-positive rates of the rules from the runs of the A/A comparison."""
    experiment = report.experiment
    results = {run.metrics.get(experiment.metric) for run in report.runs if run.is_done}
    values = sorted(float(value) for value in results if value is not None)
    if len(values) < MIN_RUNS or experiment.margin is None:  # equal runs count as one value
        return None
    outcomes = measure_false_positives(values, experiment.margin)
    rules = [(rule, f"{outcome.rate:.1%}", f"{outcome.low:.1%}") for rule, outcome in outcomes.items()]
    return FalsePositiveRates(len(values), f"{next(iter(outcomes.values())).rounds:,}", rules)


def format_totals(ledger: Ledger) -> str:
    """Format the number of claims in a sentence."""
    hypotheses = len(ledger.select_rows(identity=False))
    identities = len(ledger.select_rows(identity=True))
    return (
        f"{len(ledger.rows)} claims of {len(ledger.reports)} reports, {hypotheses} hypotheses and "
        f"{identities} identities: {format_verdict_counts(ledger.rows)}."
    )


def format_verdict_counts(rows: Sequence[LedgerRow]) -> str:
    """Format the count of each verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "none"


def summarize_scaling_verdicts(ladders: Sequence[LadderReport]) -> dict[tuple[str, str, str], str]:
    """(experiment, arm, against) -> the verdicts of all ladders, each after its scope."""
    verdicts: dict[tuple[str, str, str], list[str]] = {}
    for ladder in ladders:
        for row in ladder.comparisons:
            key = (ladder.experiment, row.arm, row.against)
            notes = ["exploratory"] if ladder.exploratory else []
            notes += ["learning rates differ"] if describe_learning_rate_caveat(ladder, row) else []
            note = f" ({', '.join(notes)})" if notes else ""
            verdicts.setdefault(key, []).append(f"{ladder.scope or ladder.ladder.name}: {row.verdict}{note}")
    return {key: "; ".join(texts) for key, texts in verdicts.items()}


def format_decision_accuracy(ladders: Sequence[LadderReport]) -> str:
    """Decision accuracy over all ladders of sizes, and without exploratory ones; empty without a ladder."""
    ladders = [ladder for ladder in ladders if not ladder.ladder.budgets]
    sentences = [_count_ladders(ladders)] if ladders else []
    preregistered = [ladder for ladder in ladders if not ladder.exploratory]
    if 0 < len(preregistered) < len(ladders):
        sentences += [f"Without exploratory ladders: {_count_ladders(preregistered)}"]
    return " ".join(sentences)


def _count_ladders(ladders: Sequence[LadderReport]) -> str:
    rows = [claim.verdicts for ladder in ladders for claim in ladder.claims]
    plural = "s" if len(ladders) > 1 else ""
    return f"Over {len(ladders)} ladder{plural}: {summarize_decision_accuracy(rows).sentence}"


def find_claim_axis(report: Report, claim: PreregisteredClaim) -> str:
    """Find the config group a claim is about.

    That is the first group in which its two arms differ, else the first group that either sets.
    """
    overrides = report.reproduce.preregistered.get("arm_overrides") or {}
    arm_groups, against_groups = (
        _parse_config_groups(overrides.get(arm) or []) for arm in (claim.arms[0], claim.arms[-1])
    )
    groups = list(dict.fromkeys([*arm_groups, *against_groups]))
    differing = [group for group in groups if arm_groups.get(group) != against_groups.get(group)]
    return next(iter([*differing, *groups]), OTHER_AXIS)


def _parse_config_groups(overrides: Iterable[str]) -> dict[str, str]:
    """Return config group -> option, in the order of the overrides."""
    parts = (str(override).partition("=") for override in overrides)
    options = {key.lstrip("+").partition("/")[0]: value for key, _, value in parts}
    return {
        key: value for key, value in options.items() if re.fullmatch(r"\w+", key) and (CONF / key).is_dir()
    }
