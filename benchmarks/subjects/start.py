"""Wall times of whole processes, from `--help` to a finished experiment.

Processes alternate, so that load on the machine affects all of them. `experiment=NAME` (and overrides)
selects a finished experiment; the bench times its plan, its status, and the command itself. That command
trains nothing and writes its report into a temporary folder.
"""

import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from attnlab.cli.commands import VERBS
from attnlab.errors import InvalidConfig
from benchmarks import BenchResult
from benchmarks.bench_rows import build_rows
from benchmarks.command_process import run_command

DEFAULT_EXPERIMENT = "gqa_vs_mha"
ROUNDS = 10
TO_TRAIN_PATTERN = re.compile(r"(\d+) to train(?: now)?, ")  # line of a plan on runs that are not stored


@dataclass(frozen=True)
class StartSetup:
    """Arguments after `python -m attnlab`, and the threads of its processes."""

    arguments: tuple[str, ...]
    threads: int | None


def prepare(overrides: Sequence[str], threads: int | None) -> StartSetup:
    """Move `experiment=NAME` to the front of the command."""
    names = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith("experiment=")]
    other_words = [word for word in overrides if not word.lstrip("+").startswith("experiment=")]
    return StartSetup((f"+experiment={[DEFAULT_EXPERIMENT, *names][-1]}", *other_words), threads)


def measure(setup: StartSetup, bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure seconds; ratios of a group refer to its first row."""
    bench.conditions |= {
        "cores": os.cpu_count(),
        "threads": setup.threads,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "command": " ".join(setup.arguments),
    }
    threads = {} if setup.threads is None else {"OMP_NUM_THREADS": str(setup.threads)}
    info_commands = {
        "--help": ["--help"],
        **{f"{verb} --help": [verb, "--help"] for verb in VERBS},
        "list": ["list"],
    }
    group = f"the experiment {setup.arguments[0].partition('=')[2]}, finished"
    with tempfile.TemporaryDirectory() as folder:
        full_command = [*setup.arguments, f"paths.reports={folder}"]
        experiment_commands = {
            "plan": ["plan", *setup.arguments],
            "status": ["status", *setup.arguments],
            "again": full_command,
        }
        log("checking whether the experiment is finished")
        note = _explain_unfinished(experiment_commands["plan"], threads)
        commands = info_commands | (experiment_commands if note is None else {})
        samples: dict[str, list[float]] = {name: [] for name in commands}
        try:
            for round_index in range(rounds):
                log(f"round {round_index + 1} of {rounds}: {len(commands)} processes")
                for name in list(commands)[:: -1 if round_index % 2 else 1]:
                    samples[name].append(_time_command(commands[name], threads))
        finally:
            bench.rows += build_rows("help and lists", {name: samples[name] for name in info_commands}, "s")
            experiment_samples = {name: samples[name] for name in experiment_commands} if note is None else {}
            bench.rows += build_rows(
                group,
                experiment_samples,
                "s",
                notes=None if note is None else dict.fromkeys(experiment_commands, note),
            )


def _explain_unfinished(plan_arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Explain which runs of an experiment are missing; None if all are done."""
    result = run_command(plan_arguments, environment)
    if result.returncode:
        raise InvalidConfig(
            result.stderr.strip().removeprefix("attnlab: ") or f"{' '.join(plan_arguments)} failed"
        )
    costs = [line for line in result.stdout.splitlines() if TO_TRAIN_PATTERN.match(line)]
    if costs and all(line.startswith("0 ") and " failed" not in line for line in costs):
        return None
    return f"not finished in paths.runs: {'; '.join(costs)}"


def _time_command(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    start_time = time.perf_counter()
    result = run_command(arguments, environment)
    seconds = time.perf_counter() - start_time
    if result.returncode:
        raise RuntimeError(
            f"{' '.join(arguments)} exited with status {result.returncode}: {result.stderr.strip()[-500:]}"
        )
    return seconds
