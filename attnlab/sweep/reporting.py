"""Reports of a sweep, built from its run directories, and the lines that a sweep prints."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.errors import escape_unprintable
from attnlab.store import file_names, run_directories
from attnlab.store.guards import digests, preregistrations, run_references
from attnlab.store.guards.preregistrations import Preregistration
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute import repair
from attnlab.sweep.execute.progress import WorkLeft, describe_ending
from attnlab.sweep.plan.compute_calibration.compute_calibration import compute_slope, describe_calibration
from attnlab.sweep.plan.plan import Plan, format_head_count_warning
from attnlab.sweep.plan.provenance import collect_provenance, format_command
from attnlab.sweep.slow_notice import notify_if_slow
from attnlab.sweep.status import interim_status

if TYPE_CHECKING:
    from attnlab.report.schema import Report as ReportDocument
    from attnlab.report.schema import TimingResult
    from attnlab.report.verdicts.results import Run

VERDICT_COLORS = {"SUPPORTED": "green", "REFUTED": "red", "INCONCLUSIVE": "blue", "EXPLORATORY": "red"}


def register_references(
    plans: Sequence[Plan],
    root: Path,
    reports: Path,
    command_line: Sequence[str],
    replaced: Sequence[Path] = (),
) -> list[Path]:
    """Write a reference to the runs of each plan, before anything is trained; return the files."""
    return run_references.write_references(
        root, [_build_reference(plan, reports, command_line) for plan in plans], replaced
    )


def _build_reference(plan: Plan, reports: Path, command_line: Sequence[str]) -> run_references.RunReference:
    ids = [run.id for run in plan.all_runs]
    parents = [str(run.config["parent"]) for run in plan.all_runs if run.config.get("parent")]
    name = plan.experiment.name if plan.experiment else None
    return run_references.create_reference(
        plan.title, name, format_command(command_line), reports, [*ids, *parents]
    )


def preregister_plan(plan: Plan, root: Path, command_line: Sequence[str]) -> Preregistration:
    """Append a plan's experiment to the preregistration log; print deviations and broken lines of the log."""
    assert plan.experiment is not None
    arms = {arm: runs for arm, runs in plan.group_runs_by_arm().items() if arm not in plan.untuned_arms}
    recipes = {arm: recipe if arm in arms else None for arm, recipe in plan.config_digests.items()}
    corpora = {arm: runs[0].estimate.data.get("sha256") for arm, runs in plan.group_runs_by_arm().items()}
    ids = {arm: {run.seed: run.id for run in runs} for arm, runs in arms.items()}
    slope = compute_slope(plan.compute_calibration, interim_status.create_result_lookup(root))
    preregistration = preregistrations.preregister(
        root,
        plan.name,
        plan.experiment,
        recipes,
        corpora,
        ids,
        format_command(command_line),
        slope,
        is_inline=plan.composed_experiment is not None and plan.composed_experiment.origin.file is None,
    )
    for line in preregistration.deviations:
        print(escape_unprintable(f"{plan.title} is EXPLORATORY: {line}"), flush=True)
    if broken := preregistrations.read_log(root).broken_lines:
        lines = ", ".join(map(str, broken))
        print(
            f"{root / file_names.PREREGISTRATION_LOG}: invalid lines ignored: {lines}",
            file=sys.stderr,
            flush=True,
        )
    return preregistration


@dataclass
class DraftReport:
    """A report that is not yet on disk: the content of report.json and the runs behind it."""

    plan: Plan
    document: "ReportDocument"
    runs: "list[Run]"
    preregistration: Preregistration | None


