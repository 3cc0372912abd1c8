"""Two reports side by side: which verdicts, effects and budgets changed. It judges nothing anew.

Two reports of one experiment share the runs that did not change, so they are no independent evidence.
"""

from pathlib import Path
from typing import Any

from attnlab.report.pages.files import find
from attnlab.report.schema import load
from attnlab.report.tables.claimed import same
from attnlab.report.tables.format import NONE, span, text

KINDS = ("verdict", "effect", "budget", "run")


def differences(a: Path, b: Path) -> dict[str, Any]:
    """What differs from report `a` to report `b`: per kind, each thing with what it was and what it is; and
    of how many claims the verdicts are equal.
    """
    old = load(find(a))
    new = load(find(b))
    for claim in old["verdict"]["claims"]:
        claim["says"] = (same(claim, new["verdict"]["claims"]) or claim)["says"]  # words may have been mended
    found: dict[str, Any] = {"from": old["experiment"]["name"], "to": new["experiment"]["name"]}
    words = [
        {claim["says"]: claim["verdict"] for claim in report["verdict"]["claims"]} for report in (old, new)
    ]
    found["claims"] = len({**words[0], **words[1]})
    found["verdicts_equal"] = sum(words[1].get(says) == word for says, word in words[0].items())
    for kind, say in zip(KINDS, (_claims, _effects, _budget, _runs), strict=True):
        before = say(old)
        after = say(new)
        keys = [*before, *(key for key in after if key not in before)]
        rows = ({"of": key, "was": before.get(key), "is": after.get(key)} for key in keys)
        found[kind] = [row for row in rows if row["was"] != row["is"]]
    return found


def compare(a: Path, b: Path) -> str:
    """What differs from report `a` to report `b`, as lines of text, the verdicts first."""
    found = differences(a, b)
    equal = found["verdicts_equal"]
    claims = found["claims"]
    verdicts = f"all {claims} verdicts are equal"
    if equal != claims:
        verdicts = f"{claims - equal} of {claims} verdicts differ"
    lines = [f"{found['from']} -> {found['to']}: {verdicts}"]
    for kind in KINDS:
        lines += [
            f"{kind}  {row['of']}: {row['was'] or 'absent'} -> {row['is'] or 'absent'}" for row in found[kind]
        ]
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
