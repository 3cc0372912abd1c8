"""Check every link of a folder of HTML pages: target file and fragment."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINK_ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class _Page(HTMLParser):
    """The links of a page, and its fragment targets."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fragments: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag's link and fragment target."""
        attributes = {key: value for key, value in attrs if value}
        self.fragments |= {attributes[key] for key in ("id", "name") if key in attributes}
        if LINK_ATTRIBUTES.get(tag) in attributes:
            self.links.append(attributes[LINK_ATTRIBUTES[tag]])


def find_broken_links(site: Path) -> list[str]:
    """List a line per link of the pages below `site` without a target file or fragment."""
    parse_page = cache(_Page)
    return [
        f"{path.relative_to(site)}: {link} {problem}"
        for path in sorted(site.rglob("*.html"))
        for link in dict.fromkeys(parse_page(path).links)
        if (problem := _describe_problem(site, path, link, parse_page))
    ]


def _describe_problem(site: Path, path: Path, link: str, parse_page: object) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    base = site if parts.path.startswith("/") else path.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site.resolve()):
        return "leads to no file"
    if (
        parts.fragment
        and target.suffix == ".html"
        and unquote(parts.fragment) not in parse_page(target).fragments
    ):
        return "leads to no place in its page"
    return ""
