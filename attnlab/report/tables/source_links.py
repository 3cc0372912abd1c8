"""Links in the source of a claim: an arXiv id leads to arxiv.org, an entry to its row in the bibliography."""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from attnlab.config import CONF
from attnlab.report.section import Link
from attnlab.report.tables.claim_sources import Citation

ARXIV_ID = re.compile(r"(?<![\d.])\d\d(?:0[1-9]|1[0-2])\.\d{4,5}(?![\d.])")
BIBLIOGRAPHY = Path("docs", "bibliography.md")  # below the root of the repository


def find_bibliography(folder: Path) -> str:
    """Return the relative address of the bibliography for a page in `folder`.

    Empty outside the repository and where attnlab is installed as a package.
    """
    root, page_folder = CONF.parent.resolve(), folder.resolve()
    for parent in (page_folder, *page_folder.parents):
        if parent.is_relative_to(root) and (parent / BIBLIOGRAPHY).is_file():
            return Path(os.path.relpath(parent / BIBLIOGRAPHY, page_folder)).as_posix()
    return ""


def split_source(source: str, bibliography: str) -> Iterator[str | Link]:
    """Yield the parts of a source in their order, with links to arxiv.org and to its row in the bibliography.

    Args:
        bibliography: the address of the bibliography; empty links no entry of it.
    """
    for part in re.split(r"(;\s*)", source):
        anchor = make_anchor(part)
        entry_address = f"{bibliography}#{anchor}" if bibliography and anchor in _load_anchors() else ""
        arxiv_id = ARXIV_ID.search(part)
        start, end = arxiv_id.span() if arxiv_id else (len(part), len(part))
        name = part[:start].rstrip(", ") if arxiv_id else part
        pieces = [
            (name, entry_address),
            (part[len(name) : start], ""),
            (part[start:end], f"https://arxiv.org/abs/{part[start:end]}"),
            (part[end:], ""),
        ]
        yield from (Link(text, address) if address else text for text, address in pieces if text)


def format_citation(citation: Citation, bibliography: str) -> list[str | Link]:
    """The parts of a claim's source, its statement and the conflicting source; [] without a source."""
    pairs = [("Source", citation.source, citation.source_says)]
    pairs += [("Conflicting source", citation.other_source, citation.other_says)]
    parts = list[str | Link]()
    for title, source, says in pairs if citation.source else ():
        if source:
            parts += [f"{' ' if parts else ''}{title}: ", *split_source(source, bibliography)]
            parts += [f": {says}." if says else "."]
    return parts


def make_anchor(entry: str) -> str:
    """Make an entry's anchor in the bibliography: `Press 2022, 2108.12409` -> `press-2022-2108-12409`."""
    return re.sub(r"[^a-z0-9]+", "-", entry.lower()).strip("-")


@functools.cache
def _load_anchors() -> frozenset[str]:
    path = CONF.parent / BIBLIOGRAPHY
    return frozenset(re.findall(r'<a id="([^"]+)">', path.read_text("utf-8")) if path.is_file() else ())
