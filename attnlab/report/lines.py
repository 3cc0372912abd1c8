"""What the ledger tells of a folder of reports: a line for every claim, what each report took, and how often
the rules of decision err where nothing differs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from scipy import special

from attnlab.report.schema import load
from attnlab.report.tables.claimed import axis, cited
from attnlab.report.tables.format import NONE, TIMES, percent, span, text
from attnlab.stats.null import LEAST, false_positives

LEVEL = 0.95  # of every interval in the ledger that is not a decision's own
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
    asked: str  # what is compared, and where it should lie
    reason: str
    sources: tuple[str, ...]
    source_says: str
    other: str  # who finds otherwise, and what; empty where nobody is known to
    verdict: str
    exploratory: bool
    effect: str
    interval: str  # at LEVEL
    decided: str  # the decision's own interval, with its level
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
class Ledger:
    """All that the pages tell of a folder of reports."""

    lines: list[Line]
    ran: list[Ran]
    noise: dict[str, Any] | None
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
        if not report["place"] or unquote(name) == report["place"]["together"]
    }
    lines = [
        _line(name, report, claim, told, sizes)
        for name, report in reports.items()
        for claim, told in zip(report["verdict"]["claims"], cited(report), strict=True)
    ]
    noise = _noise(reports[NULL]) if NULL in reports else None
    return Ledger(lines, [_ran(name, report) for name, report in reports.items()], noise, agreement)


def _line(
    name: str, report: Mapping[str, Any], claim: Mapping[str, Any], told: Mapping[str, Any], sizes: Sizes
) -> Line:
    experiment = report["experiment"]
    decision = claim["decision"]
    ratio = claim["compare"] == "ratio"
    unit = TIMES if ratio else claim["unit"]
    digits = None if decision["exact"] else claim["digits"]
    finished = len({run["seed"] for run in report["runs"] if run["status"] == "done"})
    used = finished if decision["exact"] or claim["kind"] == "timing" else decision["n"]
    whole = interval(claim)
    own = (decision["low"], decision["high"])
    sign = "\N{PLUS-MINUS SIGN}" if claim["is"] == "within" else ""
    centre = " of 1" if ratio and sign else ""
    return Line(
        folder=name,
        experiment=_sized(experiment),
        axis=axis(report, claim),
        identity=bool(decision["exact"] or claim.get("identity") or told.get("identity")),
        says=str(told["says"]),
        asked=f"{claim['label']}, {claim['arm']} against {claim['against']}: {claim['is']} "
        f"{sign}{text(claim['threshold'], unit='' if centre else unit)}{centre}"
        + (f", {claim['threshold_said']}" if claim["threshold_said"] else ""),
        reason=str(told.get("reason") or NONE),
        sources=tuple(word.strip() for word in str(told.get("source") or NONE).split(";")),
        source_says=str(told.get("source_says") or NONE),
        other=": ".join(str(told[key]) for key in ("other_source", "other_says") if told.get(key)),
        verdict=claim["verdict"],
        exploratory=claim["exploratory"],
        effect=text(decision["estimate"], digits, sign=not ratio, unit=unit)
        + (" exact" if decision["exact"] else ""),
        interval=(span(whole["low"], whole["high"], digits, sign=not ratio) if whole else NONE)
        + (f", {claim['training']['words']}" if claim["training"] else ""),
        decided=NONE
        if decision["level"] is None or None in own
        else f"{percent(decision['level'])} %: {span(*own, digits, sign=not ratio)}",
        seeds=f"{used} of {len(experiment['seeds'])}{_deciding(claim, report['runs'])}",
        sizes=NONE
        if decision["exact"] or ratio or claim["metric"] != experiment["metric"]
        else sizes.get((experiment["name"], claim["arm"], claim["against"]), NONE),
        texts=_texts(report, claim),
    )


def _deciding(claim: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """How many seeds would decide what is open, in four of five such sweeps, and how long these would train,
    one run at a time; empty where nothing says.
    """
    told = claim.get("deciding")
    if not told or claim["verdict"] != "INCONCLUSIVE":
        return ""
    number = told["seeds"]
    if not number:
        return "; no number would decide it"
    arms = {claim["arm"], claim["against"]}
    took = [[run["seconds"] or 0.0 for run in runs if run["arm"] == arm] for arm in arms]
    hours = number * sum(fmean(seconds) for seconds in took if seconds) / 3600
    return f"; about {number:,} would {told['ends']} it ({hours:.2g} h of training)"


def _texts(report: Mapping[str, Any], claim: Mapping[str, Any]) -> str:
    """A claim's verdicts on the texts beside the report's own."""
    asked = [row for row in (report["texts"] or {"claims": []})["claims"] if row["says"] == claim["says"]]
    own = report["place"]["name"] if report["place"] else None
    others = [
        f"{row['text']}: {row['verdict']}" for told in asked for row in told["rows"] if row["text"] != own
    ]
    return "; ".join(others) or NONE


def _sized(experiment: Mapping[str, Any]) -> str:
    return (
        f"{experiment['name']}, size {experiment['size']}" if experiment.get("size") else experiment["name"]
    )


def interval(claim: Mapping[str, Any]) -> dict[str, float] | None:
    """The interval of a claim's effect at LEVEL: that of its row; of a report that is too old to have one,
    the t interval that decided, at this level. None where there is none, as of what is exact.
    """
    if claim.get("interval") or claim.get("looks"):
        given: dict[str, float] | None = claim.get("interval")
        return given
    decision = claim["decision"]
    ratio = claim["compare"] == "ratio"
    if claim["kind"] != "seeds" or None in (decision["low"], decision["level"]):
        return None
    low, high = (math.log(end) if ratio else end for end in (decision["low"], decision["high"]))
    own, wanted = (special.stdtrit(decision["n"] - 1, (1 + at) / 2) for at in (decision["level"], LEVEL))
    centre = (low + high) / 2
    half = (high - low) / 2 * float(wanted / own)
    ends = (math.exp(end) if ratio else end for end in (centre - half, centre + half))
    return dict(zip(("low", "high"), ends, strict=True)) | {"level": LEVEL}


def _ran(name: str, report: Mapping[str, Any]) -> Ran:
    runs = report["runs"]
    told = report["reproduce"]
    seconds = sum(run["seconds"] or 0 for run in runs)
    return Ran(
        name,
        _sized(report["experiment"]),
        str(report["experiment"].get("question") or NONE),
        f"{len(runs)} runs, {text(round(seconds))} s, {told.get('device') or NONE}",
        str(told.get("command") or NONE),
        str(told.get("commit") or NONE)[:10],
    )


def _noise(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """How often the rules find something where nothing is, from the runs of the A/A comparison."""
    experiment = report["experiment"]
    values = {run["metrics"][experiment["metric"]] for run in report["runs"] if run["status"] == "done"}
    if len(values) < LEAST or experiment["margin"] is None:  # twins have one value
        return None
    outcomes = false_positives(sorted(values), experiment["margin"])
    rules = [(rule, f"{outcome.rate:.1%}", f"{outcome.low:.1%}") for rule, outcome in outcomes.items()]
    return {"runs": len(values), "rounds": f"{next(iter(outcomes.values())).rounds:,}", "rules": rules}


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
