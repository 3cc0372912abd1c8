"""`python -m attnlab claims`: re-test the verdicts of reference reports.

Selects the experiments of size S, on all their corpora, with a SUPPORTED claim that is exact, holds by
construction, or excludes a zero effect. The shortest experiments run first, by the recorded run times, as
many as fit the time budget. `--all` re-tests every decided claim. Timing claims are skipped because machines
are noisy; ladder sizes are skipped too. Surprising: stored runs are not trained again, since an equal id
means equal code and config. Claims are matched by their content, since their wording may have been edited.
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

from attnlab.cli.kv_args import split_words
from attnlab.errors import InvalidConfig, escape_unprintable
from attnlab.report.schema import ClaimResult, Report, Verdict, load_report
from attnlab.report.tables.claim_sources import find_same_claim
from attnlab.sweep.execute.progress import format_duration

REFERENCE_SIZE = "S"
BATCH_SECONDS = 15 * 60.0  # time budget without --all
SLOWDOWN_MARGIN = 1.4  # this machine may be that much slower than the one of the reports
EXPERIMENT_OVERHEAD_SECONDS = 30.0  # per experiment: plan, conformance tests and report
CONCURRENT_RUNS = 2
EXIT_INVALID = 2  # exit status of an invalid command, which refutes no claim
ClaimResults = list[ClaimResult]
ClaimsByExperiment = Mapping[
    str, tuple[float, Mapping[str, ClaimResults]]
]  # to seconds, and claims by folder
CommandRunner = Callable[[Sequence[str]], int]  # from overrides to the exit status of the command


def main(options: argparse.Namespace, run_overrides: CommandRunner | None = None) -> int:
    """Print each claim whose verdict changed; return 0 if all hold, else 1."""
    root, overrides = _parse_words(options.words)
    reports = _load_reports(root)
    all_claims = _collect_claims(reports, list_decided_claims)
    selected = all_claims if options.all else _select_batch(_collect_claims(reports, list_noise_proof_claims))
    if not selected:
        raise InvalidConfig(
            f"{root}: no report of size {REFERENCE_SIZE} has a claim to re-test: give the folder "
            "of reference reports, or use --all"
        )
    if skipped := sorted(all_claims.keys() - selected.keys()):
        scope = (
            f"re-testing {len(selected)} of {len(all_claims)} experiments, in about "
            f"{BATCH_SECONDS / 60:.0f} minutes"
        )
        hint = f"without cached runs; --all adds {', '.join(skipped)}"
        print(scope, hint, file=sys.stderr, flush=True)
    changed: list[str] = []
    output_root = root.parent / "again"
    for number, (name, (seconds, by_folder)) in enumerate(selected.items(), 1):
        left = sum(seconds for seconds, _ in list(selected.values())[number - 1 :])
        print(  # a line, not a bar, since each command shows its own bar
            f"[{number}/{len(selected)}] {name}, about {format_duration(seconds)} without cached runs; "
            f"all: about {format_duration(left)} left",
            file=sys.stderr,
            flush=True,
        )
        new_reports = _rerun_experiment(
            name,
            output_root,
            by_folder,
            overrides,
            run_overrides or partial(_run_subprocess, quiet=options.json),
        )
        for folder, claims in by_folder.items():
            new_claims = new_reports[folder].verdict.claims if folder in new_reports else []
            for claim in claims:
                new_claim = find_same_claim(claim, new_claims)
                new_verdict = new_claim.verdict if new_claim else Verdict.NO_RESULT
                if new_verdict != claim.verdict:
                    statement = (new_claim or claim).says
                    changed.append(f"{folder}: was {claim.verdict}, is {new_verdict}: {statement}")
    n_claims = sum(len(claims) for _, by_folder in selected.values() for claims in by_folder.values())
    if options.json:
        summary = {
            "hold": n_claims - len(changed),
            "claims": n_claims,
            "experiments": len(selected),
            "lost": changed,
            "left": skipped,
        }
        print(json.dumps(summary, indent=1, ensure_ascii=False), flush=True)
        return int(bool(changed))
    print(f"{n_claims - len(changed)} of {n_claims} claims hold, of {len(selected)} experiments", flush=True)
    for line in changed:
        print(escape_unprintable(line), flush=True)
    return int(bool(changed))


def _parse_words(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Split the words into the folder of reference reports and the overrides of every command."""
    folders, overrides = split_words(words)
    if len(folders) > 1:
        raise InvalidConfig(
            "claims takes one folder of reports and overrides, as in claims reports/reference seed=0,1"
        )
    if any(word.startswith("paths.reports=") for word in overrides):
        raise InvalidConfig(
            "paths.reports: claims writes its reports into the folder `again` next to the reference: "
            "leave this key out"
        )
    return Path(folders[0] if folders else "reports/reference"), overrides


