"""A sweep from its command line to its report. What happened is read from the store, never from the launcher.

However the runs end (done, failed, interrupted), the report is written and says what is missing.
"""

import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnlab.errors import Refused, printable
from attnlab.report.schema import Timing
from attnlab.store import fingerprint, runs, values
from attnlab.store.guards import declared, users
from attnlab.store.guards.declared import Declared
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep import reporting, wandb_report
from attnlab.sweep.execute import slots, stored_runs, submit
from attnlab.sweep.execute.process import INTERRUPTED, TERMINATED, Terminated, sigterm_raised
from attnlab.sweep.plan import checks, fork_server, laws_gate
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import Plan, extend
from attnlab.sweep.plan.plan import plan as plans_of
from attnlab.sweep.plan.provenance import git
from attnlab.sweep.plan.trainer import trainer_of
from attnlab.sweep.status import looks
from attnlab.sweep.timing import timing
from attnlab.training.loggers import notes

FAILED = submit.FAILED


def carry_out(arguments: Sequence[str], config: DictConfig, loader: Any, launcher: Any) -> int:
    """Plan, train what is missing, time, report; returns the exit status. Refused: nothing was started."""
    refuse_values(config)
    settings = _plain(config.get("sweep"))
    sweep = _Sweep(
        arguments=list(arguments),
        line=sys.argv[1:],
        composer=Composer(loader, config),
        launcher=launcher,
        settings=settings,
        logger=_plain(config.get("logger")),
        root=Path(config.paths.runs),
        reports=Path(config.paths.reports),
        cache=Path(config.paths.cache) if "cache" in config.paths else None,
        context=_warm(config, settings),
    )
    os.environ[notes.COMMAND] = uuid.uuid4().hex[:12]
    with sigterm_raised():
        return sweep.run()


def refuse_values(config: DictConfig) -> None:
    """Refused, one line, for a value that the groups which the sweep itself reads cannot have."""
    groups = ("sweep", "paths", "logger")
    read = OmegaConf.masked_copy(config, [key for key in groups if key in config])
    values.refuse(_plain(read), groups)


