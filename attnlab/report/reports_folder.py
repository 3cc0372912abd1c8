"""Render all reports of a folder: pages, figures and index, by several processes at once."""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import attnlab
from attnlab.config import CONF
from attnlab.report.ladder_schema import LADDER_FILE
from attnlab.report.pages.index import find_report_sources
from attnlab.report.pages.report_files import name_edited_report, render_report_files, write_index
from attnlab.report.replications.ladder_page import render_ladder_files
from attnlab.report.tables.map_archive import ARCHIVE_NAME
from attnlab.store.atomic_files import read_json_object, write_json

RENDERED_FILES = {
    "report.json": ("report.html", "report.md", "runs.csv"),
    LADDER_FILE: ("report.html", "ladder.md"),
}
DIGESTS_FILE = ".rendered.json"  # report folder -> digest of its page's sources


def render_folder(folder: Path) -> Iterator[tuple[int, int, str, str]]:
    """Render every report and ladder below a folder, then its index.

    A page whose sources (the report, its attention maps, the experiment files, attnlab's code) have not
    changed since it was rendered is unchanged.

    Yields:
        The number of pages done and of all pages, the folder of the last one, and a message about it: empty
            where it was rendered. The first item counts the unchanged pages and names no folder.
    """
    sources = find_report_sources(folder)
    cache = folder / DIGESTS_FILE
    code = _digest_code()
    rendered_digests = read_json_object(cache)
    digests = {source: _digest_sources(source, code) for source in sources}
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
            pages = {pool.submit(_render_page, source): source for source in outdated}
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
    write_index(folder)


def _render_page(source: Path) -> None:
    with name_edited_report(source):
        if source.name == LADDER_FILE:
            render_ladder_files(source.parent)
        else:
            render_report_files(source)


def _digest_sources(source: Path, code: str) -> str:
    digest = hashlib.sha256(code.encode())
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
