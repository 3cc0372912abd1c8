"""The launcher `slurm`: an array of jobs, each of which runs one worker of the command.

The job script reaches sbatch on its standard input, so nodes execute no file that others may have written.
A worker ends before the time limit of its job, which is then requeued; SLURM itself requeues a job that is
preempted or loses its node.
Surprising: job states come from squeue alone, since accounting (sacct) is missing on many clusters.
"""

import getpass
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store.config_groups import WorkLimits
from attnlab.store.guards import ownership
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute.process_control import GRACE_SECONDS, collect_signals
from attnlab.sweep.execute.work_folder import WorkFolder
from attnlab.sweep.launchers.worker_command import (
    build_worker_command,
    compute_command_digest,
    count_gpus_per_worker,
    count_slots_per_worker,
    format_status_command,
)

_SCRIPT = """\
#!/usr/bin/env bash
{setup}
{hide_gpus}
for _ in 1 2 3; do  # a worker that was killed is started again
    srun --cpus-per-task={cpus} {command}
    status=$?
    (( status <= 128 || status == 143 )) && break
done
if (( status == 0 && SECONDS >= {seconds} && ${{SLURM_RESTART_COUNT:-0}} < {requeues} )); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""
_STUCK_REASONS = (
    "BadConstraints",
    "JobHoldMaxRequeue",
    "launch failed requeued held",
    "launch_failed_requeued_held",
)
_MAX_ARRAY_TASKS = 1000  # SLURM's default limit is 1001
_SBATCH_OPTIONS = ("partition", "account", "qos", "constraint", "mem", "cpus_per_task", "time")


class SlurmWorkers:
    """The workers of a command on a SLURM cluster; all its processes see the same ones in the queue."""

    def __init__(
        self,
        folder: WorkFolder,
        runs: Sequence[RunConfig],
        settings: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        """Prepare the job of a worker.

        Raises:
            InvalidConfig: a SLURM command is missing, or an option is invalid.
        """
        for command in ("sbatch", "squeue", "scancel", "srun"):
            if shutil.which(command) is None:
                raise InvalidConfig(
                    f"hydra/launcher=slurm: {command} not found: run the command on a login node"
                )
        seconds = 60 * options["time"] - options["signal_delay"]
        if seconds <= 0:
            raise InvalidConfig(
                f"hydra.launcher.signal_delay={options['signal_delay']}: must be below the "
                f"{60 * options['time']} seconds of hydra.launcher.time={options['time']}"
            )
        self.poll_seconds: float = options["poll"]
        self.logs = Path(options["folder"] or folder.root / "slurm").absolute()
        self._work_folder = folder
        self._max_workers = min(options["array_parallelism"], settings.get("slots") or _MAX_ARRAY_TASKS)
        self._name = f"attnlab-{compute_command_digest()}"
        self._options = options
        gpus = count_gpus_per_worker(runs, options["gpus_per_node"], "hydra.launcher.gpus_per_node")
        self._gpus = int(gpus)
        limits = WorkLimits(
            seconds=seconds,
            slots=count_slots_per_worker(runs, gpus, settings),
            threads=options["cpus_per_task"],
        )
        self._script = _SCRIPT.format(
            setup="\n".join(options["setup"]),
            hide_gpus="" if gpus else "export CUDA_VISIBLE_DEVICES=",
            cpus=options["cpus_per_task"],
            command=shlex.join([sys.executable, *build_worker_command(limits)]),
            seconds=seconds,
            requeues=options["requeues"],
        )

    def request(self, count: int) -> None:
        """Submit workers until `count` of them are in the queue, on nodes outside the quarantine.

        Raises:
            InvalidConfig: SLURM does not answer, or rejects the job.
        """
        with ownership.lock_store(self._work_folder.root):
            if (queue := self._load_queue()) is None:
                raise InvalidConfig("squeue failed, so the queue is unknown: repeat the command later")
            quarantines = self._work_folder.list_quarantines()
            excluded = ",".join(each["node"] for each in quarantines if each.get("node"))
            for job, state in queue.items() if excluded else ():
                if state == "PENDING":
                    _call("scontrol", "update", f"JobId={job}", f"ExcNodeList={excluded}")
            n_alive = sum(state != "COMPLETING" for state in queue.values())
            missing = min(count, self._max_workers, _MAX_ARRAY_TASKS) - n_alive
            if missing > 0:
                self._submit(missing, excluded)

    def _submit(self, count: int, excluded: str) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            "array": f"0-{count - 1}", "job_name": self._name, "ntasks": 1, "requeue": True,
            "output": self.logs / "%A_%a.log", "open_mode": "append", "gpus_per_node": self._gpus or None,
            **{key: self._options[key] for key in _SBATCH_OPTIONS}, **(self._options["sbatch"] or {}),
        }  # fmt: skip
        if excluded:
            options["exclude"] = ",".join(filter(None, [str(options.get("exclude") or ""), excluded]))
        words = [
            f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}")
            for key, value in options.items()
            if value is not None
        ]
        result = _call("sbatch", *words, input=self._script)
        if result.returncode:
            raise InvalidConfig(f"sbatch rejected the job: {' '.join(result.stderr.split())}")

    def count_alive(self) -> int | None:
        """Count the workers that run or will run; None if SLURM does not answer.

        One that is ending counts too, since SLURM may requeue it.
        """
        queue = self._load_queue()
        return None if queue is None else len(queue)

    def _load_queue(self) -> dict[str, str] | None:
        """Map the job of each worker to its state; without jobs that can never start."""
        result = _call("squeue", "--noheader", "--array", "--format=%i|%T|%r", *self._select_jobs())
        if result.returncode:
            return None
        rows = [line.split("|", 2) for line in result.stdout.splitlines() if line.count("|") >= 2]
        return {
            job: state for job, state, reason in rows if not (state == "PENDING" and reason in _STUCK_REASONS)
        }

    def _select_jobs(self) -> list[str]:
        return [f"--name={self._name}", f"--user={getpass.getuser()}"]

    def cancel_pending(self) -> None:
        """Cancel the workers that have not started."""
        _call("scancel", "--state=PENDING", *self._select_jobs())

    def stop(self) -> None:
        """Cancel the workers and wait while their runs save checkpoints, until a further interrupt."""
        with collect_signals() as signals:
            _call("scancel", *self._select_jobs())
            deadline = time.monotonic() + GRACE_SECONDS + 10
            while time.monotonic() < deadline and not signals and self._is_any_left():
                time.sleep(0.5)

    def _is_any_left(self) -> bool:
        return bool(_call("squeue", "--noheader", *self._select_jobs()).stdout.strip())

    def describe(self) -> str:
        """Describe the workers and how to stop them, a fact per line."""
        return (
            f"{self.count_alive()} workers are in SLURM's queue as {self._name}\nlogs: {self.logs}\n"
            f"status: {format_status_command()}\nstop: scancel --name={self._name}"
        )


def _call(*command: str, input: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Call a program of SLURM, in a session that gets no Ctrl-C.

    SLURM's variables of the job that calls it would steer the new one.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    try:
        return subprocess.run(
            command, input=input, capture_output=True, text=True, timeout=60, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
