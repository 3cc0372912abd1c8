"""The launcher of `attnlab work`: a pool that shares the runs of a sweep with other workers, on any host.

It takes the next run without a result whose lease is free. When all remaining runs are held elsewhere, it
waits: the run of a dead worker becomes free, and is continued from its checkpoint. The leases arbitrate; all
that is read here beforehand only avoids collisions.
"""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnlab.store import lease, remote, run_directories
from attnlab.store.atomic_files import read_json_object
from attnlab.store.config_groups import WorkLimits
from attnlab.store.process_identity import get_process_state
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.sweep.execute import repair, worker_slots
from attnlab.sweep.execute.pool import ActiveRun, Pool
from attnlab.sweep.execute.process_control import NOT_TAKEN
from attnlab.sweep.execute.progress import Progress, describe_ending, format_duration, watch_runs
from attnlab.sweep.execute.quarantine import HostFaults
from attnlab.sweep.execute.work_folder import WorkFolder
from attnlab.sweep.execute.worker import NO_WAIT
from attnlab.sweep.plan.fork_server import Context

SCAN_SECONDS = 0.2  # between two searches for a free run
BLOCK_SIZE = 32  # runs, in the sweep's order, among which each worker has an order of its own


class WorkerStopped(BaseException):
    """Raised when this worker takes no further runs; like an interrupt, it passes through launchers.

    Attributes:
        status: exit status of the command.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class PullLauncher(Pool):
    """Pool over this machine's slots that takes runs whose lease is free, within limits."""

    worker_flags = (NO_WAIT,)

    def __init__(
        self,
        settings: Mapping[str, Any],
        context: Context | None,
        work_folder: WorkFolder,
        limits: WorkLimits,
        started_at: float,
    ) -> None:
        """Create a worker; `started_at` is the monotonic time at which its command began."""
        super().__init__(settings, Progress(), context)
        self.retry_failed = bool(settings.get("retry_failed"))
        self.work_folder = work_folder
        self.limits = limits
        self.started_at = started_at
        self.n_taken = 0
        self._idle_since = time.monotonic()
        self._next_scan = self._next_heartbeat = 0.0
        self._reported_runs: tuple[str, ...] = ()
        self._specs: dict[Path, RunConfig] = {}
        self._owners: dict[Path, tuple[str, float]] = {}  # lease held elsewhere, and when it last changed
        self._faults = HostFaults()
        self._random = random.Random()

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        """Train the runs in `folders` that no other worker trains; return when all of them have ended.

        Raises:
            WorkerStopped: a limit is reached, or this host is put in quarantine.
        """
        blocks = [[*folders[i : i + BLOCK_SIZE]] for i in range(0, len(folders), BLOCK_SIZE)]
        for block in blocks:
            self._random.shuffle(block)
        self._specs = {folder: run_directories.load_run_config(folder) for folder in folders}
        with watch_runs(folders) as self.progress:
            self.run([folder for block in blocks for folder in block])

    def select_next(self, pending: list[Path], running: Sequence[ActiveRun]) -> Path | None:
        """Return the first free run; remove those that have ended elsewhere."""
        now = time.monotonic()
        limit = self.limits.max_runs
        if now < self._next_scan or (limit is not None and self.n_taken + len(running) >= limit):
            return None
        with suppress(OSError):  # the next search sees what this one missed
            remote.refresh(self.work_folder.root, remote.REFRESH_SECONDS)
        for folder in [*pending]:
            record = run_directories.load_run_result(folder)
            if self._has_ended(folder, record):
                pending.remove(folder)
                assert record is not None
                note = f"{describe_ending(record)}  (elsewhere)" if record.is_done else None
                self.progress.finish_run(folder, record, note)
                self._check_host()
            elif not self._is_held(folder):
                if run_directories.load_run_config(folder) != self._specs[folder]:
                    # another worker's request may name another failure to retry
                    run_directories.write_run_config(folder.parent, self._specs[folder])
                return folder
        self._next_scan = now + SCAN_SECONDS
        return None

    def observe(self, running: Sequence[ActiveRun]) -> None:
        """Show the running runs, write the heartbeat and check the limits.

        Raises:
            WorkerStopped: a limit is reached.
        """
        super().observe(running)
        now = time.monotonic()
        ids = tuple(run.folder.name for run in running)
        if ids != self._reported_runs or now >= self._next_heartbeat:
            device = next(iter(self._specs.values())).estimate.device_kind
            slots = worker_slots.list_configured_slots(device, self.settings)
            self.work_folder.write_state(device, len(slots), ids)
            self._reported_runs, self._next_heartbeat = ids, now + lease.HEARTBEAT_SECONDS
        if running:
            self._idle_since = now
        limits = self.limits
        if limits.seconds is not None and now - self.started_at >= limits.seconds:
            self._stop(f"--for {format_duration(limits.seconds)} is over")
        if limits.max_runs is not None and self.n_taken >= limits.max_runs and not running:
            self._stop(f"--max-runs {limits.max_runs} is reached")
        if limits.idle is not None and now - self._idle_since >= limits.idle:
            self._stop(f"no run was free for {format_duration(limits.idle)} (--idle)")

    def end_run(self, run: ActiveRun, pending: list[Path]) -> bool:
        """Report a run whose worker has exited; one that another process holds is pending again."""
        record = run_directories.load_run_result(run.folder)
        if run.exit_code == NOT_TAKEN or (record is None and self._is_held(run.folder)):
            pending.append(run.folder)
            return True
        self.n_taken += 1
        is_successful = super().end_run(run, pending)
        self._faults.add_result(self._specs[run.folder], run.folder, record, run.started_at)
        self._check_host()
        return is_successful

    def _has_ended(self, folder: Path, record: RunResult | None) -> bool:
        spec = self._specs[folder]
        if record is None:
            return False
        if not record.is_done:
            return record.failure_digest != spec.use.retried_failure
        return not repair.needs_repair(spec, record, folder.parent, self.retry_failed)

    def _is_held(self, folder: Path) -> bool:
        """Whether another process seems to hold the run: it runs here, or its heartbeat changes."""
        owner = read_json_object(folder / "owner.json")
        if not owner:
            mirror = remote.find_mirror(folder.parent)
            return mirror is not None and mirror.is_held(folder, lease.STALE_SECONDS)
        if (state := get_process_state(owner.get("process"))) != "unknown":
            return state == "running"
        text, changed_at = str(owner), time.monotonic()
        if (known := self._owners.get(folder)) and known[0] == text:
            changed_at = known[1]
        self._owners[folder] = text, changed_at
        return time.monotonic() - changed_at < lease.STALE_SECONDS

    def _stop(self, reason: str) -> None:
        raise WorkerStopped(
            f"stopped: {reason}; this worker took {self.n_taken} runs; repeat the command to go on"
        )

    def _check_host(self) -> None:
        """Put this host in quarantine if its failures require it.

        Raises:
            WorkerStopped: the host is in quarantine now.
        """
        reason = self._faults.explain_quarantine(self._specs)
        if reason is None:
            return
        self.work_folder.quarantine_host(reason)
        self._faults.record_lost_runs(lease.HOST)
        raise WorkerStopped(
            f"{lease.HOST} is in quarantine for this sweep: {reason}: repair the host, then remove "
            f"{remote.describe_path(self.work_folder.quarantine_file, self.work_folder.root)}",
            status=1,
        )
