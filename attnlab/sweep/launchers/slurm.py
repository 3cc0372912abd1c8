"""The launcher `slurm`: runs as tasks of a job array, submitted with submitit.

Each task starts one worker; a task that is preempted or short of time saves a checkpoint and is requeued.
Nodes load the pickles that submitit writes, so these lie in a folder of the user's own, outside paths.runs,
which others may fill. This module reads no pickle: how a task ended is in its log.
Surprising: job states come from squeue alone. Accounting (sacct) is missing on many clusters, and submitit
then waits forever for a job that died.
"""

import io
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint, run_directories
from attnlab.store.run_schema import Status
from attnlab.sweep.execute.process_control import GRACE_SECONDS, collect_signals
from attnlab.sweep.execute.progress import Progress, watch_runs
from attnlab.sweep.launchers.attempt import (
    Attempt,
    count_gpus_per_run,
    create_attempts,
    import_library,
    list_started_runs,
    record_lost_attempt,
)
from attnlab.sweep.launchers.node_quarantine import NodeQuarantine

ENDED_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
)  # fmt: skip
_STOPPED_STATES = (
    "CANCELLED",
    "COMPLETED",
    "PREEMPTED",
)  # unfinished, not failed: the same command resumes the run
_RUN_STATUSES: dict[str, Status] = {
    "TIMEOUT": "timed_out",
    "DEADLINE": "timed_out",
    "OUT_OF_MEMORY": "host_out_of_memory",
}
_STUCK_REASONS = (
    "BadConstraints",
    "JobHoldMaxRequeue",
    "launch failed requeued held",
    "launch_failed_requeued_held",
)
_MISSES_UNTIL_GONE = 3  # queries without the job before it counts as gone: its result may be arriving
_MAX_ARRAY_TASKS = 1000  # SLURM's default limit is 1001
_SBATCH_OPTIONS = ("partition", "account", "qos", "constraint", "mem", "cpus_per_task")


class SlurmTask:
    """Callable that submitit pickles and runs on the node; submitit calls `checkpoint` before a requeue."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def __call__(self) -> int:
        return self.attempt()

    def checkpoint(self) -> Any:
        """Stop the worker, which saves a checkpoint for the next attempt."""
        from submitit.core.utils import DelayedSubmission

        self.attempt.stop()
        return DelayedSubmission(SlurmTask(replace(self.attempt)))


@dataclass
class SlurmJob:
    id: str
    folder: Path
    paths: Any  # submitit.JobPaths of its logs and results
    queue_misses: int = 0


def launch_on_slurm(
    folders: Sequence[Path],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    quarantine: NodeQuarantine,
) -> None:
    """Train the stored runs on a SLURM cluster.

    Args:
        folders: run directories, on a disk that all nodes share.
        settings: the config group `sweep`.
        options: the fields of SlurmLauncherConf.
        quarantine: nodes that get no run.

    Raises:
        InvalidConfig: a SLURM command or submitit is missing, or sbatch rejects the job.
    """
    if quarantine.is_exhausted:
        return
    executor = create_executor(folders, settings, options, quarantine)
    jobs: list[SlurmJob] = []
    with watch_runs(folders) as progress:
        try:
            submit_arrays(executor, folders, settings, options, jobs)
            progress.print_line(
                f"SLURM job {', '.join(list_array_ids(job.id for job in jobs))}; logs in {executor.folder}"
            )
            watch_jobs(
                list(jobs), progress, bool(settings.get("fail_fast")), options, time.time(), quarantine
            )
        finally:
            cancel_jobs(jobs)


def create_executor(
    folders: Sequence[Path],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    quarantine: NodeQuarantine,
) -> Any:
    """Create the submitit executor that submits the stored runs.

    Raises:
        InvalidConfig: a SLURM command or submitit is missing, or others can write into the folder.
    """
    submitit = import_library("submitit", "slurm")
    for command in ("sbatch", "squeue", "scancel", "srun"):
        if shutil.which(command) is None:
            raise InvalidConfig(f"hydra/launcher=slurm: {command} not found: run the command on a login node")
    root = _make_submission_folder(folders[0].parent, options["folder"])
    executor = submitit.SlurmExecutor(folder=root, max_num_timeout=options["requeues"])
    executor.update_parameters(**_build_sbatch_parameters(folders, settings, options))
    if quarantine.nodes:
        extra = executor.parameters["additional_parameters"]
        excluded = _format_excluded(options, quarantine)
        executor.update_parameters(additional_parameters={**extra, "exclude": excluded})
    return executor


def _make_submission_folder(store: Path, requested: str | None) -> Path:
    """Create the folder of scripts, logs and pickles, by default one per store in the user's state folder.

    Raises:
        InvalidConfig: it lies in the store, others can write into it, or it cannot be created.
    """
    state_home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    store = store.resolve()
    own_folder = state_home / "attnlab" / "slurm" / fingerprint.compute_digest([str(store)])
    folder = Path(requested or own_folder).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise InvalidConfig(f"hydra.launcher.folder={folder} cannot be created ({error.strerror})") from error
    is_shared = status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_shared or folder.resolve().is_relative_to(store):
        raise InvalidConfig(
            f"hydra.launcher.folder={folder}: nodes execute files in it: choose a folder outside paths.runs "
            "that only you can write to (chmod go-w)"
        )
    return folder


def _build_sbatch_parameters(
    folders: Sequence[Path], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    max_parallel = min(options["array_parallelism"], settings.get("slots") or options["array_parallelism"])
    sbatch_options = {key: options[key] for key in _SBATCH_OPTIONS if options[key] is not None}
    if devices := count_gpus_per_run(folders, options["gpus_per_node"], "hydra.launcher.gpus_per_node"):
        sbatch_options["gpus_per_node"] = int(devices)
    return {
        "job_name": "attnlab", "time": options["time"], "array_parallelism": max_parallel, "wckey": None,
        "signal_delay_s": options["signal_delay"], "setup": options["setup"] or None,
        "srun_args": [f"--cpus-per-task={options['cpus_per_task']}"],  # srun does not inherit it from sbatch
        "additional_parameters": {**sbatch_options, "requeue": True, **(options["sbatch"] or {})},
    }  # fmt: skip


def _format_excluded(options: Mapping[str, Any], quarantine: NodeQuarantine) -> str:
    """Return the nodes to exclude, the user's own included, as sbatch and scontrol take them."""
    own = (options["sbatch"] or {}).get("exclude")
    return ",".join([*([str(own)] if own else []), *sorted(quarantine.nodes)])


