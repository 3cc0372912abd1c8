"""The local launcher: keeps every slot busy until no run is left.

How a run ended is read from disk, and written there by this process where the worker could not.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.errors import Refused, no_space
from attnlab.store import runs as store
from attnlab.store.lease import TAKEN_OVER, taken_over
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute import slots as places
from attnlab.sweep.execute.exits import record_exit, record_lost, record_timeout
from attnlab.sweep.execute.process import TERMINATED
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.execute.ranks import devices
from attnlab.sweep.execute.slots import Child, Slot
from attnlab.sweep.plan.fork_server import Context, warm
from attnlab.sweep.plan.trainer import trainer_of

WORKER = "attnlab.sweep.execute.worker"


@dataclass
class _Running:
    folder: Path
    slots: list[Slot]
    worker: Child | None  # None where the machine could not start it
    since: float
    kills: int


class Pool:
    """`run(folders)` trains what their spec.json say. Interrupts end all workers, and are raised again."""

    def __init__(self, settings: Mapping[str, Any], progress: Progress, context: Context | None) -> None:
        self.max_time: float | None = settings.get("max_time")
        self.fail_fast = bool(settings.get("fail_fast"))
        self.wanted, self.per_gpu = settings.get("slots"), settings.get("slots_per_gpu", 1)
        self.progress = progress
        self.context = context

    def run(self, folders: Sequence[Path]) -> None:
        if not folders:
            return
        specs = [store.spec(folder) for folder in folders]
        free = places.slots(specs[0].estimate.device_kind, self.wanted, self.per_gpu)[::-1]
        needs = {folder: _need(spec.config, free) for folder, spec in zip(folders, specs, strict=True)}
        waiting = list(folders)[::-1]
        running = list[_Running]()
        try:
            while waiting or running:
                while waiting and len(free) >= needs[waiting[-1]]:
                    folder = waiting.pop()
                    taken = [free.pop() for _ in range(needs[folder])]
                    running.append(self._start(folder, taken))
                self.progress.tick([(run.folder, run.slots[0].number) for run in running])
                time.sleep(0.01)
                for run in [run for run in running if self._ended(run)]:
                    running.remove(run)
                    free += run.slots
                    record = store.record(run.folder)
                    taken_away = record is None and run.worker is not None and run.worker.code() == TAKEN_OVER
                    note = f"taken over by {taken_over(run.folder)}" if taken_away else None
                    self.progress.finished(run.folder, record, note)
                    if self.fail_fast and not taken_away and (record is None or not record.done):
                        return
        finally:
            places.end([run.worker for run in running if run.worker is not None])

    def _start(self, folder: Path, taken: list[Slot]) -> _Running:
        """The run in its slots. Where the machine cannot start its worker, the run has ended already."""
        slot = places.together(taken)
        kills = places.out_of_memory_kills()
        since = time.time()
        try:
            worker = places.start(slot, self.context, WORKER, [str(folder)], folder / "log.txt")
            return _Running(folder, taken, worker, since, kills)
        except (OSError, EOFError) as error:  # the fork server is gone, or the host is out of memory
            if no_space(error):
                raise
            why = str(error) or "the fork server ended"
            record_lost(folder, "killed", f"its worker process could not be started: {why}", since)
            return _Running(folder, taken, None, since, kills)

    def _ended(self, run: _Running) -> bool:
        if run.worker is None:
            return True
        code = run.worker.code()
        if code is None:
            if self.max_time is None or time.time() - run.since < self.max_time:
                return False
            places.end([run.worker], grace=3.0)
            record_timeout(run.folder, self.max_time, run.since)
        else:
            if code == TERMINATED:  # the pool asks no worker to stop that it waits for: somebody else did
                code = -signal.SIGTERM
            record_exit(run.folder, code, places.out_of_memory_kills() > run.kills, run.since)
        return True


def admit(runs: Sequence[RunSpec], settings: Mapping[str, Any]) -> None:
    """Refused where a run asks for more than this machine has."""
    kinds = {run.estimate.device_kind for run in runs}
    wanted = settings.get("slots")
    per_gpu = settings.get("slots_per_gpu", 1)
    here = {kind: places.slots(kind, wanted, per_gpu) for kind in kinds}
    for run in runs:
        _need(run.config, here[run.estimate.device_kind])


def _need(config: Mapping[str, Any], slots: Sequence[Slot]) -> int:
    """How many slots a run takes: one per device, and all where nothing may run beside it. Refused where
    there are fewer, or they share a GPU.
    """
    if (config.get("measure") or {}).get("exclusive"):
        return len(slots)
    need = devices(config)
    gpus = [slot.gpu for slot in slots]
    here = len(gpus) if gpus[0] is None else len(set(gpus))
    if need > 1 and need > min(here, len(gpus)):
        raise Refused(f"trainer.devices={need}, and there are {here} here: ask for fewer, or for more slots")
    if need > 1 and here < len(gpus):
        raise Refused(f"trainer.devices={need} with several slots on one GPU: use sweep.slots_per_gpu=1")
    return need


def launch(folders: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """Train the stored runs on this machine, saying how it goes."""
    threads = places.slots("cpu", settings.get("slots"))[0].threads
    with Progress.of(folders) as progress:
        Pool(settings, progress, warm(trainer_of({"sweep": settings}), threads)).run(folders)
