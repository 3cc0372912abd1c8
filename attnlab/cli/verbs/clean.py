"""`python -m attnlab clean`: list unreferenced runs, and remove them after confirmation.

A run is kept if one of these holds:
- a report lists it;
- a command that uses it has not finished, or its report is unknown here;
- it is new;
- a process holds its lock;
- a kept run started from it.
All of that is checked again after the confirmation, since a command may have started meanwhile.
"""

import argparse
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.store import run_directories
from attnlab.store.atomic_files import parse_json, read_user_text
from attnlab.store.guards import ownership, run_references
from attnlab.store.lease import is_locked
from attnlab.store.remote_files import is_url
from attnlab.store.run_schema import RunConfig

_RUN_ID_PATTERN = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


def main(options: argparse.Namespace, ask: Callable[[str], str] = input) -> int:
    """List, ask and remove; return 1 if a run could not be removed."""
    runs = options.key_values["paths.runs"]
    if is_url(runs):
        raise InvalidConfig(
            f"paths.runs={runs}: clean removes runs of folders only: use the tools of the bucket"
        )
    root = Path(runs)
    reports = [Path(folder_name) for folder_name in options.key_values["paths.reports"]]
    ownership.require_store(root)
    for folder in reports:
        if str(folder) != "reports" and not folder.is_dir():
            raise InvalidConfig(
                f"paths.reports={folder}: folder not found, so the runs of its reports would be "
                "removed: give the folder that contains the reports"
            )
    specs = {path.name: spec for path in sorted(root.iterdir()) if (spec := ownership.load_owned_run(path))}
    forgotten_names = set(options.forget)
    _validate_forgotten_names(options.forget, root, specs)
    rules = (reports, forgotten_names, options.key_values["days"])
    reasons = _collect_keep_reasons(root, specs, *rules)
    sizes = {id: _count_bytes(root / id) for id in specs}
    unwanted = [id for id in specs if id not in reasons]
    print(f"{root}: {_describe_runs(sizes.values())}")
    for reason in dict.fromkeys(reasons.values()):
        kept_sizes = [sizes[id] for id, run_reason in reasons.items() if run_reason == reason]
        print(f"kept: {_describe_runs(kept_sizes, f'runs {reason}')}")
    if foreign_names := ownership.list_foreign_names(root):
        print(f"ignored: {len(foreign_names)} entries that no run wrote: {', '.join(foreign_names)}")
    for id in unwanted:
        labels = f"{specs[id].use.experiment or '-'} {specs[id].arm}"
        print(f"to remove: {root / id}  {labels}  {sizes[id] / 1e6:,.1f} MB")
    if not unwanted:
        print("nothing to remove")
        if not (options.forget or ownership.list_interrupted_removals(root)):
            return 0
    elif not options.yes:
        summary = _describe_runs([sizes[id] for id in unwanted], "unreferenced runs")
        try:
            answer = ask(f"remove {summary}? [y/N] ")
        except EOFError:  # no terminal
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return 0
    run_directories.require_writable_folder(root)
    with ownership.lock_store(root):
        for interrupted_removal in ownership.list_interrupted_removals(root):
            _remove_run(interrupted_removal)
        # Another `clean` may have removed some.
        specs = {id: spec for id in specs if (spec := ownership.load_owned_run(root / id))}
        unwanted = [id for id in unwanted if id in specs]
        reasons = _collect_keep_reasons(root, specs, *rules)
        for id in reasons.keys() & set(unwanted):
            print(f"{root / id} kept: now {reasons[id]}")
        outcomes = {id: _remove_run(root / id) for id in unwanted if id not in reasons}
        _forget_experiments(root, forgotten_names)
    if unwanted:
        removed = [sizes[id] for id, outcome in outcomes.items() if outcome == "removed"]
        print(f"removed {_describe_runs(removed, 'unreferenced runs')}")
    return int("failed" in outcomes.values())


def _describe_runs(sizes: Collection[int], noun: str = "runs") -> str:
    return f"{len(sizes)} {noun}, {sum(sizes) / 1e6:,.1f} MB"


def _remove_run(folder: Path) -> str:
    """Remove a run and print the files that stay; return "removed", "held" (locked) or "failed"."""
    try:
        foreign_files = ownership.remove_run(folder)
    except Timeout:
        print(f"{folder} kept: locked by a process")
        return "held"
    except OSError as error:
        print(f"{folder} was not removed: {error}")
        return "failed"
    if foreign_files:
        print(f"{folder} kept because of files that no run wrote: {', '.join(foreign_files)}")
    return "removed"


def _forget_experiments(root: Path, names: set[str]) -> None:
    """Mark the references of these experiments as forgotten, and delete references without runs."""
    for path, reference in run_references.load_references(root)[0].items():
        is_named = bool(reference.names & names)
        if is_named:
            run_references.mark_forgotten(path, reference)
            print(f"released the runs that only {reference.title} referenced")
        is_released = is_named or reference.forgotten or reference.published
        if is_released and not any((root / id).exists() for id in reference.runs):
            run_references.delete_reference(path)


