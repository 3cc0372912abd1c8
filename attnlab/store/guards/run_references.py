"""References to runs: one file per command in `users/`, written before its first run begins.

A run thus counts as used whether its experiment is a user's file or a `compare` command. Once a command has
written its report, the report protects its runs. The runs of a killed command stay protected until it is
forgotten by name.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from attnlab.store import file_names, fingerprint
from attnlab.store.atomic_files import read_json, write_json
from attnlab.store.guards import ownership
from attnlab.store.lease import HOST
from attnlab.store.process_identity import get_process_state, identify_process
from attnlab.store.run_schema import FrozenModel, RunId


class RunReference(FrozenModel):
    """References of one planned report, or if `experiment` is None of a command without a report.

    Attributes:
        reports: The command's paths.reports; all paths are absolute.
        report: Folder of its report.
        published: Time when the report was last written.
        forgotten: Time when a person released its runs.
    """

    what: Literal["a user of attnlab's runs"] = "a user of attnlab's runs"
    title: str
    experiment: str | None
    command: str
    reports: str
    report: str | None
    runs: tuple[RunId, ...]
    began: str
    published: str | None = None
    forgotten: str | None = None
    host: str
    pid: int
    process: str = ""  # `process_identity`; empty in files of earlier versions

    @property
    def names(self) -> set[str]:
        """Names of the command: its experiment, or its title if the command changed it."""
        return {self.title, self.experiment or self.title}

    @property
    def is_running(self) -> bool:
        """Whether its command still runs, as far as this machine knows."""
        return not self.published and get_process_state(self.process) == "running"


def create_reference(
    title: str, experiment: str | None, command: str, reports: Path, runs: Iterable[str]
) -> RunReference:
    """Create the reference of this process to runs, starting now."""
    return RunReference(
        title=title,
        experiment=experiment,
        command=command,
        reports=str(reports.absolute()),
        report=str((reports / title).absolute()) if experiment else None,
        runs=tuple(sorted(set(runs))),
        began=ownership.get_timestamp(),
        host=HOST,
        pid=os.getpid(),
        process=identify_process(),
    )


def write_references(
    root: Path, references: Sequence[RunReference], replaced_files: Sequence[Path] = ()
) -> list[Path]:
    """Write references in place of earlier ones of this command; return their files.

    Waits while runs are being removed, so the caller then sees which of them still exist.
    """
    ownership.mark_store(root)
    folder = root / file_names.REFERENCES_FOLDER
    folder.mkdir(exist_ok=True)
    reference_by_path: dict[Path, RunReference] = {}
    for reference in references:  # one name per report and set of runs
        title = file_names.make_file_name(reference.title.replace("@", "_"))  # as earlier versions named it
        digest = fingerprint.compute_digest([reference.report, reference.runs], 8)
        reference_by_path[folder / f"{title}~{digest}.json"] = reference
    with ownership.lock_store(root):
        for path, reference in reference_by_path.items():
            write_json(path, reference.to_dict())
        for path in set(replaced_files) - reference_by_path.keys():
            path.unlink(missing_ok=True)
    return [*reference_by_path]


def mark_published(path: Path) -> None:
    """Record that the report was written.

    If that fails, its runs stay protected like those of a killed command.
    """
    with suppress(OSError, ValidationError):
        _mark(path, RunReference.model_validate(read_json(path)), "published")


def mark_forgotten(path: Path, reference: RunReference) -> None:
    """Release the runs of a reference until its command runs again."""
    _mark(path, reference, "forgotten")


def _mark(path: Path, reference: RunReference, key: str) -> None:
    write_json(path, {**reference.to_dict(), key: ownership.get_timestamp()})


def delete_reference(path: Path) -> None:
    """Delete a reference file; errors are ignored."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def load_references(root: Path) -> tuple[dict[Path, RunReference], list[Path]]:
    """Return the references of a store, and the files that cannot be parsed as one."""
    references = dict[Path, RunReference]()
    broken = list[Path]()
    for path in sorted((root / file_names.REFERENCES_FOLDER).glob("[!.]*.json")):
        try:
            references[path] = RunReference.model_validate(read_json(path))
        except (OSError, ValidationError):
            broken.append(path)
    return references, broken
