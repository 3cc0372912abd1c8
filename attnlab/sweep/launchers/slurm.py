"""The launcher `slurm`: runs as tasks of a job array, submitted with submitit.

Each task starts the one worker; a task that is pre-empted or short of time saves a checkpoint and is
requeued. Surprising: SLURM is asked with squeue alone. Accounting (sacct) is missing on many clusters, and
submitit then waits for ever for a job that died.
"""

import io
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.schema import Status
from attnlab.sweep.execute.process import GRACE
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.launchers.attempt import Attempt, attempts, gpus, library, lost, started

_OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
)  # fmt: skip
_ASKED_TO_STOP = ("CANCELLED", "COMPLETED", "PREEMPTED")  # unfinished, not failed: the same command goes on
_STATUS: dict[str, Status] = {
    "TIMEOUT": "timed_out",
    "DEADLINE": "timed_out",
    "OUT_OF_MEMORY": "host_out_of_memory",
}
_STUCK = ("BadConstraints", "JobHoldMaxRequeue", "launch failed requeued held", "launch_failed_requeued_held")
_SURE = 3  # looks at a queue without the job before it is believed: its record may be on its way
_ARRAY = 1000  # tasks: SLURM's own default allows 1001
_BATCH = ("partition", "account", "qos", "constraint", "mem", "cpus_per_task")


class Task:
    """What submitit pickles, calls on the node, and asks for a checkpoint before it requeues the job."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def __call__(self) -> int:
        return self.attempt()

    def checkpoint(self) -> Any:
        """The worker is stopped, which saves a checkpoint; the next attempt finds it."""
        from submitit.core.utils import DelayedSubmission

        self.attempt.stop()
        return DelayedSubmission(Task(replace(self.attempt)))


@dataclass
class _Job:
    id: str
    folder: Path
    paths: Any  # submitit's: where its logs and results are
    missed: int = 0


def launch(folders: Sequence[Path], settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Train the stored runs on a cluster. `options`: the fields of SlurmLauncherConf."""
    submitit = library("submitit", "slurm")
    for command in ("sbatch", "squeue", "scancel", "srun"):
        if shutil.which(command) is None:
            raise Refused(
                f"hydra/launcher=slurm: there is no {command} here; give the command on a login node"
            )
    root = Path(options["folder"] or folders[0].parent / "slurm").absolute()
    executor = submitit.SlurmExecutor(folder=root, max_num_timeout=options["requeues"])
    executor.update_parameters(**_parameters(folders, settings, options))
    work = attempts(folders, settings, threads=options["cpus_per_task"])
    jobs: list[_Job] = []
    with Progress.of(folders) as progress:
        try:
            for start in range(0, len(folders), _ARRAY):
                jobs += _submit(executor, folders[start : start + _ARRAY], work[start : start + _ARRAY])
            progress.say(f"SLURM job {', '.join(sorted(_arrays(jobs)))}; logs in {root}")
            _watch(list(jobs), progress, bool(settings.get("fail_fast")), float(options["poll"]))
        finally:
            _cancel(jobs)


def _parameters(
    folders: Sequence[Path], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    most = min(options["array_parallelism"], settings.get("slots") or options["array_parallelism"])
    batch = {key: options[key] for key in _BATCH if options[key] is not None}
    if devices := gpus(folders, options["gpus_per_node"], "hydra.launcher.gpus_per_node"):
        batch["gpus_per_node"] = int(devices)
    return {
        "job_name": "attnlab", "time": options["time"], "array_parallelism": most, "wckey": None,
        "signal_delay_s": options["signal_delay"], "setup": options["setup"] or None,
        "srun_args": [f"--cpus-per-task={options['cpus_per_task']}"],  # srun does not take it from sbatch
        "additional_parameters": {**batch, "requeue": True, **(options["sbatch"] or {})},
    }  # fmt: skip


def _submit(executor: Any, folders: Sequence[Path], work: Sequence[Attempt]) -> list[_Job]:
    try:
        with redirect_stderr(io.StringIO()), executor.batch():  # what sbatch says is in the exception
            submitted = [executor.submit(Task(attempt)) for attempt in work]
    except Exception as error:  # sbatch says no: submitit has an exception of its own for each way
        raise Refused(f"sbatch refused: {' '.join(str(error).split())}") from error
    return [_Job(job.job_id, folder, job.paths) for job, folder in zip(submitted, folders, strict=True)]


def _watch(running: list[_Job], progress: Progress, fail_fast: bool, poll: float) -> None:
    """Until every run has ended. The store is looked at every half second, SLURM every `poll` seconds."""
    began = time.time()
    asked = 0.0
    while running:
        time.sleep(0.5)
        progress.tick(started([job.folder for job in running], began))
        states = None
        if time.monotonic() - asked >= poll:
            states = queue(sorted(_arrays(running)))
            asked = time.monotonic()
        for job in list(running):
            if runs.record(job.folder) is None and (
                states is None or not _gone(job, states, began, progress)
            ):
                continue
            running.remove(job)
            record = runs.record(job.folder)
            progress.finished(job.folder, record)
            if fail_fast and (record is None or not record.done):
                return


def _gone(job: _Job, states: Mapping[str, tuple[str, str]], began: float, progress: Progress) -> bool:
    """Whether the job has left the queue without a record. Then its failure is recorded here."""
    state, reason = states.get(job.id, ("", ""))
    stuck = state == "PENDING" and reason in _STUCK
    if state and state not in _OVER and not stuck:
        job.missed = 0
        return False
    job.missed += 1
    if job.missed < _SURE and not stuck:
        return False
    words = _last_words(job)
    if state in _ASKED_TO_STOP and not words:
        return True
    status: Status = "timed_out" if "timed-out" in words else _STATUS.get(state, "killed")
    ending = f"is stuck: {reason}" if stuck else f"ended as {state}" if state else "left the queue"
    message = f"SLURM job {job.id} {ending} without a record of the run" + (f": {words}" if words else "")
    if stuck:
        subprocess.run(["scancel", job.id], check=False, capture_output=True)
    lost(job.folder, status, message, began, progress)
    return True


def _last_words(job: _Job) -> str:
    """What submitit wrote of an attempt that raised, on one line."""
    with suppress(Exception):
        outcome, text = pickle.loads(job.paths.result_pickle.read_bytes())
        return text.strip().splitlines()[-1] if outcome == "error" else ""
    return ""


def queue(ids: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    """Job -> state and reason, for those that SLURM still remembers. None where it does not answer."""
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        "--format=%i|%T|%r",
        f"--jobs={','.join(ids)}",
    ]
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if asked.returncode == 0:
            lines = [line.split("|", 2) for line in asked.stdout.splitlines() if line.count("|") >= 2]
            return {job: (state, reason) for job, state, reason in lines}
        if "Invalid job id" in asked.stderr:
            return {}
    return None


def _arrays(jobs: Sequence[_Job]) -> set[str]:
    return {job.id.partition("_")[0] for job in jobs}


def _cancel(jobs: Sequence[_Job]) -> None:
    """End what still runs or waits, and give it the time to save a checkpoint, whoever is in a hurry."""
    arrays = sorted(_arrays([job for job in jobs if runs.record(job.folder) is None]))
    states = queue(arrays) if arrays else {}
    if states is not None and all(state in _OVER for state, _ in states.values()):
        return
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        subprocess.run(["scancel", *arrays], check=False, capture_output=True)
        deadline = time.monotonic() + GRACE + 10
        while time.monotonic() < deadline:
            states = queue(arrays)
            if states is not None and all(state in _OVER for state, _ in states.values()):
                return
            time.sleep(0.5)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
