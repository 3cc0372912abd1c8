"""Work folder: what the workers of one sweep share besides its runs, in `runs/work/`.

`NAME~DIGEST.json` is the plan that all of them carry out, and the folder of the same name has a heartbeat
file per worker, the hosts in quarantine, and the lease under which one of them writes the report. NAME is the
comparison as in its report, DIGEST a digest of its runs and terms before any learning rate is tuned.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint, lease, remote
from attnlab.store.atomic_files import read_json, replace_atomically, write_json
from attnlab.store.file_names import WORK_FOLDER, make_file_name
from attnlab.store.guards import ownership
from attnlab.store.process_identity import get_process_state, identify_process
from attnlab.store.run_schema import FrozenModel
from attnlab.store.safe_paths import resolve_below
from attnlab.sweep.plan.plan import Plan

MAX_NAMED_MODULES = 3


class WorkPlan(FrozenModel):
    """Plan of a sweep that several workers carry out.

    Attributes:
        terms: Digest of the experiments as preregistered and as changed by the command.
        runs: Digest of the ids of all runs, at the learning rates before tuning.
        source: Module -> digest of the code that run ids include.
        versions: The package versions that run ids include.
        devices: Kinds of device that the runs are planned for.
        data: Digests of the data.
        reported: Digest of the results that the report covers; None before it is written.
        reporter: Host and process that wrote the report.
    """

    title: str
    terms: str
    runs: str
    source: dict[str, str]
    versions: dict[str, str]
    devices: tuple[str, ...]
    data: tuple[str | None, ...]
    command: str
    host: str
    pid: int
    began: str
    reported: str | None = None
    reporter: str | None = None

    @property
    def digest(self) -> str:
        return fingerprint.compute_digest([self.terms, self.runs], 8)

    def describe_difference(self, stored: "WorkPlan") -> str:
        """Describe the first cause of another digest, with this plan's value before the stored one."""
        for name in sorted({*self.versions, *stored.versions}):
            if (mine := self.versions.get(name)) != (other := stored.versions.get(name)):
                return f"{name} {mine} against {other}"
        if self.source != stored.source:
            names = sorted({*self.source, *stored.source})
            changed = [name for name in names if self.source.get(name) != stored.source.get(name)]
            more = len(changed) - MAX_NAMED_MODULES
            mine, other = (fingerprint.compute_digest(each.source, 8) for each in (self, stored))
            modules = ", ".join(changed[:MAX_NAMED_MODULES]) + (f" and {more} more" if more > 0 else "")
            return f"code {mine} against {other} ({modules})"
        if self.devices != stored.devices:
            return f"device {', '.join(self.devices)} against {', '.join(stored.devices)}"
        if self.data != stored.data:
            return "other data"
        return "other terms of the experiment" if self.terms != stored.terms else "other configs of the runs"


class WorkerState(FrozenModel):
    """Heartbeat of a worker: the runs that it trains, by id, and the time in seconds since the epoch."""

    host: str
    pid: int
    process: str = ""  # `store.process_identity`; empty in files of earlier versions
    device: str
    slots: int
    runs: tuple[str, ...] = ()
    time: float

    @property
    def is_alive(self) -> bool:
        state = get_process_state(self.process)
        if state != "unknown":
            return state == "running"
        return abs(time.time() - self.time) < lease.OBSERVER_STALE_SECONDS


def build_work_plan(plans: Sequence[Plan], command: str) -> WorkPlan:
    """Build the plan that the workers of a command share; equal for all of them, however far the sweep is."""
    runs = [
        run
        for plan in plans
        if plan.composed_experiment is not None and plan.experiment is not None
        for arm in plan.composed_experiment.arms.values()
        for run in arm.make_run_configs(plan.experiment.seeds)
    ]
    terms = [
        [plan.title, plan.declared, plan.experiment and plan.experiment.model_dump(mode="json")]
        for plan in plans
    ]
    source: dict[str, str] = {}
    for run in runs:
        source |= run.identity["source"]
    return WorkPlan(
        title=get_title(plans),
        terms=fingerprint.compute_digest(terms),
        runs=fingerprint.compute_digest([run.id for run in runs]),
        source=dict(sorted(source.items())),
        versions=fingerprint.get_minor_versions(),
        devices=tuple(sorted({run.estimate.device_kind for run in runs})),
        data=tuple(dict.fromkeys(run.estimate.data.get("sha256") for run in runs)),
        command=command,
        host=lease.HOST,
        pid=os.getpid(),
        began=ownership.get_timestamp(),
    )


def get_title(plans: Sequence[Plan]) -> str:
    """Return the name of a command's comparison, over all its corpora or ladder sizes."""
    return plans[0].group_title


