"""Runs an hour, by how many share a device: a small model leaves most of a GPU idle.

Each share is a sweep of its own, in processes of its own, over an empty store: `rounds` runs one after
another in each slot. What counts is from the first run's start to the last one's end.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.cli.bench import Bench, Row
from attnlab.cli.bench.child import REFUSED, run_command
from attnlab.cli.bench.setup import conditions, here
from attnlab.errors import Refused
from attnlab.model.build import device_of

OVERRIDES = ["size=S", "logger=none"]
ROUNDS = 4
SHARES = {"cpu": (1, 2), "cuda": (1, 2, 4, 8)}


@dataclass(frozen=True)
class Shared:
    """The words of a command that trains one run, and what they compose to."""

    words: tuple[str, ...]
    config: Mapping[str, Any]


def prepare(overrides: Sequence[str], threads: int | None) -> Shared:
    """Other words are overrides of the runs."""
    sized = any(word.startswith("size=") for word in overrides)
    words = [word for word in OVERRIDES if not (sized and word.startswith("size="))]
    return Shared((*words, *overrides), here(words, overrides, threads))


def measure(prepared: Shared, bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Runs an hour on one device, and how many seconds each takes; the first row has it to itself."""
    device = device_of(prepared.config)
    bench.conditions |= conditions(prepared.config)
    with tempfile.TemporaryDirectory() as folder:
        for share in SHARES[device]:
            say(f"{share * rounds} runs, {share} at a time")
            slots = f"sweep.slots={share}" if device == "cpu" else f"sweep.slots_per_gpu={share}"
            runs = Path(folder) / f"runs_{share}"
            line = [
                *prepared.words, f"seed=range({share * rounds})", slots, f"paths.runs={runs}",
                f"paths.reports={folder}/reports_{share}", f"paths.cache={folder}/cache",
            ]  # fmt: skip
            began, ended, each = _spans(line, runs)
            hourly = 3600 * share * rounds / (ended - began)
            first = (bench.rows[0].median if bench.rows else None) or hourly
            facts = {"seconds_a_run": round(each, 2), "runs": share * rounds}
            name = f"{share} at a time"
            ratio = hourly / first
            bench.rows.append(Row("runs an hour", name, "runs", [hourly], hourly, ratio=ratio, facts=facts))


def _spans(line: Sequence[str], runs: Path) -> tuple[float, float, float]:
    """When the first run of a sweep began and its last one ended, and the mean seconds of a run."""
    ended = run_command(line)
    if ended.returncode:
        kind = Refused if ended.returncode == REFUSED else RuntimeError
        raise kind(f"{' '.join(line)} ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    spans = []
    for path in runs.glob("*/run.json"):
        seconds = json.loads(path.read_text("utf-8"))["seconds"]
        spans.append((path.stat().st_mtime - seconds, path.stat().st_mtime))
    return min(b for b, _ in spans), max(e for _, e in spans), sum(e - b for b, e in spans) / len(spans)
