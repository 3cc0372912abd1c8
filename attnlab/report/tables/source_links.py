"""Links in the source of a claim: an arXiv id leads to arxiv.org, an entry to its row in the bibliography."""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup, escape

from attnlab.config import CONF
from attnlab.report.markdown_text import Markdown

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


def render_source_html(source: str, bibliography: str) -> Markup:
    """Render a source with its links; `bibliography` is the address of the bibliography, or empty."""
    return Markup().join(
        Markup('<a href="{}">{}</a>').format(address, text) if address else escape(text)
        for text, address in split_source(source, bibliography)
    )


def render_source_markdown(source: str, bibliography: str, kind: type[Markdown] = Markdown) -> Markdown:
    """Render a source with its links as Markdown."""
    return kind().join(
        kind("[{}]({})").format(text, Markdown(address)) if address else text
        for text, address in split_source(source, bibliography)
    )


def split_source(source: str, bibliography: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a source in their order, each with its address; empty for text without a link."""
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
        yield from (piece for piece in pieces if piece[0])


def make_anchor(entry: str) -> str:
    """Make an entry's anchor in the bibliography: `Press 2022, 2108.12409` -> `press-2022-2108-12409`."""
    return re.sub(r"[^a-z0-9]+", "-", entry.lower()).strip("-")


@functools.cache
def _load_anchors() -> frozenset[str]:
    path = CONF.parent / BIBLIOGRAPHY
    return frozenset(re.findall(r'<a id="([^"]+)">', path.read_text("utf-8")) if path.is_file() else ())
