"""What the ledger tells of a folder of reports: a line for every claim, what each report took, and how often
the rules of decision err where nothing differs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from urllib.parse import quote, unquote

from attnlab.report.schema import ClaimResult, ExperimentSummary, Report, RunRow, Verdict, load
from attnlab.report.tables.claimed import Citation, axis, cited
from attnlab.report.tables.format import NONE, text
from attnlab.report.tables.wording import (
    conclude,
    format_decision,
    format_effect,
    format_quantity,
    format_threshold,
    format_training,
)
from attnlab.report.verdicts.bases import BASES
from attnlab.stats.null import LEAST, false_positives

Sizes = Mapping[tuple[str, str, str], str]  # experiment, arm, against -> what a ladder says
NULL = "aa_null"  # the experiment in which nothing differs


@dataclass(frozen=True)
class Line:
    """A claim, as both pages tell it."""

    folder: str  # as in an address
    experiment: str  # with its size
    axis: str
    identity: bool
    says: str
    asked: str  # what is compared, and the threshold
    reason: str
    sources: tuple[str, ...]
    source_says: str
    other: str  # who finds otherwise, and what; empty where nobody is known to
    verdict: str
    exploratory: bool
    effect: str  # with its interval at LEVEL
    training: str  # what it is worth in training compute; empty where nothing says
    decided: str  # the interval that decided, with its level
    seeds: str
    sizes: str  # whether it holds with size, where a ladder was climbed
    texts: str  # the verdicts on other texts than the report's own


@dataclass(frozen=True)
class Ran:
    """What a report took."""

    folder: str  # as in an address
    experiment: str
    question: str
    cost: str
    command: str
    commit: str  # that made it


@dataclass(frozen=True)
class Noise:
    """How often each rule finds something where nothing is: rule, rate, lower bound."""

    runs: int
    rounds: str
    rules: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Ledger:
    """All that the pages tell of a folder of reports."""

    lines: list[Line]
    ran: list[Ran]
    noise: Noise | None
    agreement: str = ""  # how often a smaller rung's verdict is the larger's

    def of(self, *, identity: bool) -> list[Line]:
        """The lines of one of the two tables."""
        return [line for line in self.lines if line.identity is identity]


def read(folder: Path, sizes: Sizes = MappingProxyType({}), agreement: str = "") -> Ledger:
    """What all `*/report.json` under a folder say, and what ladders say of these comparisons. The reports of
    single rungs and of further texts are told through those that they belong to.
    """
    sources = sorted(folder.glob("*/report.json"))
    if not sources:
        raise ValueError(f"{folder}: no */report.json here; give the folder that holds the reports' folders")
    found = {quote(source.parent.name): load(source) for source in sources}
    reports = {
        name: report
        for name, report in found.items()
        if not report.place or unquote(name) == report.place.together
    }
    lines = [
        _line(name, report, claim, citation, sizes)
        for name, report in reports.items()
        for claim, citation in zip(report.verdict.claims, cited(report), strict=True)
    ]
    noise = _noise(reports[NULL]) if NULL in reports else None
    return Ledger(lines, [_ran(name, report) for name, report in reports.items()], noise, agreement)


def _line(name: str, report: Report, claim: ClaimResult, citation: Citation, sizes: Sizes) -> Line:
    experiment = report.experiment
    return Line(
        folder=name,
        experiment=_sized(experiment),
        axis=axis(report, claim),
        identity=bool(claim.decision.exact or claim.identity or citation.identity),
        says=citation.says,
        asked=f"{format_quantity(claim)}, {claim.arm} vs {claim.against}: {format_threshold(claim)}",
        reason=citation.reason or NONE,
        sources=tuple(word.strip() for word in (citation.source or NONE).split(";")),
        source_says=citation.source_says or NONE,
        other=": ".join(filter(None, (citation.other_source, citation.other_says))),
        verdict=claim.verdict,
        exploratory=claim.exploratory,
        effect=format_effect(claim),
        training=format_training(claim.training) if claim.training else "",
        decided=_decided(claim),
        seeds=_seeds(report, claim),
        sizes=_sizes(experiment, claim, sizes),
        texts=_texts(report, claim),
    )


def _decided(claim: ClaimResult) -> str:
    """The interval that decided, with its level, and what it shows."""
    interval = format_decision(claim)
    return f"{interval}: {conclude(claim)}" if interval else NONE


def _seeds(report: Report, claim: ClaimResult) -> str:
    """How many seeds it rests on, and how many would decide it."""
    finished = len({run.seed for run in report.runs if run.done})
    used = claim.decision.n if BASES[claim.basis].has_looks else finished
    return f"{used} of {len(report.experiment.seeds)}{_deciding(claim, report.runs)}"


def _sizes(experiment: ExperimentSummary, claim: ClaimResult, sizes: Sizes) -> str:
    if claim.decision.exact or claim.compare == "ratio" or claim.metric != experiment.metric:
        return NONE
    return sizes.get((experiment.name, claim.arm, claim.against), NONE)


def _deciding(claim: ClaimResult, runs: Sequence[RunRow]) -> str:
    """How many seeds would decide what is inconclusive, in four of five such sweeps, and how long these would
    train, one run at a time; empty where nothing says.
    """
    told = claim.deciding
    if told is None or claim.verdict != Verdict.INCONCLUSIVE:
        return ""
    if not told.seeds:
        return "; no number would decide it"
    arms = {claim.arm, claim.against}
    took = [[run.seconds or 0.0 for run in runs if run.arm == arm] for arm in arms]
    hours = told.seeds * sum(fmean(seconds) for seconds in took if seconds) / 3600
    return f"; about {told.seeds:,} would {told.ends} it ({hours:.2g} h of training)"


def _texts(report: Report, claim: ClaimResult) -> str:
    """A claim's verdicts on the texts beside the report's own."""
    asked = [row for row in (report.texts.claims if report.texts else ()) if row.says == claim.says]
    own = report.place.name if report.place else None
    others = [f"{row.text}: {row.verdict}" for told in asked for row in told.rows if row.text != own]
    return "; ".join(others) or NONE


def _sized(experiment: ExperimentSummary) -> str:
    return f"{experiment.name}, size {experiment.size}" if experiment.size else experiment.name


def _ran(name: str, report: Report) -> Ran:
    made = report.reproduce
    seconds = sum(run.seconds or 0 for run in report.runs)
    return Ran(
        name,
        _sized(report.experiment),
        report.experiment.question or NONE,
        f"{len(report.runs)} runs, {text(round(seconds))} s, {made.device or NONE}",
        made.command or NONE,
        (made.commit or NONE)[:10],
    )


def _noise(report: Report) -> Noise | None:
    """How often the rules find something where nothing is, from the runs of the A/A comparison."""
    experiment = report.experiment
    found = {run.metrics.get(experiment.metric) for run in report.runs if run.done}
    values = sorted(float(value) for value in found if value is not None)
    if len(values) < LEAST or experiment.margin is None:  # twins have one value
        return None
    outcomes = false_positives(values, experiment.margin)
    rules = [(rule, f"{outcome.rate:.1%}", f"{outcome.low:.1%}") for rule, outcome in outcomes.items()]
    return Noise(len(values), f"{next(iter(outcomes.values())).rounds:,}", rules)


def totals(ledger: Ledger) -> str:
    """How many claims there are, in a sentence."""
    hypotheses = len(ledger.of(identity=False))
    identities = len(ledger.of(identity=True))
    return (
        f"{len(ledger.lines)} claims of {len(ledger.ran)} reports, {hypotheses} hypotheses and {identities} "
        f"identities: {tally(ledger.lines)}."
    )


def tally(lines: Sequence[Line]) -> str:
    """How many there are of each word."""
    counts = Counter(line.verdict for line in lines)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"