def exclude_nodes(
    jobs: Sequence[SlurmJob], options: Mapping[str, Any], quarantine: NodeQuarantine, progress: Progress
) -> None:
    """Keep the jobs that wait in the queue from the nodes in quarantine; note if no other node is left."""
    command = ["sinfo", "--noheader", "--Node", "--format=%N"]
    command += [f"--partition={options['partition']}"] if options["partition"] else []
    nodes = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if nodes and quarantine.nodes.issuperset(nodes):
        quarantine.stop_launching(progress)
        return
    excluded = _format_excluded(options, quarantine)
    states = query_queue(list_array_ids(job.id for job in jobs)) if jobs else {}
    for id, (state, _) in (states or {}).items():
        if state == "PENDING":
            update = ["scontrol", "update", f"JobId={id}", f"ExcNodeList={excluded}"]
            subprocess.run(update, check=False, capture_output=True)


def submit_arrays(
    executor: Any,
    folders: Sequence[Path],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    jobs: list[SlurmJob],
) -> None:
    """Submit a task per run and add each to `jobs` as soon as it is in the queue."""
    attempts = create_attempts(folders, settings, threads=options["cpus_per_task"])
    for start in range(0, len(folders), _MAX_ARRAY_TASKS):
        tasks = [SlurmTask(attempt) for attempt in attempts[start : start + _MAX_ARRAY_TASKS]]
        array = zip(folders[start:], submit_tasks(executor, tasks), strict=False)
        jobs += [SlurmJob(job.job_id, folder, job.paths) for folder, job in array]


def submit_tasks(executor: Any, tasks: Sequence[Any]) -> list[Any]:
    """Submit one job with these tasks, and return a submitit.Job per task."""
    try:
        with redirect_stderr(io.StringIO()), executor.batch():  # the exception has the output of sbatch
            return [executor.submit(task) for task in tasks]
    except Exception as error:  # submitit raises various exceptions if sbatch fails
        raise InvalidConfig(f"sbatch rejected the job: {' '.join(str(error).split())}") from error


