"""The ledger: a line for every claim of a folder of reports, beside what its source says.

A pure function of the report.json files and of the experiment files, from which `source` and `source_says` of
a claim are read. Surprising: those come from the file as it is now, found by the claim's words, so that a
citation can be mended without training anything again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.report.pages.files import put
from attnlab.report.schema import load
from attnlab.report.tables.format import NONE, TIMES, span, text
from attnlab.stats.null import LEAST, false_positives

COLUMNS = (
    "experiment", "claim", "source", "what it says", "verdict here", "effect [interval]", "seeds", "cost",
    "command",
)  # fmt: skip
HEAD = """# Ledger

Every claim that was put to the test, what its source says, and what was found here. Made from the reports
beside it by `python -m attnlab report --ledger {folder}`; the project's README says how to read a verdict.
Documents 000 to 004 are the introductions to attention whose claims the suite began from; papers are named by
author, year and arXiv number.
"""
NULL = "aa_null"  # the experiment in which nothing differs
NOISE = """
## Where nothing differs

The {runs} different runs of `aa_null`, dealt at random into pairs {rounds} times: how often each rule accepts
what is false (a difference of nothing, or of just the margin). Nominal are 5 % at most. So few runs leave the
rate uncertain: a rule would fail where its lower bound, over bootstrap samples of the runs, were above 5 %.

| rule | accepts what is false | lower bound |
| --- | --- | --- |
{rows}
"""


def write(folder: Path) -> Path:
    """README.md beside the reports. ValueError where there is no report, or one that cannot be read."""
    page = folder / "README.md"
    put(page, ledger(folder).encode())
    return page


def ledger(folder: Path) -> str:
    """The page for all `*/report.json` under a folder."""
    sources = sorted(folder.glob("*/report.json"))
    if not sources:
        raise ValueError(f"{folder}: no */report.json here; give the folder that holds the reports' folders")
    reports = {source.parent.name: load(source) for source in sources}
    rows, counts = [], dict[str, int]()
    for name, report in reports.items():
        cited = citations(report)
        for claim in report["verdict"]["claims"]:
            rows.append(_row(name, report, claim, cited.get(claim["says"], {})))
            counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
    tally = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    table = [COLUMNS, tuple("---" for _ in COLUMNS), *rows]
    lines = "\n".join("| " + " | ".join(cells) + " |" for cells in table)
    head = HEAD.format(folder=folder.as_posix())
    noise = _noise(reports[NULL]) if NULL in reports else ""
    return f"{head}\n{len(rows)} claims of {len(sources)} reports: {tally}.\n\n{lines}\n{noise}"


def _noise(report: Mapping[str, Any]) -> str:
    """How often the rules find something where nothing is, from the runs of the A/A comparison."""
    experiment = report["experiment"]
    values = {run["metrics"][experiment["metric"]] for run in report["runs"] if run["status"] == "done"}
    if len(values) < LEAST:  # twins have one value
        return ""
    outcomes = false_positives(sorted(values), experiment["margin"])
    rows = [f"| {rule} | {outcome.rate:.1%} | {outcome.low:.1%} |" for rule, outcome in outcomes.items()]
    rounds = next(iter(outcomes.values())).rounds
    return NOISE.format(runs=len(values), rounds=f"{rounds:,}", rows="\n".join(rows))


def citations(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A claim's words to the claim as declared, by today's experiment file before that of the report."""
    declared = (report["reproduce"].get("declared") or {}).get("claims") or []
    path = CONF / "experiment" / f"{report['experiment']['name']}.yaml"
    if path.is_file():
        today = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert isinstance(today, dict)
        declared = [*declared, *(today.get("claims") or [])]
    return {claim["says"]: claim for claim in declared}


def _row(
    name: str, report: Mapping[str, Any], claim: Mapping[str, Any], cited: Mapping[str, Any]
) -> tuple[str, ...]:
    experiment, runs = report["experiment"], report["runs"]
    seconds = sum(run["seconds"] or 0 for run in runs)
    size = f", size {experiment['size']}" if experiment.get("size") else ""
    finished = len({run["seed"] for run in runs if run["status"] == "done"})
    verdict = claim["verdict"] + (" (exploratory)" if claim["exploratory"] else "")
    cells = (
        f"[{_cell(experiment['name'])}]({name}/report.md){size}",
        _cell(claim["says"]),
        _cell(cited.get("source") or NONE),
        _cell(cited.get("source_says") or NONE),
        verdict,
        _effect(claim),
        f"{finished} of {len(experiment['seeds'])}",
        f"{len(runs)} runs, {text(round(seconds))} s, {_cell(report['reproduce'].get('device') or NONE)}",
        f"`{_cell(report['reproduce'].get('command') or NONE)}`",
    )
    return tuple(cells)


def _effect(claim: Mapping[str, Any]) -> str:
    """The estimate and the interval that decided, `arm` against `against`."""
    decision, ratio = claim["decision"], claim["compare"] == "ratio"
    if decision["estimate"] is None:
        return NONE
    digits = None if decision["exact"] else claim["digits"]
    unit = TIMES if ratio else claim["unit"]
    estimate = text(decision["estimate"], digits, sign=not ratio, unit=unit)
    between = (
        "exact" if decision["exact"] else span(decision["low"], decision["high"], digits, sign=not ratio)
    )
    return (
        f"{estimate} {between}, {_cell(claim['label'])}, "
        f"{_cell(claim['arm'])} against {_cell(claim['against'])}"
    )


def _cell(value: Any) -> str:
    """One line that ends no cell."""
    return " ".join(str(value).split()).replace("|", "\\|")
