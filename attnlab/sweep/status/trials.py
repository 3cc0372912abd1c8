"""Trials: a few steps of each arm that no finished run tells of, so that a plan knows what its runs take.

As many are taken at a time as runs will be trained, each with a run's threads: what runs take from each other
is part of what they take. What was found is kept in the cache, by what it depends on.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from statistics import mean
from typing import Any

from attnlab.store import answers, fingerprint
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan.checks import Context, serve
from attnlab.sweep.plan.trainer import trainer_of
from attnlab.sweep.waiting import waiting

PATIENCE = 60.0  # seconds for one trial, the imports of the process included
VERSION = 1  # of how trials are taken: raise it when the same run would be given another time
_RATES = ("lr", "min_lr", "warmup", "betas", "weight_decay")  # of `optim`: numbers that take no time
Trial = Mapping[str, float]  # as `sweep/plan/trainer.py` has it; {} where nobody can know


def like(config: Mapping[str, Any]) -> str:
    """One name for all runs whose steps are alike: seed, number of steps and learning rate are not asked."""
    unseeded = fingerprint.unseeded(config)
    optim = {key: value for key, value in (unseeded.get("optim") or {}).items() if key not in _RATES}
    trainer = {key: value for key, value in (unseeded.get("trainer") or {}).items() if key != "max_steps"}
    return fingerprint.digest({**unseeded, "optim": optim, "trainer": trainer, "convert": None})


def trials(runs: Sequence[RunSpec], context: Context, together: int) -> dict[str, Trial]:
    """What a step of each kind of run (`like`) takes, where so many are trained at a time."""
    asked = {like(run.config): run for run in reversed(runs)}
    found: dict[str, Trial] = {}
    for kind, run in asked.items():
        kept = answers.kept(run.config, "trials", _name(run, kind, together))
        if isinstance(kept, dict):
            found[kind] = kept
    missing = {kind: run for kind, run in asked.items() if kind not in found}
    if missing:
        taken = _take(missing, context, max(1, min(together, len(runs))))
        for kind, trial in taken.items():
            if trial is not None:
                answers.keep(missing[kind].config, "trials", _name(missing[kind], kind, together), trial)
        found |= {kind: trial for kind, trial in taken.items() if trial}
    return found


def _take(missing: Mapping[str, RunSpec], context: Context, together: int) -> dict[str, Trial | None]:
    """Round by round, with a trial in each process: where kinds are fewer, some are tried in several. None
    where one failed.
    """
    kinds = f"{len(missing)} kinds of runs" if len(missing) > 1 else "a run"
    said: dict[str, list[Trial | None]] = {kind: [] for kind in missing}
    turns = [list(missing)[i : i + together] for i in range(0, len(missing), together)]
    processes = [_Process(context) for _ in range(together)]
    try:
        with waiting(f"taking a few steps of {kinds}, to tell the time"):
            for turn in turns:
                turn = [turn[i % len(turn)] for i in range(together)]
                for process, kind in zip(processes, turn, strict=True):
                    process.ask(missing[kind])
                for process, kind in zip(processes, turn, strict=True):
                    said[kind].append(process.answer())
    finally:
        for process in processes:
            process.end()
    return {kind: _mean(some) for kind, some in said.items()}


class _Process:
    """A process that takes trials; one that is too slow is ended, and knows nothing any more."""

    def __init__(self, context: Context) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def ask(self, run: RunSpec) -> None:
        with suppress(OSError):
            self._pipe.send((trainer_of(run.config), "trial", run.config))

    def answer(self) -> Trial | None:
        with suppress(OSError, EOFError):
            if wait([self._pipe], PATIENCE):
                word, trial = self._pipe.recv()
                return (trial or {}) if word == "found" else None
        self.end()
        return None

    def end(self) -> None:
        self._pipe.close()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _mean(some: Sequence[Trial | None]) -> Trial | None:
    known = [trial for trial in some if trial]
    if not known:
        return {} if {} in some else None
    return {key: mean(trial[key] for trial in known) for key in known[0]}


def _name(run: RunSpec, kind: str, together: int) -> str:
    """What a trial depends on: the kind of run, its source and data, this machine, its neighbours."""
    identity = {key: value for key, value in run.identity.items() if key != "config"}
    machine = [platform.node(), platform.machine(), os.cpu_count(), _processor()]
    return fingerprint.digest([VERSION, kind, identity, machine, together])


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        return next((line for line in file if line.startswith("model name")), "")
    return platform.processor()