def watch_jobs(
    running: list[SlurmJob],
    progress: Progress,
    fail_fast: bool,
    options: Mapping[str, Any],
    started_at: float,
    quarantine: NodeQuarantine,
) -> None:
    """Wait until every run has ended, or no node is left outside the quarantine.

    Run directories are read every half second, SLURM is queried every `hydra.launcher.poll` seconds.
    """
    folders = [job.folder for job in running]
    queried_at = 0.0
    while running:
        time.sleep(0.5)
        progress.refresh(list_started_runs([job.folder for job in running], started_at))
        states = None
        if time.monotonic() - queried_at >= options["poll"]:
            states = query_queue(list_array_ids(job.id for job in running))
            queried_at = time.monotonic()
        for job in list(running):
            if run_directories.load_run_result(job.folder) is None and (
                states is None or not _has_left_queue(job, states, started_at, progress)
            ):
                continue
            running.remove(job)
            record = run_directories.load_run_result(job.folder)
            progress.finish_run(job.folder, record)
            if quarantine.check_node(job.folder, folders, progress):
                exclude_nodes(running, options, quarantine, progress)
            if fail_fast and (record is None or not record.is_done):
                return
        if quarantine.is_exhausted:
            return


def _has_left_queue(
    job: SlurmJob, states: Mapping[str, tuple[str, str]], started_at: float, progress: Progress
) -> bool:
    """Return whether a job without a result has left the queue; record its failure unless it was stopped."""
    state, reason = states.get(job.id, ("", ""))
    is_stuck = state == "PENDING" and reason in _STUCK_REASONS
    if state and state not in ENDED_STATES and not is_stuck:
        job.queue_misses = 0
        return False
    job.queue_misses += 1
    if job.queue_misses < _MISSES_UNTIL_GONE and not is_stuck:
        return False
    last_error = _read_last_error(job)
    if state in _STOPPED_STATES and not last_error:
        return True
    status: Status = "timed_out" if "timed-out" in last_error else _RUN_STATUSES.get(state, "killed")
    ending = f"is blocked: {reason}" if is_stuck else f"ended as {state}" if state else "left the queue"
    message = f"SLURM job {job.id} {ending} without a run result" + (f": {last_error}" if last_error else "")
    if is_stuck:
        subprocess.run(["scancel", job.id], check=False, capture_output=True)
    record_lost_attempt(job.folder, status, message, started_at, progress)
    return True


def _read_last_error(job: SlurmJob) -> str:
    """Read the exception that ended an attempt from the end of its log; empty if there is none."""
    with suppress(OSError):
        log = job.paths.stderr.read_text(errors="replace")
        _, traceback, text = log.rpartition("Traceback (most recent call last):\n")
        error = next((line for line in text.splitlines() if line[:1].strip()), "")
        return error if traceback else ""
    return ""


def query_queue(ids: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    """Map each job that squeue still lists to its state and reason; None if squeue fails."""
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        "--format=%i|%T|%r",
        f"--jobs={','.join(ids)}",
    ]
    with suppress(OSError, subprocess.TimeoutExpired):
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if result.returncode == 0:
            lines = [line.split("|", 2) for line in result.stdout.splitlines() if line.count("|") >= 2]
            return {job: (state, reason) for job, state, reason in lines}
        if "Invalid job id" in result.stderr:
            return {}
    return None


def list_array_ids(jobs: Iterable[str]) -> list[str]:
    """Return the ids of the arrays that the jobs belong to; a job of one run is its own array."""
    return sorted({job.partition("_")[0] for job in jobs})


def cancel_jobs(jobs: Sequence[SlurmJob]) -> None:
    """Cancel the jobs without a result and wait while they save checkpoints, until a further interrupt."""
    arrays = list_array_ids(job.id for job in jobs if run_directories.load_run_result(job.folder) is None)
    states = query_queue(arrays) if arrays else {}
    if states is not None and all(state in ENDED_STATES for state, _ in states.values()):
        return
    with collect_signals() as signals:
        subprocess.run(  # in a session that gets no Ctrl-C
            ["scancel", *arrays], check=False, capture_output=True, start_new_session=True
        )
        deadline = time.monotonic() + GRACE_SECONDS + 10
        while time.monotonic() < deadline and not signals:
            states = query_queue(arrays)
            if states is not None and all(state in ENDED_STATES for state, _ in states.values()):
                return
            time.sleep(0.5)