@notify_if_slow("computing the report")
def assemble_report(
    plan: Plan,
    root: Path,
    times: "TimingResult | None",
    command_line: Sequence[str],
    preregistration: Preregistration | None = None,
    work: WorkLeft | None = None,
    now: bool = False,
) -> DraftReport:
    """Build the report of a plan's runs, finished or not; with `now`, some may still be under way.

    The report shows the `work` that is left.
    """
    from attnlab.report.report_builder import build_report  # late: `plan` and `status` do not need it
    from attnlab.report.verdicts.results import Run, SweepContext, read_run

    assert plan.experiment is not None
    runs = []
    for run in (run for run in plan.runs if run.arm not in plan.untuned_arms):
        folder = root / run.id
        is_valid = run_directories.load_run_result(folder) is not None
        axes = run.use.axes
        broken_run = Run(
            run.arm,
            run.seed,
            run.id,
            broken_files=repair.find_faults(folder, digests.LARGE_FILE_BYTES),
            axes=axes,
        )
        runs.append(read_run(folder, run.arm, run.seed, axes) if is_valid else broken_run)
    device = plan.runs[0].estimate.device_kind
    records = [run.result for run in runs if run.result]
    source = collect_provenance(command_line, plan.declared or {}, plan.changed, device, records)
    context = SweepContext(
        plan.experiment,
        overrides=plan.changed,
        waived_invariants=plan.unchecked,
        outdated_counts=_count_outdated_parts(plan, root),
        required_seeds=interim_status.count_required_seeds(plan, root),
        tuning=plan.tuning.summarize() if plan.tuning is not None else None,
        compute_calibration=interim_status.load_compute_calibration(plan, root),
        not_preregistered=plan.declared is None,
        grid=plan.grid,
        preregistration=preregistration,
        replication=plan.replication.make_place(plan.group_title),
        work_left=work.describe() if work and (work.may_grow or (now and work.n_left)) else "",
    )
    return DraftReport(plan, build_report(context, runs, times, source), runs, preregistration)


def publish_report(draft: DraftReport, root: Path, reports: Path) -> None:
    """Write a report and its tuned.yaml, print its verdicts and log the pairs that it shows."""
    from attnlab.report.pages import terminal
    from attnlab.report.pages.report_files import write_report

    plan = draft.plan
    document = draft.document
    assert plan.experiment is not None
    folder = reports / plan.title
    with notify_if_slow(f"rendering the report of {plan.title}"):
        page = write_report(folder, document, draft.runs)
    if plan.tuning is not None and plan.tuning_runs and not plan.untuned_arms:
        plan.tuning.write_yaml(folder / "tuned.yaml", plan.experiment.name)
    for line in terminal.format_terminal_lines(document):
        _print_colored(escape_unprintable(line, "\n"))
    print(f"report: {page}", flush=True)
    if draft.preregistration is not None:
        preregistrations.record_known_pairs(root, draft.preregistration)


def _print_colored(line: str) -> None:
    """Print a line, with colored verdicts on a terminal unless NO_COLOR is set."""
    from rich.console import Console
    from rich.text import Text

    text = Text(line)
    for verdict, color in VERDICT_COLORS.items():
        text.highlight_words([verdict], f"bold {color}")
    console = Console(soft_wrap=True, highlight=False)
    with console.capture() as capture:
        console.print(text)
    print(capture.get(), end="")  # above a live region, which only prints to sys.stdout reach


def combine_reports(reports: Sequence[DraftReport], folder: Path) -> list[Path]:
    """Combine the reports of an experiment that is replicated over corpora or ladder sizes.

    The comparison over corpora is added to the report of each corpus, in place. A ladder gets its own page.

    Returns:
        The pages of the ladders.
    """
    from attnlab.report.replications import corpus_comparison, ladder_page

    groups: dict[str, list[DraftReport]] = {}
    for draft in reports:
        if not draft.plan.replication.is_own:
            groups.setdefault(draft.plan.group_title, []).append(draft)
    pages = []
    for title, group in groups.items():
        documents = {draft.plan.title: draft.document for draft in group}
        replication = group[0].document.replication
        if replication is not None and replication.kind == "rung":
            pages.append(ladder_page.write_ladder(folder / title, documents))
        else:
            documents = corpus_comparison.add_corpus_comparison(documents)
            for draft in group:
                draft.document = documents[draft.plan.title]
    return pages


def print_ladders(pages: Sequence[Path]) -> None:
    """Print the results of each ladder and the path of its page."""
    from attnlab.report import ladder_schema
    from attnlab.report.replications import ladder_page

    for page in pages:
        for line in ladder_page.format_ladder_lines(ladder_schema.load_ladder(page.parent)):
            print(escape_unprintable(line))
        print(f"ladder: {page}", flush=True)


def print_compute_calibration(plans: Sequence[Plan], root: Path) -> None:
    """Print the loss per doubling of compute of each plan, and the margin derived from it."""
    for plan in plans:
        if plan.experiment:
            for line in describe_calibration(
                plan.experiment, plan.compute_calibration, interim_status.create_result_lookup(root)
            ):
                print(escape_unprintable(line), flush=True)


