"""`python -m attnlab claims`: do the claims that reference reports call SUPPORTED still hold?

What is run again is read from the reports: experiments at size S with a claim that is exact, or asserts an
effect of some size. Times are left out, machines being noisy; so is what says that there is no effect.
Surprising: runs that the store holds are not trained again, since their ids say that nothing has changed
which could change them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import Refused

SIZE = "S"
Runner = Callable[[Sequence[str]], int]  # overrides of a command line to its exit status


def main(arguments: Sequence[str] = (), run: Runner | None = None) -> int:
    """claims [FOLDER] [overrides]: 0 where all hold, 1 where one does not, each in a line."""
    folders = [word for word in arguments if "=" not in word]
    overrides = [word for word in arguments if "=" in word]
    if len(folders) > 1 or any(word.startswith("-") for word in arguments):
        raise Refused("claims takes one folder of reports, and overrides: claims reports/reference seed=0,1")
    if any(word.startswith("paths.reports=") for word in overrides):
        raise Refused("paths.reports: claims writes beside the reference, into a folder `again`")
    root = Path(folders[0] if folders else "reports/reference")
    reports = [report for path in sorted(root.glob("*/report.json")) if (report := read(path))]
    again, lost, held = root.parent / "again", list[str](), 0
    wanted = {report["experiment"]["name"]: standing(report) for report in reports}
    wanted = {name: claims for name, claims in wanted.items() if claims}
    if not wanted:
        raise Refused(
            f"{root}: no report of size {SIZE} with a SUPPORTED claim that is exact or a separation"
        )
    for name, claims in wanted.items():
        found = again / name / "report.json"
        found.unlink(missing_ok=True)
        status = (run or _command)(
            [f"+experiment={name}", f"size={SIZE}", f"paths.reports={again}", *overrides]
        )
        fresh = read(found) or {}
        if not fresh:
            print(f"{name}: the command left no report and ended with status {status}", flush=True)
        for claim in claims:
            word = verdict(fresh, claim["says"])
            held += word == "SUPPORTED"
            if word != "SUPPORTED":
                lost.append(f"{name}: was SUPPORTED, is {word}: {claim['says']}")
    print(f"{held} of {held + len(lost)} claims hold, of {len(wanted)} experiments", flush=True)
    for line in lost:
        print(line, flush=True)
    return int(bool(lost))


def read(path: Path) -> dict[str, Any] | None:
    """A report of size S; None where there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and "verdict" in found and "experiment" in found
    return found if whole and found["experiment"].get("size") == SIZE else None


def standing(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The SUPPORTED claims of a report that should stay so."""
    return [
        claim
        for claim in report["verdict"]["claims"]
        if claim["verdict"] == "SUPPORTED"
        and not claim["exploratory"]
        and claim["kind"] != "timing"
        and not claim.get("timed")
        and (claim["decision"]["exact"] or _separates(claim))
    ]


def _separates(claim: Mapping[str, Any]) -> bool:
    """Whether "no difference", and any smaller than some size, lies outside what the claim allows."""
    centre = 1.0 if claim["compare"] == "ratio" else 0.0
    low, high = claim["from"], claim["to"]
    return (low is not None and low > centre) or (high is not None and high < centre)


def verdict(report: Mapping[str, Any], says: str) -> str:
    """The word for a claim in a report; NO RESULT where the report does not have it."""
    claims = (report.get("verdict") or {}).get("claims") or []
    return next((claim["verdict"] for claim in claims if claim["says"] == says), "NO RESULT")


def _command(overrides: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "attnlab", *overrides], check=False).returncode
