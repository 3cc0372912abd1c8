"""`hydra.launcher.wait=false` on SLURM: the command submits the runs of its stage and one more job, and ends.

Once these runs have ended, that job repeats the command, which submits the next stage or writes the report.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.sweep.execute import chain
from attnlab.sweep.execute.progress import watch_runs
from attnlab.sweep.execute.submission import Submitted
from attnlab.sweep.launchers.attempt import collect_forwarded_variables, stop_child
from attnlab.sweep.launchers.node_quarantine import EXCLUDED_VARIABLE, NodeQuarantine
from attnlab.sweep.launchers.repeated_command import (
    RepeatedCommand,
    format_status_command,
    repeat_this_command,
)
from attnlab.sweep.launchers.slurm import (
    ENDED_STATES,
    SlurmJob,
    cancel_jobs,
    create_executor,
    exclude_nodes,
    list_array_ids,
    query_queue,
    submit_arrays,
    submit_tasks,
    watch_jobs,
)


@dataclass
class SlurmContinuation:
    """Callable that repeats the command once the jobs of a stage have ended.

    It first records the runs that SLURM lost.
    """

    jobs: list[SlurmJob]
    command: RepeatedCommand
    options: dict[str, Any]
    submitted_at: float
    excluded: str = ""  # nodes in quarantine
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    def __call__(self) -> int:
        os.environ[EXCLUDED_VARIABLE] = self.excluded
        quarantine = NodeQuarantine()
        in_order = sorted(self.jobs, key=lambda job: _get_end_time(job.folder))
        with watch_runs([job.folder for job in self.jobs]) as progress:
            watch_jobs(in_order, progress, False, self.options, self.submitted_at, quarantine)
        self.command.environment[EXCLUDED_VARIABLE] = ",".join(sorted(quarantine.nodes))
        self._process = self.command.start()
        while (status := self._process.poll()) is None:
            time.sleep(0.5)
        return status

    def checkpoint(self) -> Any:
        """Stop the command; the requeued job repeats it."""
        from submitit.core.utils import DelayedSubmission

        if self._process is not None:
            stop_child(self._process.pid)
        return DelayedSubmission(replace(self))


def _get_end_time(folder: Path) -> float:
    try:
        return (folder / "run.json").stat().st_mtime
    except OSError:  # lost
        return float("inf")


def submit_to_slurm(
    folders: Sequence[Path],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    quarantine: NodeQuarantine,
) -> None:
    """Submit the runs that are in no queue, and the job that repeats the command after all of them.

    Nothing is submitted if no node is left outside the quarantine.

    Args:
        folders: run directories, on a disk that all nodes share.
        settings: the config group `sweep`.
        options: the fields of SlurmLauncherConf.
        quarantine: nodes that get no run.

    Raises:
        InvalidConfig: SLURM or submitit is missing, the queue is unknown, or sbatch rejects a job.
        Submitted: otherwise.
    """
    if quarantine.nodes and not quarantine.is_exhausted:
        with watch_runs(folders) as progress:
            exclude_nodes([], options, quarantine, progress)
    if quarantine.is_exhausted:
        return
    executor = create_executor(folders, settings, options, quarantine)
    store = folders[0].parent
    chain.get_chain_folder(store).mkdir(parents=True, exist_ok=True)
    with FileLock(chain.get_chain_folder(store) / ".lock"):
        _submit_chain(executor, folders, settings, options, ",".join(sorted(quarantine.nodes)))


def _submit_chain(
    executor: Any,
    folders: Sequence[Path],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    excluded: str,
) -> None:
    store = folders[0].parent
    latest = chain.load_chain(store)
    is_continued = chain.load_continued_chain(store) is not None
    continuation = latest.continuation if latest is not None and not is_continued else None
    jobs_by_run = chain.list_jobs(store, [folder.name for folder in folders])
    queued = _select_queued(
        [*filter(None, [continuation]), *(id for ids in jobs_by_run.values() for id in ids)]
    )
    waiting = {run: queued.intersection(ids) for run, ids in jobs_by_run.items()}
    waiting_ids = {id for ids in waiting.values() for id in ids}
    n_waiting = sum(map(bool, waiting.values()))
    if continuation is not None and continuation in queued:
        _leave(f"nothing submitted: {n_waiting} runs are in the queue", waiting_ids, continuation, executor)
    new_folders = [folder for folder in folders if not waiting[folder.name]]
    jobs: list[SlurmJob] = []
    submitted_at = time.time()
    try:
        submit_arrays(executor, new_folders, settings, options, jobs)
        splits = {folder.name: run_directories.read_batch_split(folder) for folder in new_folders}
        current = chain.start_or_continue_chain(store).add_jobs(
            {job.folder.name: job.id for job in jobs}, splits
        )
        chain.write_chain(store, current)
        ids = [*waiting_ids, *(job.id for job in jobs)]
        executor.update_parameters(dependency=f"afterany:{':'.join(list_array_ids(ids))}")
        is_cpu = run_directories.load_run_config(folders[0]).estimate.device_kind == "cpu"
        variables = {**collect_forwarded_variables(), chain.CHAIN_VARIABLE: current.id}
        command = repeat_this_command(variables, is_cpu)
        task = SlurmContinuation(jobs, command, dict(options), submitted_at, excluded)
        continuation = str(submit_tasks(executor, [task])[0].job_id)
        chain.write_chain(store, current.model_copy(update={"continuation": continuation}))
    except BaseException:
        cancel_jobs(jobs)
        raise
    note = f"; {n_waiting} more are in the queue" if n_waiting else ""
    _leave(f"submitted {len(jobs)} runs{note}", ids, continuation, executor)


def _select_queued(ids: Sequence[str]) -> set[str]:
    """Select the jobs that are in the queue.

    Raises:
        InvalidConfig: squeue fails.
    """
    states = query_queue(sorted(ids)) if ids else {}
    if states is None:
        raise InvalidConfig("squeue failed, so the queue is unknown: repeat the command once SLURM answers")
    return {id for id, (state, _) in states.items() if state not in ENDED_STATES}


def _leave(text: str, ids: Iterable[str], continuation: str, executor: Any) -> None:
    arrays = list_array_ids(ids)
    raise Submitted(
        f"{text} (SLURM job {', '.join(arrays)}); after them, job {continuation} repeats this command\n"
        f"logs: {executor.folder}\nstatus: {format_status_command()}\n"
        f"stop: scancel {' '.join([continuation, *arrays])}"
    )
