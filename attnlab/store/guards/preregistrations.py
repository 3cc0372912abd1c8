"""Preregistrations of a store, in the append-only log `declarations.jsonl`.

A line holds the decisive terms of an experiment before its first run. Earlier lines judge it once: if it
differs from an earlier preregistration of the same experiment and size with results known by then, it
permanently records this deviation. Preregistering the same terms again adds nothing: the first entry stands.

Run ids are logged in lines of their own, because they change with more seeds or another version of attnlab,
which does not change the preregistration, and because `clean` keeps runs whose id a report contains, which
stores its preregistration. These lines also count the known results, since runs may be removed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import file_names, fingerprint, run_directories
from attnlab.store.atomic_files import append_line, describe_special_file, parse_json, read_json
from attnlab.store.experiment_schema import Experiment
from attnlab.store.guards import ownership
from attnlab.store.guards.preregistered_terms import (
    EarlierPreregistration,
    PreregisteredTerms,
    describe_changes,
    extract_terms,
)
from attnlab.store.guards.preregistered_terms import Preregistration as Preregistration
from attnlab.store.run_schema import FrozenModel, RunId

RunIds = Mapping[str, Mapping[int, str]]  # by arm and seed


class PreregisteredRuns(FrozenModel):
    """Runs of a preregistration that no earlier line lists, and the number of pairs known by then."""

    preregistration: str
    time: str
    runs: dict[str, dict[int, RunId]]
    known_pairs: int


@dataclass
class PreregistrationLog:
    """A parsed log; `broken_lines` has the numbers of truncated or invalid lines."""

    preregistrations: dict[str, Preregistration] = field(default_factory=dict)
    runs_by_hash: dict[str, list[PreregisteredRuns]] = field(default_factory=dict)
    broken_lines: list[int] = field(default_factory=list)

    def collect_runs(self, preregistration: Preregistration) -> set[tuple[str, int, str]]:
        """Return (arm, seed, run id) of all runs of a preregistration."""
        return {
            run
            for line in self.runs_by_hash.get(preregistration.hash, [])
            for run in _flatten_run_ids(line.runs)
        }

    def count_known_pairs(self, preregistration: Preregistration) -> int:
        """Return the largest number of known pairs that a line of a preregistration records."""
        return max(
            [
                preregistration.known_pairs,
                *(line.known_pairs for line in self.runs_by_hash.get(preregistration.hash, [])),
            ]
        )


def preregister(
    root: Path,
    name: str,
    experiment: Experiment,
    recipes: Mapping[str, str | None],
    corpora: Mapping[str, str | None],
    run_ids: RunIds,
    command: str,
    nats_per_doubling: float | None = None,
    is_inline: bool = False,
) -> Preregistration:
    """Log the terms of an experiment, unless already logged, and the runs that carry it out.

    Args:
        name: Distinguishes variants of an experiment, such as corpora.
        nats_per_doubling: Loss per doubling of training compute, if known.
        is_inline: Whether the command line states the experiment, as in `compare`, and no file.

    Returns:
        The preregistration that stands: the first one with these terms.

    Raises:
        InvalidConfig: The log cannot be written.
    """
    size = experiment.size
    content = extract_terms(experiment, recipes, corpora, nats_per_doubling)
    key = _hash_preregistration(name, size, content.to_dict())
    with _lock_log(root) as path:
        log = read_log(root)
        preregistration = log.preregistrations.get(key)
        if preregistration is None:
            run_keys = _flatten_run_ids(run_ids)
            preregistration = Preregistration(
                hash=key,
                time=ownership.get_timestamp(),
                experiment=name,
                size=size,
                command=command,
                content=content,
                pairs=len(content.compared_pairs) * len({seed for _, seed, _ in run_keys}),
                known_pairs=_count_finished_pairs(root, content, run_keys),
                earlier=tuple(_find_contradicted(root, log, name, size, content, is_inline)),
                is_inline=is_inline,
            )
            append_line(path, _format_line(preregistration))
        _append_new_runs(root, log, preregistration, run_ids)
    return preregistration


def record_known_pairs(root: Path, preregistration: Preregistration) -> None:
    """Log how many pairs are known by now: they stay known, whatever happens to their runs.

    A log that cannot be written is skipped, since the runs still show it.
    """
    with suppress(InvalidConfig), _lock_log(root):
        _append_new_runs(root, read_log(root), preregistration, {})


def require_writable_log(root: Path) -> None:
    """Check before training that the log can be written, as far as that can be known.

    Raises:
        InvalidConfig: The log cannot be written.
    """
    path = root / file_names.PREREGISTRATION_LOG
    with _convert_log_errors(path):
        if path.exists():
            with path.open("ab"):
                pass


def list_preregistrations(root: Path) -> list[Preregistration]:
    """Return the preregistrations of a store, earliest first."""
    return list(read_log(root).preregistrations.values())


def read_log(root: Path) -> PreregistrationLog:
    """Parse the log of a store; empty if there is none.

    Raises:
        OSError: The log exists and cannot be read.
    """
    log = PreregistrationLog()
    path = root / file_names.PREREGISTRATION_LOG
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                _add_line(log, parse_json(line))
        except (ValueError, TypeError, KeyError):  # pydantic raises a ValueError
            log.broken_lines.append(number)
    return log


def _add_line(log: PreregistrationLog, line: dict[str, Any]) -> None:
    if "content" not in line:
        runs = PreregisteredRuns.model_validate(line)
        log.runs_by_hash.setdefault(runs.preregistration, []).append(runs)
        return
    preregistration = Preregistration.model_validate(line)
    if preregistration.hash != _hash_preregistration(line["experiment"], line["size"], line["content"]):
        raise ValueError("the content does not match the hash of the preregistration")
    log.preregistrations.setdefault(preregistration.hash, preregistration)


def _find_contradicted(
    root: Path,
    log: PreregistrationLog,
    name: str,
    size: str | None,
    content: PreregisteredTerms,
    is_inline: bool,
) -> Iterator[EarlierPreregistration]:
    """Yield the earlier preregistrations of an experiment with other terms and known results.

    Experiments of the command line have no name of their own: those with the same arms, size and data count
    as one.
    """
    for earlier in log.preregistrations.values():
        is_same = (
            (earlier.is_inline or earlier.experiment == name)
            and (earlier.content.arms, earlier.content.corpora) == (content.arms, content.corpora)
            if is_inline
            else earlier.experiment == name
        )
        if is_same and earlier.size == size and (changes := describe_changes(earlier.content, content)):
            known_pairs = max(
                log.count_known_pairs(earlier),
                _count_finished_pairs(root, earlier.content, log.collect_runs(earlier)),
            )
            if known_pairs:
                yield EarlierPreregistration(
                    hash=earlier.hash, time=earlier.time, known_pairs=known_pairs, changed=tuple(changes)
                )


def _append_new_runs(
    root: Path, log: PreregistrationLog, preregistration: Preregistration, run_ids: RunIds
) -> None:
    """Append the runs and known pairs of a preregistration that no line records yet, if any."""
    logged_runs = log.collect_runs(preregistration)
    logged_pairs = log.count_known_pairs(preregistration)
    new_runs: dict[str, dict[int, str]] = {}
    for arm, seed, id in sorted(_flatten_run_ids(run_ids) - logged_runs):
        new_runs.setdefault(arm, {})[seed] = id
    known_pairs = max(
        logged_pairs,
        _count_finished_pairs(root, preregistration.content, logged_runs | _flatten_run_ids(run_ids)),
    )
    if new_runs or known_pairs > logged_pairs:
        entry = PreregisteredRuns(
            preregistration=preregistration.hash,
            time=ownership.get_timestamp(),
            runs=new_runs,
            known_pairs=known_pairs,
        )
        append_line(root / file_names.PREREGISTRATION_LOG, _format_line(entry))


def _flatten_run_ids(run_ids: RunIds) -> set[tuple[str, int, str]]:
    return {(arm, seed, id) for arm, by_seed in run_ids.items() for seed, id in by_seed.items()}


def _count_finished_pairs(
    root: Path, content: PreregisteredTerms, run_keys: set[tuple[str, int, str]]
) -> int:
    """Count the pairs whose runs have both finished."""
    finished = {(arm, seed) for arm, seed, id in run_keys if _is_finished(root / id)}
    seeds = {seed for _, seed in finished}
    return sum(
        all((arm, seed) in finished for arm in pair) for pair in content.compared_pairs for seed in seeds
    )


def _is_finished(folder: Path) -> bool:
    """Whether a run has had a result, including one being retrained or written by another version."""
    for name in ("run.json", run_directories.PREVIOUS_RESULT_FILE):
        with suppress(OSError):
            content = read_json(folder / name)
            if isinstance(content, dict) and content.get("status") == "done":
                return True
    return False


@contextmanager
def _lock_log(root: Path) -> Iterator[Path]:
    """Lock the store and yield the path of its log."""
    path = root / file_names.PREREGISTRATION_LOG
    with _convert_log_errors(path):
        ownership.mark_store(root)
        with ownership.lock_store(root):
            yield path


@contextmanager
def _convert_log_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading or writing the log."""
    if kind := describe_special_file(path):
        raise InvalidConfig(
            f"{path} is {kind}, but attnlab needs a regular file there for the preregistrations: move it away"
        )
    try:
        yield
    except OSError as error:
        raise InvalidConfig(
            f"{path}: the preregistration cannot be written ({error.strerror}), and the comparison "
            "requires it: free disk space, make the file writable, or set paths.runs= to another "
            "folder"
        ) from error


def _hash_preregistration(experiment: str, size: str | None, content: Mapping[str, Any]) -> str:
    return fingerprint.compute_digest({"experiment": experiment, "size": size, "content": content}, 64)


def _format_line(record: FrozenModel) -> str:
    return json.dumps(record.to_dict(), allow_nan=False)
