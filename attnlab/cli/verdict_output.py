"""The verdict of a command: lines for people, JSON for programs, and the exit status of `judge`."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import escape_unprintable
from attnlab.report.schema import ClaimResult, Report, RunRow, Verdict
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import (
    describe_claim,
    find_claim_effect,
    format_training,
    format_verdict,
)
from attnlab.store.run_schema import LOST_STATUSES

EXIT_BY_VERDICT = {  # verdict of the claim -> exit status, verdict of `judge`
    Verdict.SUPPORTED: (0, "better"),
    Verdict.REFUTED: (3, "not better"),
    Verdict.INCONCLUSIVE: (4, "inconclusive"),
    Verdict.NO_RESULT: (4, "inconclusive"),
    Verdict.UNTRAINED: (4, "inconclusive"),
    Verdict.DEMONSTRATION: (4, "inconclusive"),
    Verdict.NOT_COMPARABLE: (5, "not comparable"),
}
COST_KEYS = ("parameters", "flops_per_token", "kv_bytes_per_token", "tokens", "lr")
MAX_LINES, COLUMNS = 8, 80


def print_json(document: dict[str, Any]) -> None:
    """Print a document for programs."""
    print(json.dumps(document, indent=1, ensure_ascii=False), flush=True)


def print_lines(notes: Sequence[str], conclusions: Sequence[str], rest: str = "") -> None:
    """Print the conclusions last, below the notes that fit: eight lines of 80 columns.

    Args:
        rest: Where the notes are that do not fit.
    """
    lines = [line for text in conclusions for line in _wrap(text)]
    room = MAX_LINES - len(lines)
    above = [line for text in notes for line in _wrap(text)]
    if len(above) > room:
        above = above[: max(room - 1, 0)]
        above += [f"... more: {rest}"] if rest and room > 0 else []
    print(escape_unprintable("\n".join([*above, *lines]), allowed="\n"), flush=True)


def _wrap(text: str) -> list[str]:
    """Lines of at most 80 columns; a path is not broken."""
    return textwrap.wrap(
        text, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def print_report(report: Report, source: Path | None) -> None:
    """Print the verdicts of a report, and the notes above them that a reader needs.

    Args:
        source: Its report.json; None if it could not be written.
    """
    claims = report.verdict.claims
    verdicts = [describe_claim(claim, find_claim_effect(claim, report.effects)) for claim in claims]
    if sum(len(_wrap(line)) for line in verdicts) > MAX_LINES - 2:
        verdicts = [f"{claim.comparison_text}: {format_verdict(claim)}" for claim in claims]
    if sum(len(_wrap(line)) for line in verdicts) > MAX_LINES - 2:
        verdicts = [build_headline(report)]
    path = f"report: {source}"
    notes = [path] if source else []
    notes += [f"EXPLORATORY: {reason}" for reason in report.verdict.deviations]
    notes += report.verdict.run_warnings
    if files := report.files:
        counts = "; ".join(
            f"{arm.arm}: {arm.rows_read} rows read, {arm.runs_found} runs found, {arm.runs} used"
            for arm in files.arms
        )
        equal = f"; {files.equal_values} runs have a value that another run has too"
        notes += [counts + (equal if files.equal_values else ""), files.pairing]
        if files.declared and files.run_times != "known":
            notes.append(f"{files.run_times}: only the age of their files was checked")
    print_lines(notes, verdicts, str(source or ""))


def summarize_claims(report: Report) -> dict[str, Any]:
    """The headline and every claim with its decision."""
    keys = {"says", "verdict", "arm", "against", "metric", "unit", "threshold", "decision"}
    claims = [
        claim.model_dump(mode="json", include=keys)
        | {"sentence": describe_claim(claim, find_claim_effect(claim, report.effects))}
        for claim in report.verdict.claims
    ]
    return {"headline": build_headline(report), "exploratory": report.verdict.exploratory, "claims": claims}


def summarize_verdict(report: Report, source: Path | None) -> tuple[int, dict[str, Any]]:
    """Return the exit status of a report's only claim, and the JSON output of `judge`."""
    [claim] = report.verdict.claims
    exit_status, word = EXIT_BY_VERDICT[claim.verdict]
    decision = claim.decision
    summary = {
        "verdict": word,
        "claim": claim.verdict,  # distinguishes the inconclusive ones
        "sentence": describe_claim(claim),
        "metric": claim.metric,
        "unit": claim.unit,
        "direction": claim.direction,
        "margin": report.experiment.margin,
        "estimate": decision.estimate,  # B − A
        "interval": {"low": decision.low, "high": decision.high, "level": decision.level},
        "exploratory": claim.exploratory,
        "exploratory_reasons": report.verdict.deviations,
        "not_comparable": claim.not_comparable,
        "seeds": decision.n,
        "report": str(source) if source else None,
        "command": report.reproduce.command,
    }
    return exit_status, summary | (
        _summarize_files(report, claim) if report.files else _summarize_cost(report, claim)
    )


def _summarize_cost(report: Report, claim: ClaimResult) -> dict[str, Any]:
    runs = report.runs
    return {
        "as_training": format_training(claim.training_equivalent) if claim.training_equivalent else None,
        "cost": {
            "runs": len(runs),
            "failed": sum(run.status not in ("done", *LOST_STATUSES) for run in runs),
            "lost": sum(
                run.status in LOST_STATUSES for run in runs
            ),  # machine failures, no outcome of an arm
            "seconds": round(sum(run.seconds or 0 for run in runs), 1),
            **{
                side: _collect_arm_cost(runs, arm)
                for side, arm in zip(("a", "b"), report.experiment.arms, strict=True)
            },
        },
        "size": report.experiment.size,
    }


def _collect_arm_cost(runs: Sequence[RunRow], arm: str) -> dict[str, Any]:
    """Collect an arm's costs from its first run that recorded them."""
    budget = next((run.budget for run in runs if run.arm == arm and run.budget.get_known_values()), None)
    return {"arm": arm, **{key: budget.get(key) if budget else None for key in COST_KEYS}}


def _summarize_files(report: Report, claim: ClaimResult) -> dict[str, Any]:
    """How runs that were trained elsewhere were compared, and the values of both sides."""
    files = report.files
    assert files is not None
    document = files.model_dump(mode="json", exclude={"arms"}) | {
        "looks": report.experiment.looks or "once",
        "basis": claim.basis,
        "pairing_gain": claim.pairing.gain if claim.pairing else None,
    }
    for side, arm in zip("ab", files.arms, strict=True):
        rows = [run for run in report.runs if run.arm == arm.arm]
        document[side] = arm.model_dump(mode="json") | {
            "values": [run.metrics[claim.metric] for run in rows],
            "seeds": [run.seed for run in rows] if arm.has_seeds else None,
        }
    return document
