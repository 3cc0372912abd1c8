"""Two reports side by side: which verdicts, effects and budgets changed. It judges nothing anew.

Two reports of one experiment share the runs that did not change, so they are no independent evidence.
"""

from pathlib import Path
from typing import Any

from attnlab.report.pages.files import find
from attnlab.report.schema import load
from attnlab.report.tables.claimed import same
from attnlab.report.tables.format import NONE, span, text


def compare(a: Path, b: Path) -> str:
    """What differs from report `a` to report `b`, as lines of text; says so where nothing does."""
    old, new = load(find(a)), load(find(b))
    for claim in old["verdict"]["claims"]:
        claim["says"] = (same(claim, new["verdict"]["claims"]) or claim)["says"]  # words may have been mended
    lines = [f"{old['experiment']['name']} -> {new['experiment']['name']}"]
    for title, say in (("verdict", _claims), ("effect", _effects), ("budget", _budget), ("run", _runs)):
        before, after = say(old), say(new)
        for key in [*before, *(key for key in after if key not in before)]:
            was, now = before.get(key, "absent"), after.get(key, "absent")
            if was != now:
                lines.append(f"{title}  {key}: {was} -> {now}")
    return "\n".join(lines if len(lines) > 1 else [*lines, "no verdict, effect, budget or run differs"])


def _claims(report: dict[str, Any]) -> dict[str, str]:
    return {claim["says"]: claim["sentence"] for claim in report["verdict"]["claims"]}


def _effects(report: dict[str, Any]) -> dict[str, str]:
    return {
        f"{row['arm']} on {row['metric']}": f"{text(row['mean'], row['digits'], sign=True)} "
        f"{span(row['low'], row['high'], row['digits'])} {row['word']}"
        for row in report["effects"]
    }


def _budget(report: dict[str, Any]) -> dict[str, str]:
    return {
        f"{row['label']} of {cell['arm']}": text(cell["value"])
        for row in report["budget"]["rows"]
        for cell in row["cells"]
    }


def _runs(report: dict[str, Any]) -> dict[str, str]:
    return {
        f"{run['arm']}, seed {run['seed']}": f"{run['id'] or NONE} {run['status']}" for run in report["runs"]
    }