def _validate_forgotten_names(names: Iterable[str], root: Path, specs: Mapping[str, RunConfig]) -> None:
    references = run_references.load_references(root)[0].values()
    known_names = {name for reference in references for name in reference.names}
    known_names |= {spec.use.experiment for spec in specs.values() if spec.use.experiment}
    for name in names:
        if name not in known_names:
            raise InvalidConfig(
                f"--forget {name}: no such experiment in {root}{format_suggestions(name, known_names)}"
            )
        for reference in references:
            if name in reference.names and reference.is_running:
                raise InvalidConfig(
                    f"--forget {name}: its command is running (process {reference.pid}): stop it "
                    "first, or wait until it ends"
                )


def _collect_keep_reasons(
    root: Path, specs: Mapping[str, RunConfig], reports: Iterable[Path], forgotten_names: set[str], days: int
) -> dict[str, str]:
    """Map each kept run to the first reason to keep it, as in "that a report lists".

    Args:
        root: the run directory.
        specs: run configs by id.
        reports: folders to search in addition to those that recorded commands wrote to.
        forgotten_names: experiments whose references keep no runs.
        days: newer runs are kept.
    """
    reasons: dict[str, str] = {}

    def keep_runs(ids: Iterable[str], reason: str) -> None:
        for id in specs.keys() & set(ids):
            reasons.setdefault(id, reason)

    references, unreadable = run_references.load_references(root)
    ids_by_report = _read_reports(
        [*reports, *(Path(reference.reports) for reference in references.values())], unreadable
    )
    keep_runs((id for id in specs if is_locked(root / id)), "locked by a process")
    for ids in ids_by_report.values():
        keep_runs(ids, "listed in a report")
    for path in unreadable:
        keep_runs(specs, f"because {path} cannot be read")
    for reference in references.values():
        report = reference.report
        if reference.forgotten or reference.names & forgotten_names:
            continue
        if not reference.published:
            state = f"which has not finished (--forget {reference.title})"
        elif report is None:
            continue
        elif not Path(reference.reports).is_dir():
            state = (
                f"whose reports in {reference.reports} are not accessible here (--forget {reference.title})"
            )
        elif Path(report).exists() and not ids_by_report.get(
            os.path.realpath(report), set(reference.runs)
        ).isdisjoint(reference.runs):
            state = "whose report exists"
        else:
            continue
        keep_runs(reference.runs, f"of {reference.title}, {state}")
    referenced_ids = {id for reference in references.values() for id in reference.runs}
    for id, spec in specs.items():
        owner = spec.use.experiment
        if owner and owner not in forgotten_names and id not in referenced_ids:
            keep_runs([id], f"of {owner}, whose report was not found (--forget {owner})")
        if id not in reasons and time.time() - _find_last_change(root / id) < days * 86400:
            keep_runs([id], f"newer than {days} days")
    kept_ids = list(reasons)
    for id in kept_ids:  # grows during iteration: parents have parents
        parent = str(specs[id].config.get("parent"))
        if parent in specs and parent not in reasons:
            keep_runs([parent], "that are parents of kept runs")
            kept_ids.append(parent)
    return reasons


def _read_reports(folders: Iterable[Path], unreadable: list[Path]) -> dict[str, set[str]]:
    """Return the run ids in every report.json below some folders, by the report's resolved folder.

    Links are followed. Files and folders that cannot be read are added to `unreadable`.
    """
    ids_by_report = dict[str, set[str]]()

    def record_failure(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable.append(Path(error.filename))

    visited = set[str]()
    for root in folders:
        for folder, subfolders, files in os.walk(root, onerror=record_failure, followlinks=True):
            resolved = os.path.realpath(folder)
            if resolved in visited:
                subfolders.clear()
            elif "report.json" in files:
                path = Path(folder, "report.json")
                try:
                    text = read_user_text(path)
                    parse_json(text)
                    ids_by_report[resolved] = set(_RUN_ID_PATTERN.findall(text))
                except (OSError, ValueError):
                    unreadable.append(path)
            visited.add(resolved)
    return ids_by_report


def _find_last_change(folder: Path) -> float:
    """Return when a run last wrote a file, except its lock, which a mere check of it touches."""
    return max(path.lstat().st_mtime for path in ownership.list_written_paths(folder) if path.name != "lock")


def _count_bytes(folder: Path) -> int:
    """Count the bytes that a run has written; it may be writing now."""
    size = 0
    for path in ownership.list_written_paths(folder):
        for file in (path, *(() if path.is_symlink() else path.rglob("*"))):
            with suppress(FileNotFoundError):
                size += 0 if file.is_dir() else file.lstat().st_size
    return size
