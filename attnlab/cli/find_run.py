"""Lookup of the finished run of an experiment's arm and seed in the run directory, without planning.

Surprising: a run belongs to the experiment that first trained it and to every report that lists it. A
baseline shared by several experiments is therefore found for each of them. The code may have changed since
training.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.cli.parser import PROGRAM
from attnlab.errors import InvalidConfig, escape_unprintable, format_seeds, format_suggestions
from attnlab.report.schema import load_report
from attnlab.store import run_directories
from attnlab.store.guards import run_references
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.store.safe_paths import is_plain_name

SELECTION_KEYS = ("experiment", "arm", "seed")


@dataclass(frozen=True)
class _RunCandidate:
    """A stored run with its seed in the experiment."""

    spec: RunConfig
    seed: int
    record: RunResult | None

    @property
    def is_done(self) -> bool:
        return self.record is not None and self.record.is_done


def find_experiment_run(arguments: Mapping[str, Any], options: Sequence[str]) -> Path:
    """Find the folder of a run, the most recently trained one of several, and print its id.

    Args:
        arguments: values of `runs`, `experiment`, `arm` and optionally `seed`.
        options: required values of the run's axes, as in size=S or data=code.

    Raises:
        InvalidConfig: no finished run matches.
    """
    store = Path(arguments["runs"])
    name = arguments["experiment"]
    experiment_runs = list(dict.fromkeys(_iterate_experiment_runs(store, name)))
    arms = sorted({run_arm for _, run_arm, _ in experiment_runs})
    arm = arguments.get("arm")
    if arm is None:
        raise InvalidConfig(f"experiment={name} needs an arm: add arm={'|'.join(arms) or 'NAME'}")
    ids = [(id_, seed) for id_, run_arm, seed in experiment_runs if run_arm == arm]
    finished = [candidate for candidate in _iterate_matching_runs(store, ids, options) if candidate.is_done]
    seed = arguments.get("seed", min((candidate.seed for candidate in finished), default=0))
    matches = [candidate for candidate in finished if candidate.seed == seed]
    if not matches:
        others = finished or [run for run in _iterate_matching_runs(store, ids, ()) if run.is_done]
        raise _build_not_found_error(arguments, options, arms, others)
    *others, newest = sorted(
        matches, key=lambda run: ((run.record and run.record.started) or "", run.spec.id)
    )
    print(
        escape_unprintable(f"run {newest.spec.id}: {arm}, seed {seed}, {_format_axes(newest.spec.use.axes)}")
    )
    for other in others:
        print(escape_unprintable(f"also finished: run={other.spec.id}, {_format_axes(other.spec.use.axes)}"))
    return store / newest.spec.id


def _iterate_matching_runs(
    store: Path, ids_with_seeds: Iterable[tuple[str, int]], options: Sequence[str]
) -> Iterator[_RunCandidate]:
    """Yield the started runs that were composed with these options."""
    for id_, seed in ids_with_seeds:
        if is_plain_name(id_) and (store / id_ / "spec.json").is_file():
            spec = run_directories.load_run_config(store / id_)
            if all(_has_option(spec, word) for word in options):
                yield _RunCandidate(spec, seed, run_directories.load_run_result(store / spec.id))


def _build_not_found_error(
    arguments: Mapping[str, Any],
    options: Sequence[str],
    arms: Sequence[str],
    others: Sequence[_RunCandidate],
) -> InvalidConfig:
    """Build the error for a missing run: the arm's finished runs, which are suggested first, or its training.

    Args:
        others: the arm's finished runs with another seed or, if there are none, with other options.
    """
    arm = arguments["arm"]
    name = arguments["experiment"]
    suggestions = format_suggestions(arm, arms) if arms and arm not in arms else ""
    seed_words = [f"seed={arguments['seed']}"] if "seed" in arguments else []
    criteria = "".join(f", {word}" for word in (*seed_words, *options))
    problem = f"{arguments['runs']} has no finished run of {name}, arm {arm}{criteria}{suggestions}"
    remedy = ""
    training_words = [*seed_words, *options]
    if others:
        first = min(others, key=lambda candidate: candidate.seed)
        size = first.spec.use.axes.get("size")
        size_words = [f"size={size}"] if size else []
        seeds = [other.seed for other in others if other.spec.use.axes.get("size") == size]
        problem += f"; finished seeds: {', '.join([format_seeds(seeds), *size_words])}"
        remedy = f"use {' '.join([f'seed={first.seed}', *size_words])}, or "
        if not any(word.startswith("size=") for word in options):
            training_words += size_words
    training_command = " ".join([PROGRAM, f"+experiment={name}", *training_words])
    return InvalidConfig(f"{problem}: {remedy}train it with {training_command}")


def _iterate_experiment_runs(store: Path, experiment: str) -> Iterator[tuple[str, str, int]]:
    """Yield (id, arm, seed) of the runs trained for an experiment or listed in its reports."""
    for path in sorted(store.glob("*/spec.json")):
        spec = run_directories.load_run_config(path.parent)
        if spec.use.experiment == experiment:
            yield spec.id, spec.arm, spec.seed
    for reference in run_references.load_references(store)[0].values():
        if reference.experiment != experiment or reference.report is None:
            continue
        with suppress(ValueError):
            for run in load_report(Path(reference.report) / "report.json").runs:
                yield run.id, run.arm, run.seed


def _has_option(spec: RunConfig, option: str) -> bool:
    """Whether a run was composed with this option; InvalidConfig if the option names no axis of the run."""
    key, _, value = option.partition("=")
    if key not in spec.use.axes:
        suggestions = format_suggestions(key, [*spec.use.axes, *SELECTION_KEYS])
        raise InvalidConfig(f"{option}: not an axis or key of the run{suggestions}")
    return spec.use.axes[key] == value


def _format_axes(axes: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={axes[key]}" for key in ("size", "data") if key in axes)