@dataclass
class _Sweep:
    """One command: `arguments` are the overrides in it, `line` all of it.

    `settings` are its `sweep` keys, `logger` its logger's, `root` is the store."""

    arguments: list[str]
    composer: Composer
    launcher: Any
    settings: dict[str, Any]
    logger: dict[str, Any]
    root: Path
    reports: Path
    cache: Path | None
    context: fork_server.Context
    users: list[Path] = field(default_factory=list)  # a file of the store per plan: who uses its runs
    declared: dict[int, Declared] = field(default_factory=dict)  # by plan: what its experiment declares
    line: list[str] = field(default_factory=list)

    def run(self) -> int:
        """The steps, in their order."""
        began = time.monotonic()
        if self.cache is not None:  # planning writes into it
            runs.refuse_unwritable(self.cache, "paths.cache")
        try:
            plans = self.planned()
        except (KeyboardInterrupt, Terminated):
            fork_server.end_server()  # it may have seconds of imports before it
            raise
        if self.settings.get("show") == "report":
            return self.reported_now(plans)
        if self.settings.get("show"):
            from attnlab.sweep.status.show import show

            show(self.settings["show"], plans, self.root, self.settings, self.extended)
            return 0
        took = time.monotonic() - began
        self.admit(plans)
        self.using(plans)
        status = 0
        todo = list[RunSpec]()
        times = dict[int, Timing | None]()
        try:
            plans, status = self.tuned(plans)
            status = self.exchanged(plans) or status
            self.declare(plans)
            todo = self.todo(self.needed(plans))
            reporting.announce(plans, todo, self.root, took)
            status = self.looked(todo, plans) or status
            times = {i: self.timed(plan) for i, plan in enumerate(plans) if plan.experiment}
        except (KeyboardInterrupt, Terminated) as interrupt:
            status = INTERRUPTED if isinstance(interrupt, KeyboardInterrupt) else TERMINATED
            print("interrupted: the runs were stopped; the same command carries on", flush=True)
        self.report(plans, todo, times, publish=status < INTERRUPTED)
        wanted = [*self.needed(plans), *(run for plan in plans for run in plan.trading)]
        unfinished = any(not runs.is_done(self.root / run.id) for run in wanted)
        unknown = any(plan.untuned or looks.unpriced(plan, self.root) for plan in plans)
        return status or (FAILED if unfinished or unknown else 0)

    def reported_now(self, plans: list[Plan]) -> int:
        """A report of what the store has by now, while others may train; nothing is trained or timed."""
        if not all(plan.experiment for plan in plans):
            raise Refused("report --now of what? Of an experiment: add +experiment=NAME")
        if not any(runs.record(self.root / run.id) for plan in plans for run in plan.runs):
            raise Refused("report --now: no run of it has ended yet; `status` says how they stand")
        runs.refuse_unwritable(self.reports, "paths.reports")
        self.using(plans)
        self.report(plans, [], {}, publish=False, now=True)
        return 0

    def planned(self) -> list[Plan]:
        """All runs, composed, checked and named; arms that break a law are refused."""
        with self.checker() as checker:
            plans = plans_of(self.arguments, self.composer, checker, self.record, git(), checker.module)
            if not self.settings.get("show"):
                laws_gate.check(plans, checker, bool(self.settings.get("unchecked")))
        return plans

    def extended(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans with the learning rates that tuning has found by now."""
        with self.checker() as checker:
            return extend(plans, checker, self.record, git())

    def checker(self) -> checks.Checker:
        return checks.Checker(self.context, trainer_of({"sweep": self.settings}))

    def record(self, id_: str) -> RunRecord | None:
        return runs.record(self.root / id_)

    def admit(self, plans: Sequence[Plan]) -> None:
        """Refused where something is known to fail before anything is written."""
        runs.refuse_unwritable(self.root)
        if any(plan.experiment for plan in plans):
            runs.refuse_unwritable(self.reports, "paths.reports")
            declared.refuse_unwritable(self.root)
        submit.refuse_unknown_parents([run for plan in plans for run in plan.runs], self.root)
        submit.refuse_strangers([run for plan in plans for run in plan.all_runs], self.root)
        if hasattr(self.launcher, "admit"):  # a third party's has no such thing
            self.launcher.admit(self.todo([run for plan in plans for run in plan.all_runs]), self.settings)

    def using(self, plans: Sequence[Plan]) -> None:
        """The store remembers that these runs are used, so that `clean` keeps them."""
        self.users = reporting.using(plans, self.root, self.reports, self.line, instead=self.users)

    def tuned(self, plans: list[Plan]) -> tuple[list[Plan], int]:
        """Trains what tuning asks for and extends the plans, until it asks for nothing new."""
        status = 0
        asked = set[str]()
        while rung := [
            run for run in self.todo([run for plan in plans for run in plan.grid]) if run.id not in asked
        ]:
            asked |= {run.id for run in rung}
            print(f"tuning the learning rate: {len(rung)} runs to train", flush=True)
            status = self.trained(rung, plans) or status
            plans = self.extended(plans)
            self.admit(plans)
            self.using(plans)
        return plans, status

    def exchanged(self, plans: Sequence[Plan]) -> int:
        """Trains what tells a difference as training, each for a baseline whose learning rate is known."""
        todo = self.todo([run for plan in plans for run in plan.trading])
        reporting.announce_exchange(todo)
        status = self.trained(todo, plans) if todo else 0
        reporting.tell_exchange(plans, self.root)
        return status

    def declare(self, plans: Sequence[Plan]) -> None:
        """What decides goes on record before a run of the comparison begins; once, also where none did."""
        for i, plan in enumerate(plans):
            if plan.experiment and plan.declared is not None and i not in self.declared:
                self.declared[i] = reporting.declare(plan, self.root, self.line)

    def needed(self, plans: Sequence[Plan]) -> list[RunSpec]:
        """The runs that the claims need by now, look by look; an arm without a learning rate has none."""
        first = sorted(plans, key=Plan.flops, reverse=True)  # what takes longest: no slot waits for it alone
        return [run for plan in first for run in looks.needed(plan, self.root) if run.arm not in plan.untuned]

    def looked(self, todo: list[RunSpec], plans: Sequence[Plan]) -> int:
        """Trains the runs of a look, then those of the next one, until no claim needs more seeds."""
        status = self.trained(todo, plans)
        while not status:
            more = [run for run in self.needed(plans) if runs.record(self.root / run.id) is None]
            if not more or {run.id for run in more} <= {run.id for run in todo}:
                break
            reporting.announce_look(more)
            todo += more
            status = self.trained(more, plans)
        return status

    def todo(self, wanted: Sequence[RunSpec]) -> list[RunSpec]:
        """Those of the runs that are to be launched."""
        return submit.todo(wanted, self.root, bool(self.settings.get("retry_failed")))

    def trained(self, todo: Sequence[RunSpec], plans: Sequence[Plan]) -> int:
        """Launches the runs; 1 where the launcher itself failed."""
        names = {
            run.id: plan.experiment.name for plan in plans[::-1] if plan.experiment for run in plan.all_runs
        }
        composed = submit.composed([run for plan in plans for run in plan.all_runs])
        return submit.launch(todo, self.root, names, self.launcher, self.settings, composed)

    def timed(self, plan: Plan) -> Timing | None:
        """The times of the arms' finished runs, taken while nothing else runs."""
        if (plan.runs[0].config.get("measure") or {}).get("timing") is False:
            return None
        folders: dict[str, Path] = {}
        for run in plan.runs:
            trained = not run.config.get("measurement")
            if trained and run.arm not in folders and runs.is_done(self.root / run.id):
                folders[run.arm] = self.root / run.id
        kind = plan.runs[0].estimate.device_kind
        composed = submit.composed(plan.all_runs)
        times, note = timing(folders, kind, self.context, composed)
        if note:
            print(f"no timing: {note}", flush=True)
        return times

    def report(
        self,
        plans: Sequence[Plan],
        launched: Sequence[RunSpec],
        times: dict[int, Timing | None],
        publish: bool,
        now: bool = False,
    ) -> None:
        """A report per experiment; a line per run that no launcher has told of, where there is none. `now`:
        while runs may be under way.
        """
        self.declare(plans)  # where it was interrupted before it had
        found = {
            i: reporting.built(plan, self.root, times.get(i), self.line, self.declared.get(i), now)
            for i, plan in enumerate(plans)
            if plan.experiment
        }
        ladders = reporting.together([*found.values()], self.reports)
        published = []
        for i, plan in enumerate(plans):
            if i in found:
                reporting.publish(found[i], self.root, self.reports)
                users.published(self.users[i])
                if publish:
                    published.append(self.reports / plan.title)
            else:
                ids = {run.id for run in launched}
                silent = [
                    run for run in plan.runs if run.id not in ids or not runs.record(self.root / run.id)
                ]
                reporting.show_runs(silent, self.root)
                if publish:
                    users.ended(self.users[i])
        reporting.tell_ladders(ladders)
        self.log_rest(plans, published, publish)

    def log_rest(self, plans: Sequence[Plan], published: Sequence[Path], ended: bool) -> None:
        """Logs the reports, and the finished runs that a logger lacks; prints how to upload the rest."""
        every = [run.id for plan in plans for run in plan.all_runs]
        folders = [self.root / name for name in dict.fromkeys(every)]
        names = {run.id: plan.experiment.name for plan in plans if plan.experiment for run in plan.all_runs}
        if ended:
            stored_runs.log(folders, self.logger, names, self.context)
        for folder in published:
            wandb_report.publish(folder, self.root, self.logger, self.context)
        if wandb_report.wanted(self.logger) and (
            line := notes.closing_line(self.root, [folder.name for folder in folders])
        ):
            print(printable(line), flush=True)
        notes.end_command(self.root)


def _plain(node: Any) -> dict[str, Any]:
    content = OmegaConf.to_container(node or OmegaConf.create(), resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _warm(config: DictConfig, settings: dict[str, Any]) -> fork_server.Context:
    """Processes that have imported what the runs will import late, W&B above all: a second or two of each."""
    threads = slots.slots("cpu", settings.get("slots"))[0].threads
    plain = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    own = {name.rpartition(".")[0] for name in fingerprint.targets(plain) if name.startswith("attnlab.")}
    late = ["pandas"] if own else []  # by pyarrow, which writes the curves of attnlab's own runs
    late += notes.WANDB_IMPORTS if wandb_report.wanted(plain.get("logger") or {}) else []
    return fork_server.warm(trainer_of({"sweep": settings}), threads, [*sorted(own), *late])
