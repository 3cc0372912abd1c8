"""Runs per hour by the number of concurrent runs on a device: a small model leaves most of a GPU idle.

Each level of concurrency is a separate sweep into an empty run directory, with `rounds` runs one after
another per slot. The time counts from the start of the first run to the end of the last.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.model.build import select_device
from benchmarks import BenchResult, BenchRow
from benchmarks.bench_config import compose_local_config, describe_conditions
from benchmarks.command_process import EXIT_INVALID, run_command

OVERRIDES = ["size=S", "logger=none"]
ROUNDS = 4
CONCURRENT_RUNS = {"cpu": (1, 2), "cuda": (1, 2, 4, 8)}


@dataclass(frozen=True)
class SharingSetup:
    """Words of a command that trains one run, and the composed config."""

    command_words: tuple[str, ...]
    config: Mapping[str, Any]


def prepare(overrides: Sequence[str], threads: int | None) -> SharingSetup:
    """Compose the setup; the words are overrides of the runs."""
    has_size = any(word.startswith("size=") for word in overrides)
    words = [word for word in OVERRIDES if not (has_size and word.startswith("size="))]
    return SharingSetup((*words, *overrides), compose_local_config(words, overrides, threads))


def measure(setup: SharingSetup, bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure runs per hour and seconds per run on one device; the first row runs alone."""
    device = select_device(setup.config)
    bench.conditions |= describe_conditions(setup.config)
    with tempfile.TemporaryDirectory() as folder:
        for concurrency in CONCURRENT_RUNS[device]:
            log(f"{concurrency * rounds} runs, {concurrency} at a time")
            slots = f"sweep.slots={concurrency}" if device == "cpu" else f"sweep.slots_per_gpu={concurrency}"
            runs = Path(folder) / f"runs_{concurrency}"
            arguments = [
                *setup.command_words, f"seed=range({concurrency * rounds})", slots, f"paths.runs={runs}",
                f"paths.reports={folder}/reports_{concurrency}", f"paths.cache={folder}/cache",
            ]  # fmt: skip
            start_time, end_time, seconds_per_run = _time_sweep(arguments, runs)
            runs_per_hour = 3600 * concurrency * rounds / (end_time - start_time)
            reference = (bench.rows[0].median if bench.rows else None) or runs_per_hour
            facts = {"seconds_a_run": round(seconds_per_run, 2), "runs": concurrency * rounds}
            name = f"{concurrency} at a time"
            ratio = runs_per_hour / reference
            bench.rows.append(
                BenchRow(
                    "runs an hour", name, "runs", [runs_per_hour], runs_per_hour, ratio=ratio, facts=facts
                )
            )


def _time_sweep(arguments: Sequence[str], runs: Path) -> tuple[float, float, float]:
    """Return the start of a sweep's first run, the end of its last, and the mean seconds of a run."""
    result = run_command(arguments)
    if result.returncode:
        error_class = InvalidConfig if result.returncode == EXIT_INVALID else RuntimeError
        raise error_class(
            f"{' '.join(arguments)} exited with status {result.returncode}: {result.stderr.strip()[-500:]}"
        )
    spans = []
    for path in runs.glob("*/run.json"):
        seconds = json.loads(path.read_text("utf-8"))["seconds"]
        spans.append((path.stat().st_mtime - seconds, path.stat().st_mtime))
    return (
        min(start for start, _ in spans),
        max(end for _, end in spans),
        sum(end - start for start, end in spans) / len(spans),
    )