@dataclass
class WorkFolder:
    """The work folder of a sweep, as seen by one worker."""

    root: Path
    plan: WorkPlan
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:8])  # host and pid may not be unique

    @property
    def path(self) -> Path:
        name = f"{make_file_name(self.plan.title)}~{self.plan.digest}"
        return resolve_below(self.root, f"{WORK_FOLDER}/{name}")

    @property
    def plan_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def _state_file(self) -> Path:
        return self.path / "workers" / f"{make_file_name(lease.HOST)}-{self.token}.json"

    @property
    def quarantine_file(self) -> Path:
        return self.path / "quarantine" / f"{make_file_name(lease.HOST)}.json"

    def join(self) -> None:
        """Write the plan, or check that it equals the plan of the workers that came before.

        Raises:
            InvalidConfig: The sweep was started with other code, packages, data, device or terms and has no
                report yet, or this host is in quarantine.
        """
        ownership.mark_store(self.root)
        with ownership.lock_store(self.root):
            for file, stored in _load_plans(self.root, self.plan.title):
                if stored.digest != self.plan.digest and stored.reported is None:
                    place = remote.describe_path(file, self.root)
                    raise InvalidConfig(
                        f"{place} was started on {stored.host} with another plan: "
                        f"{self.plan.describe_difference(stored)}: use the same code and packages, or remove "
                        "that file to start over"
                    )
            for folder in (self._state_file.parent, self.quarantine_file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            if not self.plan_file.exists():
                write_json(self.plan_file, self.plan.to_dict())
        if (quarantine := read_json(self.quarantine_file)) is not None:
            reason = quarantine.get("reason") if isinstance(quarantine, dict) else None
            raise InvalidConfig(
                f"{lease.HOST} is in quarantine for this sweep ({reason}): once the host is repaired, remove "
                f"{remote.describe_path(self.quarantine_file, self.root)}"
            )

    def write_state(self, device: str, slots: int, runs: Sequence[str]) -> None:
        """Write this worker's heartbeat; a full disk is left to training to report."""
        state = WorkerState(
            host=lease.HOST, pid=os.getpid(), process=identify_process(), device=device, slots=slots,
            runs=tuple(runs), time=time.time(),
        )  # fmt: skip
        with suppress(OSError), replace_atomically(self._state_file, sync=False) as temporary:
            temporary.write_text(state.model_dump_json(), encoding="utf-8")
        with suppress(OSError):
            remote.push_file(self._state_file, self.root)

    def remove_state(self) -> None:
        """Remove the heartbeat of this worker, which leaves."""
        with suppress(OSError):
            self._state_file.unlink(missing_ok=True)
            remote.remove_file(self._state_file, self.root)

    def quarantine_host(self, reason: str) -> None:
        """Bar this host from the sweep until a person removes the file."""
        write_json(
            self.quarantine_file,
            {"host": lease.HOST, "pid": os.getpid(), "time": ownership.get_timestamp(), "reason": reason},
        )
        remote.push_file(self.quarantine_file, self.root)

    def load_reporter(self, results: str) -> str | None:
        """Return the host and process that wrote the report of these results; None if none did."""
        stored = _load_plan(self.plan_file)
        return stored.reporter if stored is not None and stored.reported == results else None

    def mark_reported(self, results: str) -> None:
        """Record that the report of these results was written by this process."""
        plan = _load_plan(self.plan_file) or self.plan
        reporter = f"{lease.HOST}, pid {os.getpid()}"
        write_json(
            self.plan_file,
            plan.model_copy(update={"reported": results, "reporter": reporter}).to_dict(),
        )


def load_workers(root: Path, title: str) -> list[WorkerState]:
    """Load the living workers of a comparison, sorted by host and process id."""
    workers = []
    for file, _ in _load_plans(root, title):
        for path in sorted(file.with_suffix("").glob("workers/[!.]*.json")):
            with suppress(OSError, ValidationError):
                workers.append(WorkerState.model_validate(read_json(path)))
    return [worker for worker in sorted(workers, key=lambda each: (each.host, each.pid)) if worker.is_alive]


def describe_workers(root: Path, title: str, labels: Mapping[str, str]) -> list[str]:
    """Describe each living worker in a line; `labels` maps run ids to arm, seed and step."""
    lines = []
    for worker in load_workers(root, title):
        slots = f"{worker.slots} slot{'s' if worker.slots > 1 else ''}"
        runs = ", ".join(labels.get(id, id) for id in worker.runs) or "waiting"
        lines.append(f"worker {worker.host}, pid {worker.pid}, {worker.device}, {slots}: {runs}")
    return lines


def compute_results_digest(plans: Sequence[Plan], root: Path) -> str:
    """Return a digest of the results of all runs of a command, failed and missing ones included."""
    files = [root / run.id / "run.json" for plan in plans for run in plan.all_runs]
    contents: list[Any] = [read_json(file) for file in dict.fromkeys(files)]
    return fingerprint.compute_digest(contents)


def _load_plans(root: Path, title: str) -> Iterator[tuple[Path, WorkPlan]]:
    name = make_file_name(title)
    for file in sorted((root / WORK_FOLDER).glob("[!.]*.json")):
        if file.name.startswith(f"{name}~") and (plan := _load_plan(file)) and plan.title == title:
            yield file, plan


def _load_plan(file: Path) -> WorkPlan | None:
    with suppress(OSError, ValidationError):
        return WorkPlan.model_validate(read_json(file))
    return None
