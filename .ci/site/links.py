"""Follows every link of a folder of pages to its file and to its place there."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

TO = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class _Page(HTMLParser):
    """What a page leads to, and the places in it that can be led to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps a tag's link and its name."""
        given = {key: value for key, value in attrs if value}
        self.places |= {given[key] for key in ("id", "name") if key in given}
        if TO.get(tag) in given:
            self.links.append(given[TO[tag]])


def broken(site: Path) -> list[str]:
    """A line for each link of the pages below `site` that leads to no file there, or to no place in one."""
    page = cache(_Page)
    return [
        f"{path.relative_to(site)}: {link} {wrong}"
        for path in sorted(site.rglob("*.html"))
        for link in dict.fromkeys(page(path).links)
        if (wrong := _fault(site, path, link, page))
    ]


def _fault(site: Path, path: Path, link: str, page: object) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    begin = site if parts.path.startswith("/") else path.parent
    target = (begin / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site.resolve()):
        return "leads to no file"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page(target).places:
        return "leads to no place in its page"
    return ""
