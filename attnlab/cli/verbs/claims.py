"""`python -m attnlab claims`: do the verdicts of reference reports still hold?

What is run again is read from the reports: experiments at size S, on all their texts, with a SUPPORTED claim
that is exact or an identity, or asserts an effect of some size; the shortest first, by what their runs took
when the reports were made, as many as are done in time. With --all everything that was decided, whichever
way. Times are left out, machines being noisy, and so are the rungs of ladders.
Surprising: runs that the store holds are not trained again, since their ids say that nothing has changed
which could change them. A claim is known again by what it asks, since its words may have been mended.
"""

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from attnlab.cli.words import split
from attnlab.errors import Refused, printable
from attnlab.report.schema import ClaimResult, Report, Verdict, load
from attnlab.report.tables.claimed import same

SIZE = "S"
LOT = 15 * 60.0  # seconds that are run without --all
SLOWER = 1.4  # than the machine of the reports this one may be, without a lot that takes longer
EACH = 30.0  # of an experiment beside its runs: its plan, its laws, its report
AT_ONCE = 2  # runs
REFUSED = 2  # the exit status of a command that could not be read: no claim has fallen by it
Claims = list[ClaimResult]
Wanted = Mapping[str, tuple[float, Mapping[str, Claims]]]  # experiment -> seconds, and claims by folder
Runner = Callable[[Sequence[str]], int]  # overrides of a command line to its exit status


def main(options: argparse.Namespace, run: Runner | None = None) -> int:
    """0 where all hold, 1 where one does not, each in a line."""
    root, overrides = _asked(options.words)
    reports = _reports(root)
    every = _wanted(reports, decided)
    wanted = every if options.all else _lot(_wanted(reports, standing))
    if not wanted:
        raise Refused(f"{root}: no report of size {SIZE} with a claim that is to be tried again")
    if left := sorted(every.keys() - wanted.keys()):
        some = f"{len(wanted)} of {len(every)} experiments, in about {LOT / 60:.0f} minutes"
        more = f"where nothing is stored yet; --all runs {', '.join(left)} too"
        print(some, more, file=sys.stderr, flush=True)
    lost: list[str] = []
    again = root.parent / "again"
    for name, (_, by_folder) in wanted.items():
        found = _again(name, again, by_folder, overrides, run or partial(_command, quiet=options.json))
        for folder, claims in by_folder.items():
            asked = found[folder].verdict.claims if folder in found else []
            for claim in claims:
                twin = same(claim, asked)
                today = twin.verdict if twin else Verdict.NO_RESULT
                if today != claim.verdict:
                    says = (twin or claim).says
                    lost.append(f"{folder}: was {claim.verdict}, is {today}: {says}")
    number = sum(len(claims) for _, by_folder in wanted.values() for claims in by_folder.values())
    if options.json:
        told = {
            "hold": number - len(lost),
            "claims": number,
            "experiments": len(wanted),
            "lost": lost,
            "left": left,
        }
        print(json.dumps(told, indent=1, ensure_ascii=False), flush=True)
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


def _reports(root: Path) -> dict[str, tuple[str, Report]]:
    """Folder -> the experiment that it is about, and its report."""
    if not root.is_dir():
        raise Refused(f"{root}: no such folder; give the one that holds the reports' folders")
    found = {path.parent.name: load(path) for path in sorted(root.glob("*/report.json"))}
    return {folder: (_name(report, root), report) for folder, report in found.items() if _is_tried(report)}


def _wanted(reports: Mapping[str, tuple[str, Report]], stays: Callable[[Report], Claims]) -> Wanted:
    """The experiments with claims that should stay as they are."""
    wanted: dict[str, tuple[float, dict[str, Claims]]] = {}
    for folder, (name, report) in reports.items():
        spent, claims = wanted.get(name, (EACH, {}))
        wanted[name] = spent + _seconds(report), claims | ({folder: stay} if (stay := stays(report)) else {})
    return {name: found for name, found in wanted.items() if found[1]}


def _lot(wanted: Wanted) -> Wanted:
    """The shortest experiments, as many as are done in time, and one at least."""
    lot: dict[str, tuple[float, Mapping[str, Claims]]] = {}
    spent = 0.0
    for name, (seconds, claims) in sorted(wanted.items(), key=lambda item: item[1][0]):
        spent += SLOWER * seconds
        if lot and spent > LOT:
            break
        lot[name] = (seconds, claims)
    return lot


def _seconds(report: Report) -> float:
    """What a report takes where nothing of it is stored: what its runs took, and the tokens of those that say
    what training is worth, at the speed of the others.
    """
    runs = [run for run in report.runs if run.seconds]
    took = sum(run.seconds or 0.0 for run in runs)
    tokens = sum(run.budget.tokens or 0 for run in runs)
    more = report.exchange.tokens if report.exchange else 0
    return took * (1 + more / tokens if tokens else 1) / AT_ONCE


def _name(report: Report, root: Path) -> str:
    """The experiment of a report. Refused where it is more than a name: it becomes an override and a path."""
    name = report.experiment.name
    if not re.fullmatch(r"\w[\w-]*", name):
        raise Refused(f"{root}: a report names the experiment {name!r}, which is no name of a file")
    return name


def _again(
    name: str, reports: Path, folders: Iterable[str], overrides: Sequence[str], run: Runner
) -> Mapping[str, Report]:
    """Runs an experiment again. Its reports in those folders, of those that it left."""
    sources = {folder: reports / folder / "report.json" for folder in folders}
    for source in sources.values():
        source.unlink(missing_ok=True)  # of a run before, which must not pass for this one
    status = run([f"+experiment={name}", f"size={SIZE}", f"paths.reports={reports}", *overrides])
    if status == REFUSED:
        raise Refused(f"claims: {name} was refused as {' '.join(overrides) or 'it is'}, so nothing was tried")
    found = {folder: load(source) for folder, source in sources.items() if source.is_file()}
    for folder in sources.keys() - found.keys():
        said = f"{folder}: the command left no report and ended with status {status}"
        print(said, file=sys.stderr, flush=True)
    return found


def _is_tried(report: Report) -> bool:
    """Whether a report is of size S, and of an experiment or of it on a further text."""
    is_rung = report.place is not None and report.place.kind == "rung"  # it is its ladder's business
    return not is_rung and report.experiment.size == SIZE


def decided(report: Report) -> Claims:
    """The claims of a report that were decided, by no time."""
    return [
        claim
        for claim in report.verdict.claims
        if claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED)
        and not claim.exploratory
        and claim.basis != "timing"
        and not claim.timed
    ]


def standing(report: Report) -> Claims:
    """Those that are true whatever the noise: exact, identities, and effects of some size that were found."""
    return [
        claim
        for claim in decided(report)
        if claim.verdict == Verdict.SUPPORTED
        and (claim.decision.exact or claim.identity or _separates(claim))
    ]


def _separates(claim: ClaimResult) -> bool:
    """Whether "no difference", and any smaller than some size, lies outside what the claim allows."""
    low, high = claim.region or (-math.inf, math.inf)
    return low > claim.center or high < claim.center


def _command(overrides: Sequence[str], quiet: bool = False) -> int:
    """Its exit status. `quiet`: what it prints goes to stderr."""
    line = [sys.executable, "-m", "attnlab", *overrides]
    return subprocess.run(line, check=False, stdout=sys.stderr if quiet else None).returncode