def print_interim_results(plans: Sequence[Plan], root: Path) -> None:
    """Print the number of decided claims of each plan with interim analyses, in a line per plan."""
    for plan in plans:
        if summary := interim_status.summarize_claim_standings(plan, root):
            print(escape_unprintable(f"{plan.title}: {summary}"), flush=True)


def _count_outdated_parts(plan: Plan, root: Path) -> dict[str, int]:
    """Count, per part of a run result, the finished runs in which other code than today's measured it."""
    counts: dict[str, int] = {}
    for run in plan.runs:
        record = run_directories.load_run_result(root / run.id)
        if record is not None and record.is_done:
            for part in (
                *record.list_outdated_parts(run.estimate),
                *record.list_unobserved_parts(run.estimate),
            ):
                counts[part] = counts.get(part, 0) + 1
    return counts


@dataclass(frozen=True)
class RunCounts:
    """Counts of a command's runs by the action that is due for them."""

    total: int
    done: int
    to_train: int
    edited: int
    to_remeasure: int
    failed: int

    def describe(self) -> str:
        """Format the counts as one line, without counts of zero after the first three."""
        kinds = (
            (self.edited, "edited, to be measured again or trained again"),
            (self.to_remeasure, "to be measured again because the measuring code changed"),
            (self.failed, "failed earlier (sweep.retry_failed=true trains them again)"),
        )
        nonzero = [f"{count} {kind}" for count, kind in kinds if count]
        return ", ".join([f"{self.total} runs", f"{self.done} done", f"{self.to_train} to train", *nonzero])


def count_runs(plans: Sequence[Plan], to_launch: Sequence[RunConfig], root: Path) -> RunCounts:
    """Count the runs of all plans, by whether they are done, to be trained, or failed."""
    records = {run.id: run_directories.load_run_result(root / run.id) for plan in plans for run in plan.runs}
    launched_ids = {run.id for run in to_launch}
    finished = {id: record for id, record in records.items() if record is not None and record.is_done}
    stale = {id: record for id, record in finished.items() if id in launched_ids}
    remeasure = sum(not digests.find_broken_files(root / id, record) for id, record in stale.items())
    edited = sum(bool(run_directories.load_edited_result(root / id)[1]) for id in launched_ids)
    done = len(finished) - len(stale)
    failed = sum(not record.is_done for id, record in records.items() if record and id not in launched_ids)
    return RunCounts(
        total=len(records),
        done=done,
        to_train=len(launched_ids) - remeasure - edited,
        edited=edited,
        to_remeasure=remeasure,
        failed=failed,
    )


def announce_runs(
    plans: Sequence[Plan], to_launch: Sequence[RunConfig], root: Path, planning_seconds: float
) -> None:
    """Print the size of each plan, warnings, broken files and the counts of runs."""
    lines = [line for plan in plans for line in _describe_plan(plan, planning_seconds)]
    lines += dict.fromkeys(line for plan in plans for line in plan.describe_limits())
    for line in lines:
        print(escape_unprintable(line))
    if warning := format_head_count_warning(plans):
        print(escape_unprintable(warning))
    repair.print_faults((run for plan in plans for run in plan.runs), to_launch, root)
    print(count_runs(plans, to_launch, root).describe(), flush=True)


def _describe_plan(plan: Plan, planning_seconds: float) -> list[str]:
    """Describe an experiment's size, arms without a run, and rates tuned under other settings."""
    lines = []
    if plan.experiment:
        size = f"{len(plan.group_runs_by_arm())} arms x {len(plan.experiment.seeds)} seeds"
        lines.append(f"{plan.title}: {size}, planned and checked in {planning_seconds:.1f} s")
    lines += plan.grid.describe_rejections() if plan.grid else []
    if plan.tuning:
        lines += [f"{arm} not trained: {plan.tuning.explain_missing_rate(arm)}" for arm in plan.untuned_arms]
        lines += plan.tuning.describe_stale_rates()
    return lines


def print_runs(runs: Sequence[RunConfig], root: Path) -> None:
    """Print a line per run: arm, seed, outcome and run directory."""
    for run in runs:
        ending = describe_ending(run_directories.load_run_result(root / run.id))
        line = f"{run.arm} seed={run.seed}  {ending}  {root / run.id}"
        print(escape_unprintable(line), flush=True)
