"""The end of a sweep: a report of its runs as they lie in the store, and the lines that a terminal shows."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.errors import printable
from attnlab.store import runs as store
from attnlab.store.declarations import Experiment
from attnlab.store.guards import declared as log
from attnlab.store.guards import digests, marks, users
from attnlab.store.guards.declared import Declared
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute import mend
from attnlab.sweep.execute.progress import ending
from attnlab.sweep.plan.exchange.told import lines as exchanged
from attnlab.sweep.plan.exchange.told import slope as slope_of
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.plan.provenance import provenance, typed
from attnlab.sweep.status import looks
from attnlab.sweep.waiting import waiting

if TYPE_CHECKING:
    from attnlab.report.schema import Report as ReportDocument
    from attnlab.report.schema import Timing
    from attnlab.report.verdicts.runs import Run

TONES = {"SUPPORTED": "green", "REFUTED": "red", "INCONCLUSIVE": "blue", "EXPLORATORY": "red"}


def using(
    plans: Sequence[Plan],
    root: Path,
    reports: Path,
    arguments: Sequence[str],
    instead: Sequence[Path] = (),
) -> list[Path]:
    """Has the store remember, before anything is trained, whose runs these are: a file per plan."""
    return users.begin(root, [_user(plan, reports, arguments) for plan in plans], instead)


def _user(plan: Plan, reports: Path, arguments: Sequence[str]) -> users.User:
    ids = [run.id for run in plan.all_runs]
    parents = [str(run.config["parent"]) for run in plan.all_runs if run.config.get("parent")]
    name = plan.experiment.name if plan.experiment else None
    return users.user(plan.title, name, typed(arguments), reports, [*ids, *parents])


def declare(plan: Plan, root: Path, arguments: Sequence[str]) -> Declared:
    """Has the store put on record what a plan's experiment declares; tells of what that contradicts."""
    assert plan.experiment is not None
    arms = {arm: runs for arm, runs in plan.arms().items() if arm not in plan.untuned}
    recipes = {arm: recipe if arm in arms else None for arm, recipe in plan.recipes.items()}
    texts = {arm: runs[0].estimate.data.get("sha256") for arm, runs in plan.arms().items()}
    ids = {arm: {run.seed: run.id for run in runs} for arm, runs in arms.items()}
    slope = slope_of(plan.exchange, looks.lookup(root))
    declared = log.declare(root, plan.name, plan.experiment, recipes, texts, ids, typed(arguments), slope)
    for line in declared.departures:
        print(printable(f"{plan.title} is EXPLORATORY: {line}"), flush=True)
    if broken := log.read(root).broken:
        lines = ", ".join(map(str, broken))
        print(f"{root / marks.LOG}: broken and passed over: line {lines}", file=sys.stderr, flush=True)
    return declared


@dataclass
class Report:
    """A report before it is on disk: what report.json will have, and the runs that it was built from."""

    plan: Plan
    document: "ReportDocument"
    runs: "list[Run]"
    declared: Declared | None


@waiting("working out the report")
def built(
    plan: Plan,
    root: Path,
    times: "Timing | None",
    arguments: Sequence[str],
    declared: Declared | None = None,
    now: bool = False,
) -> Report:
    """The report of a plan's runs, finished or not; `now`: while some may be under way."""
    from attnlab.report.build import build  # late: a plan or a status needs none of it
    from attnlab.report.verdicts.runs import Asked, Run, read_run

    assert plan.experiment is not None
    runs = []
    for run in (run for run in plan.runs if run.arm not in plan.untuned):
        folder = root / run.id
        trusted = store.record(folder) is not None
        axes = run.use.axes
        lost = Run(run.arm, run.seed, run.id, broken=mend.faults(folder, digests.LARGE), axes=axes)
        runs.append(read_run(folder, run.arm, run.seed, axes) if trusted else lost)
    device = plan.runs[0].estimate.device_kind
    records = [run.record for run in runs if run.record]
    source = provenance(arguments, plan.declared or {}, plan.changed, device, records)
    asked = Asked(  # with what the file declares beside it, so that the report can name each departure
        plan.experiment,
        overrides=plan.changed,
        unchecked=plan.unchecked,
        outdated=_outdated(plan, root),
        wanted=looks.wanted(plan, root),
        tuning=plan.tuned.told() if plan.tuned is not None else None,
        exchange=looks.exchanged(plan, root),
        declared={key: value for key, value in (plan.declared or {}).items() if key in Experiment.decisive()},
        undeclared=plan.declared is None,
        on_record=declared,
        place=plan.replication.told(plan.together) if plan.replication else None,
        under_way=now,
    )
    return Report(plan, build(asked, runs, times, source), runs, declared)


def publish(found: Report, root: Path, reports: Path) -> None:
    """Writes a report, and prints its verdicts."""
    from attnlab.report.pages import terminal
    from attnlab.report.pages.files import write

    plan = found.plan
    document = found.document
    assert plan.experiment is not None
    folder = reports / plan.title
    with waiting(f"drawing the report of {plan.title}"):
        page = write(folder, document, found.runs)
    if plan.tuned is not None and plan.grid and not plan.untuned:
        plan.tuned.write(folder / "tuned.yaml", plan.experiment.name)
    for line in terminal.lines(document):
        _say(printable(line, "\n"))
    print(f"report: {page}", flush=True)
    if found.declared is not None:
        log.keep_known(root, found.declared)


