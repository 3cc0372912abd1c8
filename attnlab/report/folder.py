"""All reports of a folder: their pages, figures, index and ledger, rendered by several processes at once."""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import attnlab
from attnlab.report import ledger
from attnlab.report.across import page as ladders
from attnlab.report.ladder import LADDER
from attnlab.report.pages.files import refresh, render_alone
from attnlab.report.pages.index import sources
from attnlab.report.tables.maps import ARCHIVE
from attnlab.store.files import read_json, write_json

FILES = {"report.json": ("report.html", "report.md", "runs.csv"), LADDER: ("report.html", "ladder.md")}
RENDERED = ".rendered.json"  # report folder -> the digest of the sources of its page


def render(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Renders every report and ladder below a folder, then its index and ledger. A page whose sources (the
    report, its attention maps, attnlab's code) have not changed since it was rendered stays as it is.

    Yields:
        How many of how many pages are done, and a message about the last one: empty where it was rendered.

    Raises:
        ValueError: the ledger cannot be made; all pages are there.
    """
    found = sources(folder)
    cache = folder / RENDERED
    code = _digest_code()
    known = read_json(cache) or {}
    digests = {source: _digest(source, code) for source in found}
    due = [
        source
        for source in found
        if known.get(source.parent.name) != digests[source]
        or not all((source.parent / name).is_file() for name in FILES[source.name])
    ]
    done = len(found) - len(due)
    yield done, len(found), ""
    if due:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(len(due), os.cpu_count() or 1), mp_context=spawn) as pool:
            pages = {pool.submit(_render_page, source): source for source in due}
            try:
                for page in as_completed(pages):
                    source = pages[page]
                    error = page.exception()
                    if error is not None and not isinstance(error, (ValueError, OSError)):
                        raise error
                    done += 1
                    if error is None:
                        known[source.parent.name] = digests[source]
                        write_json(cache, dict(sorted(known.items())))
                    yield done, len(found), str(error or "")
            finally:
                pool.shutdown(cancel_futures=True)
    try:
        ledger.write(folder)  # and the index
    except ValueError:
        refresh(folder)
        raise


def _render_page(source: Path) -> None:
    try:
        if source.name == LADDER:
            ladders.render_alone(source.parent)
        else:
            render_alone(source)
    except (KeyError, IndexError, TypeError) as error:  # a file of somebody else's, or an edited one
        raise ValueError(
            f"{source}: cannot be rendered ({type(error).__name__}: {error}); run its command again"
        ) from error


def _digest(source: Path, code: str) -> str:
    digest = hashlib.sha256(code.encode())
    for path in (source, source.with_name(ARCHIVE)):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _digest_code() -> str:
    """The digest of all files of attnlab: any of them may change a page."""
    digest = hashlib.sha256()
    root = Path(attnlab.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()
