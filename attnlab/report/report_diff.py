"""Compare two reports: which verdicts, effects, budgets and runs changed. It decides nothing anew.

Two reports of one experiment share the runs that did not change, so they are no independent evidence.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.report.number_format import NONE, format_number
from attnlab.report.pages.report_files import find_report
from attnlab.report.schema import Report, load_report
from attnlab.report.tables.claim_sources import find_same_claim
from attnlab.report.tables.wording import describe_claim, format_effect


@dataclass(frozen=True)
class Change:
    """A difference: the value before and after, None where it is absent."""

    subject: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class ReportDiff:
    """The differences between two reports, by kind, and how many of all claims have equal verdicts."""

    old: str
    new: str
    claims: int
    verdicts_equal: int
    changes: dict[str, list[Change]]

    def plain(self) -> dict[str, Any]:
        """The JSON form."""
        changes = {
            kind: [{"of": change.subject, "was": change.before, "is": change.after} for change in rows]
            for kind, rows in self.changes.items()
        }
        counts = {"claims": self.claims, "verdicts_equal": self.verdicts_equal}
        return {"from": self.old, "to": self.new, **counts, **changes}


def compute_diff(old_path: Path, new_path: Path) -> ReportDiff:
    """The differences from one report to another, each given by its folder or report.json."""
    old = load_report(find_report(old_path))
    new = load_report(find_report(new_path))
    # the statement of a claim may have been reworded
    names = [
        {
            claim.says: (find_same_claim(claim, new.verdict.claims) or claim).says
            for claim in old.verdict.claims
        },
        {claim.says: claim.says for claim in new.verdict.claims},
    ]
    verdicts, sentences = (
        [
            {wording[claim.says]: show(claim) for claim in report.verdict.claims}
            for report, wording in zip((old, new), names, strict=True)
        ]
        for show in (lambda claim: str(claim.verdict), describe_claim)
    )
    pairs = {
        "verdict": sentences,
        "effect": [_collect_effects(old), _collect_effects(new)],
        "budget": [_collect_budget(old), _collect_budget(new)],
        "run": [_collect_runs(old), _collect_runs(new)],
    }
    changes = {}
    for kind, (before, after) in pairs.items():
        rows = [Change(key, before.get(key), after.get(key)) for key in {**before, **after}]
        changes[kind] = [row for row in rows if row.before != row.after]
    return ReportDiff(
        old=old.experiment.name,
        new=new.experiment.name,
        claims=len({**verdicts[0], **verdicts[1]}),
        verdicts_equal=sum(verdicts[1].get(says) == word for says, word in verdicts[0].items()),
        changes=changes,
    )


def format_diff(old_path: Path, new_path: Path) -> str:
    """The differences from one report to another as lines of text, the verdicts first."""
    diff = compute_diff(old_path, new_path)
    verdicts = f"all {diff.claims} verdicts are equal"
    if diff.verdicts_equal != diff.claims:
        verdicts = f"{diff.claims - diff.verdicts_equal} of {diff.claims} verdicts differ"
    lines = [f"{diff.old} -> {diff.new}: {verdicts}"]
    for kind, rows in diff.changes.items():
        lines += [
            f"{kind}  {row.subject}: {row.before or 'absent'} -> {row.after or 'absent'}" for row in rows
        ]
    return "\n".join(lines if len(lines) > 1 else [*lines, "no verdict, effect, budget or run differs"])


def _collect_effects(report: Report) -> dict[str, str]:
    return {f"{row.arm} on {row.metric}": f"{format_effect(row)} {row.verdict}" for row in report.effects}


def _collect_budget(report: Report) -> dict[str, str]:
    return {
        f"{row.label} of {cell.arm}": format_number(cell.value)
        for row in report.budget.rows
        for cell in row.cells
    }


def _collect_runs(report: Report) -> dict[str, str]:
    return {f"{run.arm}, seed {run.seed}": f"{run.id or NONE} {run.status}" for run in report.runs}
