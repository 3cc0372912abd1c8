"""Two reports side by side: which verdicts, effects and budgets changed. It judges nothing anew.

Two reports of one experiment share the runs that did not change, so they are no independent evidence.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.report.pages.files import find
from attnlab.report.schema import Report, load
from attnlab.report.tables.claimed import same
from attnlab.report.tables.format import NONE, text
from attnlab.report.tables.wording import describe_claim, format_effect


@dataclass(frozen=True)
class Change:
    """One thing that differs: what it was and what it is, None where it is absent."""

    of: str
    was: str | None
    now: str | None


@dataclass(frozen=True)
class Differences:
    """What differs between two reports, by kind, and of how many claims the verdicts are equal."""

    old: str
    new: str
    claims: int
    verdicts_equal: int
    changes: dict[str, list[Change]]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        changes = {
            kind: [{"of": change.of, "was": change.was, "is": change.now} for change in rows]
            for kind, rows in self.changes.items()
        }
        counts = {"claims": self.claims, "verdicts_equal": self.verdicts_equal}
        return {"from": self.old, "to": self.new, **counts, **changes}


def differences(a: Path, b: Path) -> Differences:
    """What differs from report `a` to report `b`."""
    old = load(find(a))
    new = load(find(b))
    # words may have been mended
    names = [
        {claim.says: (same(claim, new.verdict.claims) or claim).says for claim in old.verdict.claims},
        {claim.says: claim.says for claim in new.verdict.claims},
    ]
    words, sentences = (
        [
            {renamed[claim.says]: show(claim) for claim in report.verdict.claims}
            for report, renamed in zip((old, new), names, strict=True)
        ]
        for show in (lambda claim: str(claim.verdict), describe_claim)
    )
    pairs = {
        "verdict": sentences,
        "effect": [_effects(old), _effects(new)],
        "budget": [_budget(old), _budget(new)],
        "run": [_runs(old), _runs(new)],
    }
    changes = {}
    for kind, (before, after) in pairs.items():
        rows = [Change(key, before.get(key), after.get(key)) for key in {**before, **after}]
        changes[kind] = [row for row in rows if row.was != row.now]
    return Differences(
        old=old.experiment.name,
        new=new.experiment.name,
        claims=len({**words[0], **words[1]}),
        verdicts_equal=sum(words[1].get(says) == word for says, word in words[0].items()),
        changes=changes,
    )


def compare(a: Path, b: Path) -> str:
    """What differs from report `a` to report `b`, as lines of text, the verdicts first."""
    found = differences(a, b)
    verdicts = f"all {found.claims} verdicts are equal"
    if found.verdicts_equal != found.claims:
        verdicts = f"{found.claims - found.verdicts_equal} of {found.claims} verdicts differ"
    lines = [f"{found.old} -> {found.new}: {verdicts}"]
    for kind, rows in found.changes.items():
        lines += [f"{kind}  {row.of}: {row.was or 'absent'} -> {row.now or 'absent'}" for row in rows]
    return "\n".join(lines if len(lines) > 1 else [*lines, "no verdict, effect, budget or run differs"])


def _effects(report: Report) -> dict[str, str]:
    return {f"{row.arm} on {row.metric}": f"{format_effect(row)} {row.word}" for row in report.effects}


def _budget(report: Report) -> dict[str, str]:
    return {
        f"{row.label} of {cell.arm}": text(cell.value) for row in report.budget.rows for cell in row.cells
    }


def _runs(report: Report) -> dict[str, str]:
    return {f"{run.arm}, seed {run.seed}": f"{run.id or NONE} {run.status}" for run in report.runs}
