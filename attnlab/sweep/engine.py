"""A sweep, from its command line to its report.

Outcomes are read from the run directories, never from the launcher. However the runs end (done, failed,
interrupted), the report is written and lists the missing runs.
"""

import os
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from filelock import Timeout
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import InvalidConfig, escape_unprintable
from attnlab.report.schema import TimingResult
from attnlab.store import config_groups, fingerprint, remote, run_directories
from attnlab.store.config_groups import WorkLimits
from attnlab.store.guards import preregistrations, run_references, trust
from attnlab.store.guards.preregistrations import Preregistration
from attnlab.store.lease import describe_owner, hold_lease, upload_results
from attnlab.store.remote_files import is_url
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.sweep import reporting, wandb_report
from attnlab.sweep.arm_timing import measure_arm_times
from attnlab.sweep.execute import logger_sync, process_control, submission, worker_slots
from attnlab.sweep.execute.process_control import INTERRUPTED, TERMINATED, SigtermExit
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.execute.pull import PullLauncher, WorkerStopped
from attnlab.sweep.execute.submission import Submitted
from attnlab.sweep.execute.work_folder import WorkFolder, build_work_plan, compute_results_digest
from attnlab.sweep.plan import fork_server, invariants_gate
from attnlab.sweep.plan.checker import Checker
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import Plan, extend_plans, plan_command
from attnlab.sweep.plan.provenance import format_command, get_git_state
from attnlab.sweep.plan.trainer import get_trainer_name
from attnlab.sweep.status import interim_status, work_left
from attnlab.training.loggers import logger_notes

FAILED = submission.FAILED


class FirstFailure(Exception):
    """Raised under `sweep.fail_fast` once a run has failed; it ends all stages."""


def run_sweep(overrides: Sequence[str], config: DictConfig, loader: Any, launcher: Any) -> int:
    """Plan a sweep, train its missing runs, time the arms and write the report.

    Returns:
        The exit status: 0, also if the runs were left to a cluster; 1 if a run is missing or failed; 130 or
        143 if the sweep was interrupted.
    """
    validate_sweep_config(config)
    settings = _convert_to_dict(config.get("sweep"))
    settings["array_parallelism"] = getattr(launcher, "options", {}).get("array_parallelism")
    if is_url(config.paths.runs) and not getattr(launcher, "trains_here", False):
        raise InvalidConfig(
            f"paths.runs={config.paths.runs} works only with runs of this machine: remove hydra/launcher, "
            "and start `python -m attnlab work` on each machine"
        )
    sweep = _Sweep(
        overrides=list(overrides),
        command_line=sys.argv[1:],
        composer=Composer(loader, config),
        launcher=launcher,
        settings=settings,
        logger=_convert_to_dict(config.get("logger")),
        root=remote.open_store(
            config.paths.runs, config.paths.get("cache"), writable=not settings.get("show")
        ),
        reports=Path(config.paths.reports),
        cache=Path(config.paths.cache) if "cache" in config.paths else None,
        context=_start_fork_server(config, settings),
    )
    os.environ[logger_notes.COMMAND_VARIABLE] = uuid.uuid4().hex[:12]
    with process_control.raise_on_signals():
        return sweep.run()


def validate_sweep_config(config: DictConfig) -> None:
    """Check the values of the config groups that the sweep itself reads."""
    groups = ("sweep", "paths", "logger")
    sweep_config = OmegaConf.masked_copy(config, [key for key in groups if key in config])
    config_groups.validate_groups(_convert_to_dict(sweep_config), groups)