def _say(line: str) -> None:
    """Prints a line, its verdicts in colour on a terminal that wants them (NO_COLOR)."""
    from rich.console import Console
    from rich.text import Text

    text = Text(line)
    for word, tone in TONES.items():
        text.highlight_words([word], f"bold {tone}")
    Console(soft_wrap=True, highlight=False).print(text)


def together(reports: Sequence[Report], folder: Path) -> list[Path]:
    """What the texts of an experiment say together goes into the report of each; what the rungs of a ladder
    say has a page of its own. Returns these pages.
    """
    from attnlab.report.across import page, texts

    groups: dict[str, list[Report]] = {}
    for found in reports:
        if found.plan.replication:
            groups.setdefault(found.plan.together, []).append(found)
    ladders = []
    for title, group in groups.items():
        documents = {found.plan.title: found.document for found in group}
        place = group[0].document.place
        if place is not None and place.kind == "rung":
            ladders.append(page.write(folder / title, documents))
        else:
            told = texts.add_texts(documents)
            for found in group:
                found.document = told[found.plan.title]
    return ladders


def tell_ladders(pages: Sequence[Path]) -> None:
    """What ladders say, each with its page."""
    from attnlab.report import ladder
    from attnlab.report.across import page as across

    for page in pages:
        for line in across.lines(ladder.load(page.parent)):
            print(printable(line))
        print(f"ladder: {page}", flush=True)


def announce_exchange(runs: Sequence[RunSpec]) -> None:
    """What the exchange is about to train."""
    if runs:
        print(f"what training is worth: {len(runs)} runs to train before any is compared", flush=True)


def tell_exchange(plans: Sequence[Plan], root: Path) -> None:
    """What training is worth, and the margin that follows from it."""
    for plan in plans:
        if plan.experiment:
            for line in exchanged(plan.experiment, plan.exchange, looks.lookup(root)):
                print(printable(line), flush=True)


def announce_look(runs: Sequence[RunSpec]) -> None:
    """What the next look takes."""
    seeds = sorted({run.seed for run in runs})
    arms = list(dict.fromkeys(run.arm for run in runs))
    those = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    print(f"undecided: {len(runs)} more runs, {those} of {', '.join(arms)}", flush=True)


def _outdated(plan: Plan, root: Path) -> dict[str, int]:
    """Part of a record -> in how many finished runs it is not what today's code would have measured."""
    counts: dict[str, int] = {}
    for run in plan.runs:
        record = store.record(root / run.id)
        if record is not None and record.done:
            for part in (*record.outdated(run.estimate), *record.unseen(run.estimate)):
                counts[part] = counts.get(part, 0) + 1
    return counts


@dataclass(frozen=True)
class Work:
    """How many runs a command has, and what becomes of them."""

    runs: int
    done: int
    train: int
    edited: int
    remeasure: int
    later: int
    failed: int

    def describe(self) -> str:
        """A line; kinds of which there are none are left out."""
        kinds = (
            (self.edited, "edited, to be measured again, or trained where that is not enough"),
            (self.remeasure, "to be measured again, by code that was changed"),
            (self.later, "at later interim analyses, as far as claims are inconclusive then"),
            (self.failed, "failed before (sweep.retry_failed=true runs them again)"),
        )
        some = [f"{count} {kind}" for count, kind in kinds if count]
        return ", ".join([f"{self.runs} runs", f"{self.done} done", f"{self.train} to train", *some])


def count_work(plans: Sequence[Plan], todo: Sequence[RunSpec], root: Path) -> Work:
    """What becomes of the runs of all plans."""
    records = {run.id: store.record(root / run.id) for plan in plans for run in plan.runs}
    wanted = {run.id for run in todo}
    finished = {id: record for id, record in records.items() if record is not None and record.done}
    stale = {id: record for id, record in finished.items() if id in wanted}
    remeasure = sum(not digests.broken(root / id, record) for id, record in stale.items())
    edited = sum(bool(store.edited(root / id)[1]) for id in wanted)
    done = len(finished) - len(stale)
    failed = sum(not record.done for id, record in records.items() if record and id not in wanted)
    return Work(
        runs=len(records),
        done=done,
        train=len(wanted) - remeasure - edited,
        edited=edited,
        remeasure=remeasure,
        later=len(records) - len(wanted & records.keys()) - done - failed,
        failed=failed,
    )


def announce(plans: Sequence[Plan], todo: Sequence[RunSpec], root: Path, seconds: float) -> None:
    """Prints what is about to be trained."""
    for line in (line for plan in plans for line in _describe_plan(plan, seconds)):
        print(printable(line))
    mend.tell((run for plan in plans for run in plan.runs), todo, root)
    print(count_work(plans, todo, root).describe(), flush=True)


def _describe_plan(plan: Plan, seconds: float) -> list[str]:
    """The size of an experiment, and what tuning leaves out or did with other settings."""
    lines = []
    if plan.experiment:
        size = f"{len(plan.arms())} arms x {len(plan.experiment.seeds)} seeds"
        lines.append(f"{plan.title}: {size}, planned and checked in {seconds:.1f} s")
    if plan.tuned:
        lines += [f"{arm} is not trained: {plan.tuned.lack(arm)}" for arm in plan.untuned]
        lines += plan.tuned.stale()
    return lines


def show_runs(runs: Sequence[RunSpec], root: Path) -> None:
    """A line per run of a command without an experiment."""
    for run in runs:
        line = f"{run.arm} seed={run.seed}  {ending(store.record(root / run.id))}  {root / run.id}"
        print(printable(line), flush=True)
