"""Render all reports of a folder: pages, figures, index and ledger, by several processes at once."""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import attnlab
from attnlab.config import CONF
from attnlab.report import ledger
from attnlab.report.ladder_schema import LADDER_FILE
from attnlab.report.outdated import describe_outdated
from attnlab.report.pages.index import find_report_sources
from attnlab.report.pages.report_files import (
    load_conflicts,
    name_edited_report,
    render_report_files,
    write_index,
)
from attnlab.report.replications.ladder_page import render_ladder_files
from attnlab.report.tables.conflicts import Conflict
from attnlab.report.tables.map_archive import ARCHIVE_NAME
from attnlab.store.atomic_files import read_json_object, write_json

RENDERED_FILES = {
    "report.json": ("report.html", "report.md", "runs.csv"),
    LADDER_FILE: ("report.html", "ladder.md"),
}
DIGESTS_FILE = ".rendered.json"  # report folder -> digest of its page's sources


def render_folder(folder: Path) -> Iterator[tuple[int, int, str, str]]:
    """Render every report and ladder below a folder, then its index and ledger.

    A page whose sources (the report, its attention maps, its conflicts with other reports, its row in the
    list of outdated ones, the experiment files, attnlab's code) have not changed since it was rendered is
    unchanged.

    Yields:
        The number of pages done and of all pages, the folder of the last one, and a message about it: empty
            where it was rendered. The first item counts the unchanged pages and names no folder.

    Raises:
        ValueError: the ledger cannot be written; all pages exist.
    """
    sources = find_report_sources(folder)
    cache = folder / DIGESTS_FILE
    code = _digest_code()
    rendered_digests = read_json_object(cache)
    conflicts = load_conflicts(folder)
    digests = {
        source: _digest_sources(
            source, f"{code} {conflicts.get(source.parent.name)} {describe_outdated(source.parent)}"
        )
        for source in sources
    }
    outdated = [
        source
        for source in sources
        if rendered_digests.get(source.parent.name) != digests[source]
        or not all((source.parent / name).is_file() for name in RENDERED_FILES[source.name])
    ]
    done = len(sources) - len(outdated)
    yield done, len(sources), "", ""
    if outdated:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(len(outdated), os.cpu_count() or 1), mp_context=spawn) as pool:
            pages = {
                pool.submit(_render_page, source, conflicts.get(source.parent.name, [])): source
                for source in outdated
            }
            try:
                for page in as_completed(pages):
                    source = pages[page]
                    error = page.exception()
                    if error is not None and not isinstance(error, (ValueError, OSError)):
                        raise error
                    done += 1
                    if error is None:
                        rendered_digests[source.parent.name] = digests[source]
                        write_json(cache, dict(sorted(rendered_digests.items())))
                    yield done, len(sources), source.parent.name, str(error or "")
            finally:
                pool.shutdown(cancel_futures=True)
    try:
        ledger.write_ledger(folder)  # which writes the index too
    except ValueError:
        write_index(folder)
        raise


def _render_page(source: Path, conflicts: Sequence[Conflict]) -> None:
    with name_edited_report(source):
        if source.name == LADDER_FILE:
            render_ladder_files(source.parent)
        else:
            render_report_files(source, conflicts)


def _digest_sources(source: Path, other_sources: str) -> str:
    digest = hashlib.sha256(other_sources.encode())
    for path in (source, source.with_name(ARCHIVE_NAME)):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _digest_code() -> str:
    """The digest of attnlab's files, its experiments and ladders, which word the pages."""
    digest = hashlib.sha256()
    root = Path(attnlab.__file__).parent
    for folder in (root, CONF / "experiment", CONF / "ladder"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()