def _load_reports(root: Path) -> dict[str, tuple[str, Report]]:
    """Load the reports that can be re-tested: folder -> (experiment, report)."""
    if not root.is_dir():
        raise InvalidConfig(f"{root}: folder not found: give the folder that contains the report folders")
    reports = {path.parent.name: load_report(path) for path in sorted(root.glob("*/report.json"))}
    return {
        folder: (_validate_experiment_name(report, root), report)
        for folder, report in reports.items()
        if _is_retestable(report)
    }


def _collect_claims(
    reports: Mapping[str, tuple[str, Report]], select_claims: Callable[[Report], ClaimResults]
) -> ClaimsByExperiment:
    """Collect the selected claims by experiment, with the estimated seconds."""
    by_experiment: dict[str, tuple[float, dict[str, ClaimResults]]] = {}
    for folder, (name, report) in reports.items():
        seconds, claims = by_experiment.get(name, (EXPERIMENT_OVERHEAD_SECONDS, {}))
        by_experiment[name] = (
            seconds + _estimate_seconds(report),
            claims | ({folder: selected} if (selected := select_claims(report)) else {}),
        )
    return {name: entry for name, entry in by_experiment.items() if entry[1]}


def _select_batch(candidates: ClaimsByExperiment) -> ClaimsByExperiment:
    """Select the shortest experiments that fit the time budget, at least one."""
    batch: dict[str, tuple[float, Mapping[str, ClaimResults]]] = {}
    total_seconds = 0.0
    for name, (seconds, claims) in sorted(candidates.items(), key=lambda item: item[1][0]):
        total_seconds += SLOWDOWN_MARGIN * seconds
        if batch and total_seconds > BATCH_SECONDS:
            break
        batch[name] = (seconds, claims)
    return batch


def _estimate_seconds(report: Report) -> float:
    """Estimate the seconds to reproduce a report without stored runs.

    Sums the recorded run times; compute-calibration runs have only their tokens recorded and count at the
    speed of the other runs.
    """
    runs = [run for run in report.runs if run.seconds]
    run_seconds = sum(run.seconds or 0.0 for run in runs)
    tokens = sum(run.budget.tokens or 0 for run in runs)
    calibration_tokens = report.compute_calibration.tokens if report.compute_calibration else 0
    return run_seconds * (1 + calibration_tokens / tokens if tokens else 1) / CONCURRENT_RUNS


def _validate_experiment_name(report: Report, root: Path) -> str:
    """Return a report's experiment name; InvalidConfig if it is unsafe as an override and a path."""
    name = report.experiment.name
    if not re.fullmatch(r"\w[\w-]*", name):
        raise InvalidConfig(
            f"{root}: a report has the experiment name {name!r}, which is not a valid file name: "
            "restore the report"
        )
    return name


def _rerun_experiment(
    name: str, reports: Path, folders: Iterable[str], overrides: Sequence[str], run_overrides: CommandRunner
) -> Mapping[str, Report]:
    """Run an experiment again and load the reports that it wrote, by folder."""
    sources = {folder: reports / folder / "report.json" for folder in folders}
    for source in sources.values():
        source.unlink(missing_ok=True)  # a stale report must not pass for the new one
    status = run_overrides(
        [f"+experiment={name}", f"size={REFERENCE_SIZE}", f"paths.reports={reports}", *overrides]
    )
    if status == EXIT_INVALID:
        raise InvalidConfig(
            f"claims: the command of {name} failed validation with "
            f"{' '.join(overrides) or 'no overrides'}, so nothing was re-tested: fix the error "
            "above"
        )
    new_reports = {folder: load_report(source) for folder, source in sources.items() if source.is_file()}
    for folder in sources.keys() - new_reports.keys():
        warning = f"{folder}: the command wrote no report and exited with status {status}"
        print(warning, file=sys.stderr, flush=True)
    return new_reports


def _is_retestable(report: Report) -> bool:
    """Whether a report has size S and is an experiment or its replication on another corpus."""
    is_rung = report.replication is not None and report.replication.kind == "rung"
    return not is_rung and report.experiment.size == REFERENCE_SIZE


def list_decided_claims(report: Report) -> ClaimResults:
    """List the decided claims that depend on no timing."""
    return [
        claim
        for claim in report.verdict.claims
        if claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED) and not claim.exploratory and not claim.timed
    ]


def list_noise_proof_claims(report: Report) -> ClaimResults:
    """List the SUPPORTED claims that are exact, hold by construction, or exclude a zero effect."""
    return [
        claim
        for claim in list_decided_claims(report)
        if claim.verdict == Verdict.SUPPORTED and (claim.holds_by_construction or _excludes_no_effect(claim))
    ]


def _excludes_no_effect(claim: ClaimResult) -> bool:
    """Whether the claim's region excludes the null value, so that the claim asserts an effect."""
    low, high = claim.region or (-math.inf, math.inf)
    return low > claim.null_value or high < claim.null_value


def _run_subprocess(overrides: Sequence[str], quiet: bool = False) -> int:
    """Run attnlab in a subprocess and return its exit status; `quiet` sends its output to stderr."""
    command = [sys.executable, "-m", "attnlab", *overrides]
    return subprocess.run(command, check=False, stdout=sys.stderr if quiet else None).returncode
