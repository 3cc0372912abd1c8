"""A sweep from its command line to its report. What happened is read from the store, never from the launcher.

However the runs end (done, failed, interrupted), the report is written and says what is missing.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store import runs as store
from attnlab.sweep import wandb_report
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.microbatch import halved
from attnlab.sweep.execute.progress import ending
from attnlab.sweep.plan import checks, laws_gate
from attnlab.sweep.plan.arms import Run
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import Plan, plan
from attnlab.sweep.plan.provenance import git, provenance
from attnlab.sweep.timing import timing

_NOT_COMPARED = (
    "name",
    "question",
    "arm_overrides",
    "size_overrides",
)  # `overrides` says what the line changed
_WANDB = ("wandb", "wandb.sdk.launch", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
FAILED, INTERRUPTED, TERMINATED = 1, 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(SystemExit):
    """SIGTERM, on its way up like a KeyboardInterrupt; where nothing was started, the exit status itself."""


def carry_out(arguments: Sequence[str], config: DictConfig, loader: Any, launcher: Any) -> int:
    """Plan, train what is missing, time, report; returns the exit status. Refused: nothing was started."""
    switches = OmegaConf.to_container(config.get("sweep") or OmegaConf.create(), resolve=True)
    root = Path(config.paths.runs)
    logger = OmegaConf.to_container(config.get("logger") or OmegaConf.create(), resolve=True)
    module = checks.trainer({"sweep": switches})
    _tell_workers_the_commit()
    with _sigterm_raised():
        began = time.monotonic()
        threads = slots.slots("cpu", switches.get("slots"))[0].threads
        context = checks.warm(module, threads, _imports(config))

        def planned() -> list[Plan]:
            with checks.Checker(context, module) as check:
                plans = plan(arguments, Composer(loader, config), check, lambda id: store.record(root / id))
                if not switches.get("show"):
                    _check_laws(plans, check, bool(switches.get("unchecked")))
                return plans

        plans = planned()
        if switches.get("show"):
            from attnlab.sweep.status.show import show

            show(switches["show"], plans, root, switches)
            return 0
        store.refuse_unwritable(root)
        _refuse_unknown_parents(plans, root)
        retry, halving = bool(switches.get("retry_failed")), bool(switches.get("halve_batch"))
        if hasattr(launcher, "admit"):  # a third party's has no such thing
            wanted = _todo([run for one in plans for run in one.all_runs], root, retry)
            launcher.admit([(run.config, run.figures) for run in wanted], switches)
        todo, status = list[Run](), 0
        times: dict[int, dict[str, Any] | None] = {}
        try:
            if grid := _todo([run for one in plans for run in one.grid], root, retry):
                print(f"tuning the learning rate: {len(grid)} runs to train", flush=True)
                status = _launch(grid, root, plans, launcher, halving)
                plans = planned()
            todo = _todo(
                [run for one in plans for run in one.runs if run.arm not in one.untuned], root, retry
            )
            _announce(plans, todo, root, time.monotonic() - began)
            status = _launch(todo, root, plans, launcher, halving) or status
            times = {i: _timing(one, root, context) for i, one in enumerate(plans) if one.experiment}
        except (KeyboardInterrupt, Terminated) as interrupt:
            status = INTERRUPTED if isinstance(interrupt, KeyboardInterrupt) else TERMINATED
            print("interrupted: the runs were stopped; the same command carries on", flush=True)
        for i, one in enumerate(plans):
            if one.experiment:
                _report(one, root, Path(config.paths.reports), times.get(i), arguments)
                if status < INTERRUPTED:
                    wandb_report.publish(Path(config.paths.reports) / one.title, root, logger, context)
            else:
                told = {run.id for run in todo}
                _show_runs(
                    [run for run in one.runs if run.id not in told or not store.record(root / run.id)], root
                )
    wandb_report.tell_unsent(root, [run.id for run in todo])
    unfinished = any(not store.is_done(root / run.id) for one in plans for run in one.runs)
    return status or (FAILED if unfinished else 0)


def _check_laws(plans: Sequence[Plan], check: checks.Checker, unchecked: bool) -> None:
    broken = laws_gate.broken(plans, check)
    if not unchecked:
        laws_gate.refuse(broken)
    for one in plans:
        laws = {arm: broken[arm] for arm in one.arms() if arm in broken}
        one.unchecked = tuple(f"{arm} breaks {law}" for arm, found in laws.items() for law in found)
        for line in one.unchecked:
            print(f"unchecked: {line}", file=sys.stderr)


@contextmanager
def _sigterm_raised() -> Iterator[None]:
    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_workers_the_commit() -> None:
    """Asked once here instead of by every run."""
    commit, dirty = git()
    if commit:
        os.environ |= {"ATTNLAB_COMMIT": commit, "ATTNLAB_DIRTY": str(int(bool(dirty)))}


def _imports(config: DictConfig) -> list[str]:
    """What the runs will import late, W&B above all: a second or two of each run, unless it is paid once."""
    plain = OmegaConf.to_container(config)
    own = {name.rpartition(".")[0] for name in fingerprint.targets(plain) if name.startswith("attnlab.")}
    return [*sorted(own), "pandas", *(_WANDB if wandb_report.wanted(plain.get("logger") or {}) else ())]


def _todo(runs: Sequence[Run], root: Path, retry_failed: bool) -> list[Run]:
    """The runs to launch, each once: those without a record, and the failed ones where that is asked for."""
    todo = []
    for run in {run.id: run for run in runs}.values():
        found = store.record(root / run.id)
        if found is None or (retry_failed and found["status"] != "done"):
            todo.append(run)
    return todo


def _refuse_unknown_parents(plans: Sequence[Plan], root: Path) -> None:
    runs = [run for one in plans for run in one.runs]
    ours = {run.id for run in runs}
    for run in runs:
        parent = run.config.get("parent")
        if parent and parent not in ours and not store.is_done(root / str(parent)):
            raise Refused(
                f"parent={parent} of {run.arm}: no arm, and no finished run in {root}; train it first"
            )


def _announce(plans: Sequence[Plan], todo: Sequence[Run], root: Path, seconds: float) -> None:
    ids = {run.id for one in plans for run in one.runs}
    done = sum(store.is_done(root / id) for id in ids)
    failed = len(ids) - len(todo) - done
    for one in plans:
        if one.experiment:
            seeds = len(one.experiment["seeds"])
            print(
                f"{one.title}: {len(one.arms())} arms x {seeds} seeds, planned and checked in {seconds:.1f} s"
            )
        for arm in one.untuned:
            print(f"{arm} is not trained: no learning rate of its grid has finished with every seed")
    parts = [f"{len(ids)} runs", f"{done} done", f"{len(todo)} to train"]
    if failed:
        parts.append(f"{failed} failed before (sweep.retry_failed=true runs them again)")
    print(", ".join(parts), flush=True)


def _launch(todo: Sequence[Run], root: Path, plans: Sequence[Plan], launcher: Any, halving: bool) -> int:
    """Train the runs, parents before children; what ran out of memory again in smaller parts, where asked.

    1 where the launcher itself failed.
    """
    status = _submit(todo, root, plans, launcher)
    while halving and status == 0 and (smaller := [run for run in todo if halved(run, root)]):
        for run in smaller:
            parts = store.split(root / run.id)
            print(f"{run.arm} seed={run.seed} ran out of memory: once more, its batches in {parts} parts")
        status = _submit(smaller, root, plans, launcher)
    return status


def _submit(todo: Sequence[Run], root: Path, plans: Sequence[Plan], launcher: Any) -> int:
    names = {run.id: one.experiment["name"] for one in plans[::-1] if one.experiment for run in one.all_runs}
    for run in todo:
        use = {"experiment": names.get(run.id), "arm": run.arm, "overrides": list(run.overrides)}
        use["split"] = store.split(root / run.id)
        store.write_spec(
            root / run.id, semantic=run.semantic, config=run.config, figures=run.figures, use=use
        )
    waiting, index = list(todo), 0
    while waiting:
        pending = {run.id for run in waiting}
        ready = [run for run in waiting if run.config.get("parent") not in pending]
        orphans = [run for run in ready if not _parent_is_done(run, root)]
        for run in orphans:
            print(f"not started: {run.arm} seed={run.seed}, whose parent {run.config['parent']} is not done")
            waiting.remove(run)
            ready.remove(run)
        jobs = [[*run.overrides, f"paths.runs='{root.absolute()}'", f"id='{run.id}'"] for run in ready]
        try:
            launcher.launch(jobs, initial_job_idx=index)
        except Refused:
            raise
        except Exception:  # a third party's launcher: what it did manage is in the store
            traceback.print_exc()
            print("the launcher failed: the report says which runs are missing", file=sys.stderr)
            return FAILED
        index += len(ready)
        waiting = [run for run in waiting if run not in ready]
    return 0


def _parent_is_done(run: Run, root: Path) -> bool:
    parent = run.config.get("parent")
    return not parent or store.is_done(root / str(parent))


def _timing(one: Plan, root: Path, context: Any) -> dict[str, Any] | None:
    folders: dict[str, Path] = {}
    for run in one.runs:
        trained = not run.config.get("measurement")
        if trained and run.arm not in folders and store.is_done(root / run.id):
            folders[run.arm] = root / run.id
    if (one.runs[0].config.get("measure") or {}).get("timing") is False:
        return None
    found, note = timing(folders, one.runs[0].figures["device_kind"], context)
    if note:
        print(f"no timing: {note}", flush=True)
    return found


def _report(
    one: Plan, root: Path, reports: Path, times: dict[str, Any] | None, arguments: Sequence[str]
) -> None:
    from attnlab.report import build, write
    from attnlab.report.verdicts.runs import read_run

    assert one.experiment is not None
    runs = []
    for run in one.runs:
        found = read_run(root / run.id, run.arm, run.seed)
        valid = store.record(root / run.id) is not None
        runs.append(found if valid else type(found)(run.arm, run.seed, run.id))
    device, records = one.runs[0].figures["device_kind"], [run.record for run in runs if run.record]
    source = provenance(arguments, one.declared or {}, one.changed, device, records)
    report = build(_with_declared(one), runs, times, source)
    folder = reports / one.title
    page = write(folder, report, runs)
    if one.tuned is not None and one.grid and not one.untuned:
        one.tuned.write(folder / "tuned.yaml", one.experiment["name"])
    print(f"{report['verdict']['headline']}: {one.experiment['question'] or one.title}")
    for claim in report["verdict"]["claims"]:
        print(f"  {claim['sentence']}")
    print(f"report: {page}", flush=True)


def _with_declared(one: Plan) -> dict[str, Any]:
    """The experiment, with what its file declares beside it, so that the report can name each departure."""
    assert one.experiment is not None
    assert one.declared is not None
    compared = {key: value for key, value in one.declared.items() if key not in _NOT_COMPARED}
    known = {**one.experiment, "overrides": list(one.changed), "unchecked": list(one.unchecked)}
    known["tuning"] = one.tuned.told() if one.tuned is not None else None
    return {**known, "declared": {**compared, "overrides": []}}


def _show_runs(runs: Sequence[Run], root: Path) -> None:
    for run in runs:
        print(
            f"{run.arm} seed={run.seed}  {ending(store.record(root / run.id))}  {root / run.id}", flush=True
        )
