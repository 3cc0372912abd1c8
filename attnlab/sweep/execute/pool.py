"""The local launcher, which keeps every worker slot busy until no run is left.

Outcomes are read from disk; this process records a failure if the worker could not.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig, describe_disk_full
from attnlab.store import run_directories
from attnlab.store.lease import TAKEN_OVER_EXIT_CODE, describe_owner
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.exit_records import record_exit, record_lost_run, record_timeout
from attnlab.sweep.execute.process_control import NOT_RECORDED, TERMINATED, RunTimer
from attnlab.sweep.execute.progress import Progress, watch_runs
from attnlab.sweep.execute.ranks import count_devices
from attnlab.sweep.execute.worker_slots import ChildProcess, WorkerSlot
from attnlab.sweep.plan.fork_server import Context, make_warm_context
from attnlab.sweep.plan.trainer import get_trainer_name
from attnlab.sweep.slow_notice import notify_if_slow

WORKER = "attnlab.sweep.execute.worker"


@dataclass
class ActiveRun:
    """A run of the pool, with the slots that it takes."""

    folder: Path
    slots: list[WorkerSlot]
    worker: ChildProcess | None  # None if the machine could not start it
    started_at: float
    oom_kills_before: int
    timer: RunTimer = field(default_factory=RunTimer)

    @property
    def exit_code(self) -> int | None:
        """Exit status of its worker process; None if it runs, or did not start."""
        return self.worker.poll_exit_code() if self.worker is not None else None


class Pool:
    """Worker pool over this machine's slots; interrupts end all workers and are raised again."""

    worker_flags: tuple[str, ...] = ()

    def __init__(self, settings: Mapping[str, Any], progress: Progress, context: Context | None) -> None:
        self.max_time: float | None = settings.get("max_time")
        self.fail_fast = bool(settings.get("fail_fast"))
        self.settings = settings
        self.progress = progress
        self.context = context

    def run(self, folders: Sequence[Path]) -> None:
        """Train the stored runs; return when all have ended, or after the first failure under `fail_fast`."""
        if not folders:
            return
        specs = [run_directories.load_run_config(folder) for folder in folders]
        free_slots = worker_slots.list_configured_slots(specs[0].estimate.device_kind, self.settings)[::-1]
        slots_needed = {
            folder: _count_required_slots(spec.config, free_slots)
            for folder, spec in zip(folders, specs, strict=True)
        }
        pending = list(folders)
        running = list[ActiveRun]()
        try:
            while pending or running:
                while (
                    free_slots
                    and (folder := self.select_next(pending, running)) is not None
                    and len(free_slots) >= slots_needed[folder]
                ):
                    pending.remove(folder)
                    run_slots = [free_slots.pop() for _ in range(slots_needed[folder])]
                    running.append(self._start_run(folder, run_slots))
                self.observe(running)
                time.sleep(0.01)
                for run in [run for run in running if self._poll_ended(run)]:
                    running.remove(run)
                    free_slots += run.slots
                    if not self.end_run(run, pending) and self.fail_fast:
                        return
        finally:
            with notify_if_slow("the runs save their checkpoints; Ctrl-C ends them at once"):
                worker_slots.stop_children([run.worker for run in running if run.worker is not None])

    def select_next(self, pending: list[Path], running: Sequence[ActiveRun]) -> Path | None:
        """Return the next run to start; None if there is none now."""
        return pending[0] if pending else None

    def observe(self, running: Sequence[ActiveRun]) -> None:
        """Show the running runs; called about a hundred times a second."""
        self.progress.refresh([(run.folder, run.slots[0].number) for run in running])

    def end_run(self, run: ActiveRun, pending: list[Path]) -> bool:
        """Report a run whose worker has exited; return False if it failed."""
        record = run_directories.load_run_result(run.folder)
        if run.exit_code == NOT_RECORDED:  # for the reason that the worker printed last
            self.progress.print_line("".join(run_directories.read_log_tail(run.folder, 1)))
        is_taken_over = record is None and run.exit_code == TAKEN_OVER_EXIT_CODE
        note = f"taken over by {describe_owner(run.folder)}" if is_taken_over else None
        self.progress.finish_run(run.folder, record, note)
        return is_taken_over or (record is not None and record.is_done)

    def _start_run(self, folder: Path, slots: list[WorkerSlot]) -> ActiveRun:
        """Start a run in its slots; if its worker process cannot be started, record the run as killed."""
        slot = worker_slots.merge_slots(slots)
        oom_kills = worker_slots.count_oom_kills()
        started_at = time.time()
        try:
            arguments = [*self.worker_flags, str(folder)]
            worker = worker_slots.start_child(slot, self.context, WORKER, arguments, folder / "log.txt")
            return ActiveRun(folder, slots, worker, started_at, oom_kills)
        except (OSError, EOFError) as error:  # the fork server is gone, or the host is out of memory
            if describe_disk_full(error):
                raise
            reason = str(error) or "the fork server exited"
            record_lost_run(folder, "killed", f"the worker process did not start: {reason}", started_at)
            return ActiveRun(folder, slots, None, started_at, oom_kills)

    def _poll_ended(self, run: ActiveRun) -> bool:
        if run.worker is None:
            return True
        code = run.worker.poll_exit_code()
        if code is None:
            if self.max_time is None or run.timer.count_seconds() < self.max_time:
                return False
            worker_slots.stop_children([run.worker], grace_seconds=3.0)
            record_timeout(run.folder, self.max_time, run.started_at)
        else:
            if code == TERMINATED:  # the pool stops no worker that it waits for: another process did
                code = -signal.SIGTERM
            record_exit(
                run.folder, code, worker_slots.count_oom_kills() > run.oom_kills_before, run.started_at
            )
        return True


def validate_resources(runs: Sequence[RunConfig], settings: Mapping[str, Any]) -> None:
    """Check that this machine has the slots that each run needs."""
    kinds = {run.estimate.device_kind for run in runs}
    slots_by_kind = {kind: worker_slots.list_configured_slots(kind, settings) for kind in kinds}
    for run in runs:
        _count_required_slots(run.config, slots_by_kind[run.estimate.device_kind])


def _count_required_slots(config: Mapping[str, Any], free_slots: Sequence[WorkerSlot]) -> int:
    """Count the slots that a run takes: one per device, or all of them if it must run alone.

    Raises:
        InvalidConfig: there are fewer devices, or slots of a multi-device run would share a GPU.
    """
    if (config.get("measure") or {}).get("exclusive"):
        return len(free_slots)
    n_required = count_devices(config)
    gpus = [slot.gpu for slot in free_slots]
    n_devices = len(gpus) if gpus[0] is None else len(set(gpus))
    if n_required > 1 and n_required > min(n_devices, len(gpus)):
        raise InvalidConfig(
            f"trainer.devices={n_required} exceeds the {n_devices} available devices: reduce it, "
            "or increase sweep.slots"
        )
    if n_required > 1 and n_devices < len(gpus):
        raise InvalidConfig(
            f"trainer.devices={n_required} with several slots on one GPU: use sweep.slots_per_gpu=1"
        )
    return n_required


def launch_locally(folders: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """Train the stored runs on this machine and print their progress."""
    threads = worker_slots.list_worker_slots("cpu", settings.get("slots"))[0].threads
    with watch_runs(folders) as progress:
        Pool(settings, progress, make_warm_context(get_trainer_name({"sweep": settings}), threads)).run(
            folders
        )
