"""`python -m attnlab claims`: do the claims that reference reports call SUPPORTED still hold?

What is run again is read from the reports: experiments at size S with a claim that is exact or an identity,
or asserts an effect of some size. Times are left out, machines being noisy; so is what says that there is no
effect. Without --all the shortest are run, by what their runs took when the report was made.
Surprising: runs that the store holds are not trained again, since their ids say that nothing has changed
which could change them. A claim is known again by what it asks, since its words may have been mended.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnlab.cli.words import split
from attnlab.errors import Refused, printable
from attnlab.report.tables.claimed import same

SIZE = "S"
LOT = 15 * 60.0  # seconds that are run without --all
EACH = 30.0  # of an experiment beside its runs: its plan, its laws, its report
AT_ONCE = 2  # runs
REFUSED = 2  # the exit status of a command that could not be read: no claim has fallen by it
Claims = list[Mapping[str, Any]]
Runner = Callable[[Sequence[str]], int]  # overrides of a command line to its exit status


def main(options: argparse.Namespace, run: Runner | None = None) -> int:
    """0 where all hold, 1 where one does not, each in a line."""
    root, overrides = _asked(options.words)
    every = _wanted(root)
    wanted = every if options.all else _lot(every)
    if left := sorted(every.keys() - wanted.keys()):
        told = f"{len(wanted)} of {len(every)} experiments, in about {LOT / 60:.0f} minutes"
        more = f"where nothing is stored yet; --all runs {', '.join(left)} too"
        print(told, more, file=sys.stderr, flush=True)
    lost: list[str] = []
    for name, (_, claims) in wanted.items():
        report = _again(name, root.parent / "again", overrides, run or partial(_command, quiet=options.json))
        asked = (report.get("verdict") or {}).get("claims") or []
        for claim in claims:
            today = same(claim, asked) or {"says": claim["says"], "verdict": "NO RESULT"}
            if today["verdict"] != "SUPPORTED":
                lost.append(f"{name}: was SUPPORTED, is {today['verdict']}: {today['says']}")
    number = sum(len(claims) for _, claims in wanted.values())
    if options.json:
        found = {
            "hold": number - len(lost),
            "claims": number,
            "experiments": len(wanted),
            "lost": lost,
            "left": left,
        }
        print(json.dumps(found, indent=1, ensure_ascii=False), flush=True)
        return int(bool(lost))
    print(f"{number - len(lost)} of {number} claims hold, of {len(wanted)} experiments", flush=True)
    for line in lost:
        print(printable(line), flush=True)
    return int(bool(lost))


def _asked(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of the reference reports, and the overrides of every command."""
    folders, overrides = split(words)
    if len(folders) > 1:
        raise Refused("claims takes one folder of reports, and overrides: claims reports/reference seed=0,1")
    if any(word.startswith("paths.reports=") for word in overrides):
        raise Refused("paths.reports: claims writes beside the reference, into a folder `again`")
    return Path(folders[0] if folders else "reports/reference"), overrides


def _wanted(root: Path) -> dict[str, tuple[float, Claims]]:
    """Experiment -> how long it took, and the claims of its reference that should stay; experiments without
    any are left out.
    """
    if not root.is_dir():
        raise Refused(f"{root}: no such folder; give the one that holds the reports' folders")
    reports = [report for path in sorted(root.glob("*/report.json")) if (report := read(path))]
    by_name = {_name(report, root): (_seconds(report), standing(report)) for report in reports}
    wanted = {name: found for name, found in by_name.items() if found[1]}
    if not wanted:
        raise Refused(
            f"{root}: no report of size {SIZE} with a SUPPORTED claim that is exact or a separation"
        )
    return wanted


def _lot(wanted: Mapping[str, tuple[float, Claims]]) -> dict[str, tuple[float, Claims]]:
    """The shortest experiments, as many as are done in time, and one at least."""
    lot: dict[str, tuple[float, Claims]] = {}
    spent = 0.0
    for name, (seconds, claims) in sorted(wanted.items(), key=lambda item: item[1][0]):
        spent += seconds
        if lot and spent > LOT:
            break
        lot[name] = (seconds, claims)
    return lot


def _seconds(report: Mapping[str, Any]) -> float:
    """What an experiment takes where nothing of it is stored, by what its runs took."""
    return EACH + sum(run.get("seconds") or 0.0 for run in report.get("runs") or []) / AT_ONCE


def _name(report: Mapping[str, Any], root: Path) -> str:
    """The experiment of a report. Refused where it is more than a name: it becomes an override and a path."""
    name = report["experiment"]["name"]
    if not re.fullmatch(r"\w[\w-]*", str(name)):
        raise Refused(f"{root}: a report names the experiment {name!r}, which is no name of a file")
    return str(name)


def _again(name: str, reports: Path, overrides: Sequence[str], run: Runner) -> Mapping[str, Any]:
    """The report of an experiment that was run again, below `reports`; empty where it left none."""
    path = reports / name / "report.json"
    path.unlink(missing_ok=True)  # of a run before, which must not pass for this one
    status = run([f"+experiment={name}", f"size={SIZE}", f"paths.reports={reports}", *overrides])
    report = read(path)
    if status == REFUSED:
        raise Refused(f"claims: {name} was refused as {' '.join(overrides) or 'it is'}, so nothing was tried")
    if report is None:
        said = f"{name}: the command left no report and ended with status {status}"
        print(said, file=sys.stderr, flush=True)
    return report or {}


def read(path: Path) -> dict[str, Any] | None:
    """A report of size S; None where there is none."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(report, dict) and "verdict" in report and "experiment" in report
    place = report.get("place") if whole else None  # a rung, or a further text, is its experiment's business
    alone = place is None or place["together"] == path.parent.name
    return report if whole and alone and report["experiment"].get("size") == SIZE else None


def standing(report: Mapping[str, Any]) -> Claims:
    """The SUPPORTED claims of a report that should stay so."""
    return [
        claim
        for claim in report["verdict"]["claims"]
        if claim["verdict"] == "SUPPORTED"
        and not claim["exploratory"]
        and claim["kind"] != "timing"
        and not claim.get("timed")
        and (claim["decision"]["exact"] or claim.get("identity") or _separates(claim))
    ]


def _separates(claim: Mapping[str, Any]) -> bool:
    """Whether "no difference", and any smaller than some size, lies outside what the claim allows."""
    centre = 1.0 if claim["compare"] == "ratio" else 0.0
    low, high = claim["from"], claim["to"]
    return (low is not None and low > centre) or (high is not None and high < centre)


def _command(overrides: Sequence[str], quiet: bool = False) -> int:
    """Its exit status. `quiet`: what it prints goes to stderr."""
    line = [sys.executable, "-m", "attnlab", *overrides]
    return subprocess.run(line, check=False, stdout=sys.stderr if quiet else None).returncode