@dataclass
class _Sweep:
    """One command and its state.

    `overrides` are its Hydra overrides, `command_line` its full argument list, `settings` and `logger` the
    config groups `sweep`, with `array_parallelism` of the launcher `slurm`, and `logger`, and `root` is the
    runs directory.
    """

    overrides: list[str]
    composer: Composer
    launcher: Any
    settings: dict[str, Any]
    logger: dict[str, Any]
    root: Path
    reports: Path
    cache: Path | None
    context: fork_server.Context
    reference_files: list[Path] = field(default_factory=list)  # per plan: references to its runs
    preregistrations: dict[int, Preregistration] = field(default_factory=dict)  # by index of the plan
    command_line: list[str] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    def run(self) -> int:
        """Run all steps in order, or show the plans, and return the exit status."""
        if self.settings.get("show"):
            return self.show(self.plan())
        with self.progress.serve_command():
            try:
                limits = self.settings.get("work")
                return self.train_and_report() if limits is None else self.work(WorkLimits(**limits))
            except Submitted as submitted:
                self.progress.close()
                print(escape_unprintable(str(submitted), allowed="\n"), flush=True)
                return 0

    def plan(self) -> list[Plan]:
        """Build the plans; an interrupt ends the fork server too."""
        if self.cache is not None:  # planning writes into it
            run_directories.require_writable_folder(self.cache, "paths.cache")
        try:
            return self.build_plans()
        except (KeyboardInterrupt, SigtermExit):
            fork_server.kill_server()  # it may still be importing for seconds
            raise

    def show(self, plans: list[Plan]) -> int:
        """Show a view of the plans, or write a report of the runs so far; train nothing."""
        if self.settings["show"] == "report":
            return self.write_report_now(plans)
        from attnlab.sweep.status.display import show_plans

        show_plans(self.settings["show"], plans, self.root, self.settings, self.extend_plans)
        return 0

    def train_and_report(self) -> int:
        """Train the missing runs, time the arms and write the reports; return the exit status."""
        started_at = time.monotonic()
        plans = self.plan()
        planning_seconds = time.monotonic() - started_at
        self.validate_plans(plans)
        self.register_references(plans)
        status = 0
        to_launch = list[RunConfig]()
        times = dict[int, TimingResult | None]()
        try:
            status = self.train(plans, to_launch, planning_seconds)
            times = self.time_plans(plans)
        except FirstFailure:
            status = FAILED
        except (KeyboardInterrupt, SigtermExit) as interrupt:
            status = self.acknowledge_interrupt(interrupt)
        self.write_reports(plans, to_launch, times, publish=status < INTERRUPTED)
        return status or self.find_status(plans)

    def train(self, plans: list[Plan], to_launch: list[RunConfig], planning_seconds: float) -> int:
        """Train the missing runs of all stages and return the launch status.

        Replaces `plans` by the extended ones, in place, and adds the launched runs of the comparison to
        `to_launch`.
        """
        plans[:], status = self.run_tuning(plans)
        status = self.run_compute_calibration(plans) or status
        self.preregister(plans)
        to_launch += self.select_runs_to_launch(self.find_required_runs(plans))
        reporting.announce_runs(plans, to_launch, self.root, planning_seconds)
        return self.run_interim_analyses(to_launch, plans) or status

    def time_plans(self, plans: Sequence[Plan]) -> dict[int, TimingResult | None]:
        """Measure the step times of all arms, by index of the plan."""
        return {i: self.time_arms(plan) for i, plan in enumerate(plans) if plan.experiment}

    def work(self, limits: WorkLimits) -> int:
        """Share the runs with other workers until all have ended or a limit is reached; return the status.

        One of the workers writes the report.

        Raises:
            InvalidConfig: the sweep was started with another plan, or this host is in quarantine.
        """
        started_at = time.monotonic()
        plans = self.plan()
        planning_seconds = time.monotonic() - started_at
        self.validate_plans(plans)
        folder = WorkFolder(self.root, build_work_plan(plans, format_command(self.command_line)))
        folder.join()
        self.register_references(plans)
        self.launcher = PullLauncher(self.settings, self.context, folder, limits, started_at)
        try:
            status = FAILED
            with suppress(FirstFailure):
                status = self.train(plans, [], planning_seconds)
            return self.report_once(plans, folder) or status
        except WorkerStopped as stopped:
            self.progress.close()
            print(escape_unprintable(str(stopped)), flush=True)
            return stopped.status
        except (KeyboardInterrupt, SigtermExit) as interrupt:
            return self.acknowledge_interrupt(interrupt)
        finally:
            folder.remove_state()

    def report_once(self, plans: Sequence[Plan], folder: WorkFolder) -> int:
        """Write the report unless another worker writes it or has done so; return the exit status."""
        results = compute_results_digest(plans, self.root)
        try:
            with hold_lease(folder.path, timeout_seconds=1.0):
                pages = [self.reports / plan.title / "report.json" for plan in plans]
                has_pages = remote.find_mirror(self.root) is not None or all(map(Path.exists, pages))
                reporter = folder.load_reporter(results) if has_pages else None
                if reporter is None:
                    self.write_reports(plans, [], self.time_plans(plans), publish=True)
                    folder.mark_reported(results)
        except Timeout:
            reporter = describe_owner(folder.path)
        if reporter is not None:
            for file in self.reference_files:
                run_references.mark_published(file)
            self.progress.close()
            print(escape_unprintable(f"all runs have ended; the report is by {reporter}"), flush=True)
        return self.find_status(plans)

    def find_status(self, plans: Sequence[Plan]) -> int:
        """Return 1 if a run that the claims need is missing or failed, else 0."""
        required_runs = [
            *self.find_required_runs(plans),
            *(run for plan in plans for run in plan.ready_calibration_runs),
        ]
        unfinished = any(not run_directories.is_done(self.root / run.id) for run in required_runs)
        unknown = any(
            plan.untuned_arms or interim_status.explain_unknown_margin(plan, self.root) for plan in plans
        )
        return FAILED if unfinished or unknown else 0

    def acknowledge_interrupt(self, interrupt: BaseException) -> int:
        """Say that the runs were stopped, and return the exit status."""
        process_control.mark_signal_handled()
        self.progress.close()
        print("interrupted: all runs were stopped; repeat the command to resume", flush=True)
        return INTERRUPTED if isinstance(interrupt, KeyboardInterrupt) else TERMINATED

    def write_report_now(self, plans: list[Plan]) -> int:
        """Write a report of the runs that have finished so far; train and time nothing."""
        if not all(plan.experiment for plan in plans):
            raise InvalidConfig("report --now needs an experiment: add +experiment=NAME")
        if not any(
            run_directories.load_run_result(self.root / run.id) for plan in plans for run in plan.runs
        ):
            raise InvalidConfig(
                "report --now: no run of the experiment has ended yet; see the state of its runs with "
                "`status`"
            )
        run_directories.require_writable_folder(self.reports, "paths.reports")
        self.register_references(plans)
        self.write_reports(plans, [], {}, publish=False, now=True)
        return 0

    def build_plans(self) -> list[Plan]:
        """Compose, check and name all runs.

        Raises:
            InvalidConfig: an arm violates an invariant, among other errors in the config.
        """
        with self.create_checker() as checker:
            plans = plan_command(
                self.overrides, self.composer, checker, self.load_result, get_git_state(), checker.module
            )
            if not self.settings.get("show"):
                invariants_gate.check_invariants(plans, checker, bool(self.settings.get("unchecked")))
        return plans

    def extend_plans(self, plans: Sequence[Plan]) -> list[Plan]:
        """Add the learning rates that tuning has selected so far, and the runs that follow from them."""
        with self.create_checker() as checker:
            return extend_plans(plans, checker, self.load_result, get_git_state())

    def create_checker(self) -> Checker:
        return Checker(self.context, get_trainer_name({"sweep": self.settings}))

    def load_result(self, id_: str) -> RunResult | None:
        return run_directories.load_run_result(self.root / id_)

    def validate_plans(self, plans: Sequence[Plan]) -> None:
        """Check everything that can fail, before anything is written.

        Raises:
            InvalidConfig: a folder is not writable, or a run cannot be trained here.
        """
        run_directories.require_writable_folder(self.root)
        if any(plan.experiment for plan in plans):
            run_directories.require_writable_folder(self.reports, "paths.reports")
            preregistrations.require_writable_log(self.root)
        submission.validate_parents([run for plan in plans for run in plan.runs], self.root)
        planned_runs = [run for plan in plans for run in plan.all_runs]
        trust.declare_names(run.config for run in planned_runs)
        submission.validate_stored_configs(planned_runs, self.root)
        if hasattr(self.launcher, "validate_runs"):  # launchers of third parties may lack it
            self.launcher.validate_runs(self.select_runs_to_launch(planned_runs), self.settings)

    def register_references(self, plans: Sequence[Plan]) -> None:
        """Write references to the runs of all plans, so that `clean` keeps them."""
        self.reference_files = reporting.register_references(
            plans, self.root, self.reports, self.command_line, replaced=self.reference_files
        )

    def run_tuning(self, plans: list[Plan]) -> tuple[list[Plan], int]:
        """Train the learning-rate grid and extend the plans until tuning requests no further runs.

        Returns:
            The extended plans and the launch status.
        """
        status = 0
        launched_ids = set[str]()
        while batch := [
            run
            for run in self.select_runs_to_launch([run for plan in plans for run in plan.tuning_runs])
            if run.id not in launched_ids
        ]:
            launched_ids |= {run.id for run in batch}
            status = self.launch_runs(batch, plans) or status
            plans = self.extend_plans(plans)
            self.validate_plans(plans)
            self.register_references(plans)
        return plans, status

    def run_compute_calibration(self, plans: Sequence[Plan]) -> int:
        """Train the calibration runs of each plan whose baseline has a learning rate; return the status."""
        to_launch = self.select_runs_to_launch([run for plan in plans for run in plan.ready_calibration_runs])
        status = self.launch_runs(to_launch, plans) if to_launch else 0
        reporting.print_compute_calibration(plans, self.root)
        return status

    def preregister(self, plans: Sequence[Plan]) -> None:
        """Preregister each experiment once, before its comparison or, if none started, its report."""
        for i, plan in enumerate(plans):
            if plan.experiment and plan.declared is not None and i not in self.preregistrations:
                self.preregistrations[i] = reporting.preregister_plan(plan, self.root, self.command_line)

    def find_required_runs(self, plans: Sequence[Plan]) -> list[RunConfig]:
        """List the runs that the claims need by now; an arm without a learning rate has none.

        Plans with the most expensive run come first, so that no slot waits for that run alone at the end.
        """
        by_cost = sorted(plans, key=Plan.get_max_flops, reverse=True)
        return [
            run
            for plan in by_cost
            for run in interim_status.find_required_runs(plan, self.root)
            if run.arm not in plan.untuned_arms
        ]

    def run_interim_analyses(self, to_launch: list[RunConfig], plans: Sequence[Plan]) -> int:
        """Train the runs of each interim analysis in turn until no claim needs more seeds; return the status.

        Extends `to_launch` by the runs of the later analyses.
        """
        status = self.launch_runs(to_launch, plans)
        if to_launch:
            reporting.print_interim_results(plans, self.root)
        while not status:
            next_runs = [
                run
                for run in self.find_required_runs(plans)
                if run_directories.load_run_result(self.root / run.id) is None
            ]
            if not next_runs or {run.id for run in next_runs} <= {run.id for run in to_launch}:
                break
            to_launch += next_runs
            status = self.launch_runs(next_runs, plans)
            reporting.print_interim_results(plans, self.root)
        return status

    def select_runs_to_launch(self, candidates: Sequence[RunConfig]) -> list[RunConfig]:
        """Select the candidates without a usable result, under the command's `retry_failed`."""
        return submission.select_runs_to_launch(
            candidates, self.root, bool(self.settings.get("retry_failed"))
        )

    def launch_runs(self, to_launch: Sequence[RunConfig], plans: Sequence[Plan]) -> int:
        """Launch the runs; return 1 if the launcher itself failed.

        Raises:
            FirstFailure: a run failed under `sweep.fail_fast`.
        """
        upload_results(self.root)
        if to_launch:
            count_work = partial(work_left.load_work_left, plans, self.root, self.settings)
            self.progress.start_stage(count_work, [self.root / run.id for run in to_launch])
        status = submission.launch_with_retries(
            to_launch, self.root, _name_experiments(plans), self.launcher, self.settings
        )
        with suppress(OSError):  # without a network, the report has the runs of this machine
            remote.refresh(self.root)
        if self.settings.get("fail_fast") and not all(
            run_directories.is_done(self.root / run.id) for run in to_launch
        ):
            raise FirstFailure
        return status

    def time_arms(self, plan: Plan) -> TimingResult | None:
        """Measure the step times of a finished run per arm, while nothing else runs."""
        if (plan.runs[0].config.get("measure") or {}).get("timing") is False:
            return None
        folders: dict[str, Path] = {}
        for run in plan.runs:
            is_trained = not run.config.get("measurement")
            if is_trained and run.arm not in folders and run_directories.is_done(self.root / run.id):
                folders[run.arm] = self.root / run.id
        kind = plan.runs[0].estimate.device_kind
        times, note = measure_arm_times(folders, kind, self.context, self.progress.print_event)
        if note:
            print(f"step times not measured: {note}", flush=True)
        return times

    def write_reports(
        self,
        plans: Sequence[Plan],
        launched: Sequence[RunConfig],
        times: dict[int, TimingResult | None],
        publish: bool,
        now: bool = False,
    ) -> None:
        """Write a report per experiment; for single runs, print a line per run that no launcher reported.

        Args:
            plans: all plans of the command.
            launched: the runs that the launcher was given.
            times: step times by index of the plan.
            publish: whether the sweep ended by itself, so that loggers get the reports.
            now: whether runs may still be under way.
        """
        self.preregister(plans)  # an interrupt may have come before the preregistration
        drafts = {
            i: reporting.assemble_report(
                plan,
                self.root,
                times.get(i),
                self.command_line,
                self.preregistrations.get(i),
                work_left.load_work_left([plan], self.root, self.settings),
                now,
            )
            for i, plan in enumerate(plans)
            if plan.experiment
        }
        ladders = reporting.combine_reports([*drafts.values()], self.reports)
        published_folders = []
        for i, plan in enumerate(plans):
            if i in drafts:
                reporting.publish_report(drafts[i], self.root, self.reports)
                run_references.mark_published(self.reference_files[i])
                if publish:
                    published_folders.append(self.reports / plan.title)
            else:
                ids = {run.id for run in launched}
                unreported_runs = [
                    run
                    for run in plan.runs
                    if run.id not in ids or not run_directories.load_run_result(self.root / run.id)
                ]
                reporting.print_runs(unreported_runs, self.root)
                if publish:
                    run_references.delete_reference(self.reference_files[i])
        reporting.print_ladders(ladders)
        self.progress.close()  # loggers print to the terminal from other processes
        self.sync_loggers(plans, published_folders, publish)

    def sync_loggers(self, plans: Sequence[Plan], report_folders: Sequence[Path], has_ended: bool) -> None:
        """Log the reports and finished runs that a logger lacks; print the command that uploads the others.

        Runs are logged only if the sweep `has_ended` by itself.
        """
        ids = [run.id for plan in plans for run in plan.all_runs]
        folders = [self.root / id_ for id_ in dict.fromkeys(ids)]
        if has_ended:
            logger_sync.log_missing_runs(folders, self.logger, _name_experiments(plans), self.context)
        for folder in report_folders:
            wandb_report.log_report(folder, self.root, self.logger, self.context)
        if wandb_report.is_wandb_enabled(self.logger) and (
            line := logger_notes.format_pending_uploads(self.root, [folder.name for folder in folders])
        ):
            print(escape_unprintable(line), flush=True)
        logger_notes.clear_offline(self.root)


