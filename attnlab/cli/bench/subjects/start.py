"""How soon a command is there: wall times of whole processes, from `--help` to a finished experiment.

All are started in turn, so that a busy moment of the machine hits them all. `experiment=NAME` (and overrides)
names the finished experiment: its plan, its status, and the whole command, which trains nothing any more and
writes the report into a folder that is removed.
"""

import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from attnlab.cli.bench import Bench
from attnlab.cli.bench.child import run_command
from attnlab.cli.bench.rows import rows
from attnlab.cli.commands import VERBS
from attnlab.errors import Refused

EXPERIMENT = "gqa_vs_mha"
ROUNDS = 10
TO_TRAIN = re.compile(r"(\d+) to train(?: by now)?, ")  # in a plan: runs that are not in the store


@dataclass(frozen=True)
class Started:
    """A command line after `python -m attnlab`, and the threads that its processes are told to have."""

    line: tuple[str, ...]
    threads: int | None


def prepare(overrides: Sequence[str], threads: int | None) -> Started:
    """The experiment is asked for as `experiment=NAME`, and first in the command."""
    names = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith("experiment=")]
    others = [word for word in overrides if not word.lstrip("+").startswith("experiment=")]
    return Started((f"+experiment={[EXPERIMENT, *names][-1]}", *others), threads)


def measure(prepared: Started, bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Seconds; in a group all are compared with its first row."""
    bench.conditions |= {
        "cores": os.cpu_count(),
        "threads": prepared.threads,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "command": " ".join(prepared.line),
    }
    threads = {} if prepared.threads is None else {"OMP_NUM_THREADS": str(prepared.threads)}
    lines = {"--help": ["--help"], **{f"{verb} --help": [verb, "--help"] for verb in VERBS}, "list": ["list"]}
    group = f"the experiment {prepared.line[0].partition('=')[2]}, finished"
    with tempfile.TemporaryDirectory() as folder:
        whole = [*prepared.line, f"paths.reports={folder}"]
        finished = {"plan": ["plan", *prepared.line], "status": ["status", *prepared.line], "again": whole}
        say("looking whether the experiment is finished")
        note = _unfinished(finished["plan"], threads)
        works = lines | (finished if note is None else {})
        samples: dict[str, list[float]] = {name: [] for name in works}
        try:
            for turn in range(rounds):
                say(f"round {turn + 1} of {rounds}: {len(works)} processes")
                for name in list(works)[:: -1 if turn % 2 else 1]:
                    samples[name].append(_seconds(works[name], threads))
        finally:
            bench.rows += rows("help and lists", {name: samples[name] for name in lines}, "s")
            done = {name: samples[name] for name in finished} if note is None else {}
            bench.rows += rows(
                group, done, "s", notes=None if note is None else dict.fromkeys(finished, note)
            )


def _unfinished(plan: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Why nothing can be measured of an experiment; None where all of its runs are done."""
    ended = run_command(plan, environment)
    if ended.returncode:
        raise Refused(ended.stderr.strip().removeprefix("attnlab: ") or f"{' '.join(plan)} failed")
    costs = [line for line in ended.stdout.splitlines() if TO_TRAIN.match(line)]
    if costs and all(line.startswith("0 ") and " failed" not in line for line in costs):
        return None
    return f"not finished in the store: {'; '.join(costs)}"


def _seconds(line: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    ended = run_command(line, environment)
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise RuntimeError(f"{' '.join(line)} ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return seconds
