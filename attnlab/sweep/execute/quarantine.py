"""Quarantine of faulty hosts: the rule by which a host gets no further runs of a sweep.

MAX_FAULTS failures in a row count against a host if they came before the first step, or if the run has
succeeded elsewhere since. An arm that fails by itself must not bar every host, so the failures of one arm
among several are not enough, whatever their learning rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnlab.store import run_directories
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.sweep.execute.exit_records import record_lost_run

MAX_FAULTS = 3  # failures in a row that count against the host


@dataclass(frozen=True)
class _Fault:
    """A failure of a run; `digest` is that of the failed result, None if there is none."""

    run: RunConfig
    folder: Path
    digest: str | None
    started_at: float
    before_first_step: bool


class HostFaults:
    """Failures in a row on one host, among the runs of a sweep."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []

    def add_result(self, run: RunConfig, folder: Path, record: RunResult | None, started_at: float) -> None:
        """Note how an attempt at a run ended that began at `started_at` on this host."""
        if record is not None and record.is_done:
            self._faults.clear()
            return
        before_first_step = run_directories.read_progress(folder).get("time", 0.0) < started_at
        digest = record.failure_digest if record is not None else None
        self._faults.append(_Fault(run, folder, digest, started_at, before_first_step))

    def explain_quarantine(self, runs: Mapping[Path, RunConfig]) -> str | None:
        """Explain why the host is to be put in quarantine; None if it is not.

        Args:
            runs: the runs that the launcher was given.
        """
        faults = [
            fault
            for fault in self._faults
            if fault.before_first_step or run_directories.is_done(fault.folder)
        ]
        arms = {fault.run.base_arm for fault in faults}
        if len(faults) < MAX_FAULTS or (len(arms) == 1 and len({run.base_arm for run in runs.values()}) > 1):
            return None
        record = run_directories.load_run_result(faults[-1].folder)
        last = record.failure.message if record is not None and record.failure else "see log.txt of the runs"
        return f"{len(faults)} runs in a row failed on this host, the last with: {last}"

    def record_lost_runs(self, host: str) -> None:
        """Record the failures as those of the host, so that the runs are retried elsewhere."""
        for fault in self._faults:
            record = run_directories.load_run_result(fault.folder)
            if record is not None and record.failure is not None and record.failure_digest == fault.digest:
                message = f"{host} is in quarantine; the run failed there: {record.failure.message}"
                record_lost_run(fault.folder, "killed", message, fault.started_at)