def _name_experiments(plans: Sequence[Plan]) -> dict[str, str]:
    """Map the id of each run to the name of the first experiment that needs it."""
    return {run.id: plan.experiment.name for plan in plans[::-1] if plan.experiment for run in plan.all_runs}


def _convert_to_dict(node: Any) -> dict[str, Any]:
    content = OmegaConf.to_container(node or OmegaConf.create(), resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _start_fork_server(config: DictConfig, settings: dict[str, Any]) -> fork_server.Context:
    """Start a fork server that has imported the modules which runs import late.

    W&B above all: its import would take a second or two of each run.
    """
    threads = worker_slots.list_worker_slots("cpu", settings.get("slots"))[0].threads
    values = OmegaConf.to_container(config)
    assert isinstance(values, dict)
    own_modules = {
        name.rpartition(".")[0]
        for name in fingerprint.find_target_names(values)
        if name.startswith("attnlab.")
    }
    late_imports = ["pandas"] if own_modules else []  # pyarrow imports it to write curves
    late_imports += (
        logger_notes.WANDB_IMPORTS if wandb_report.is_wandb_enabled(values.get("logger") or {}) else []
    )
    late_imports += ["s3fs"] if is_url(config.paths.runs) else []
    return fork_server.make_warm_context(
        get_trainer_name({"sweep": settings}), threads, [*sorted(own_modules), *late_imports]
    )
