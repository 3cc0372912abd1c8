"""Check every link of a folder of HTML pages: target file and fragment; find requests to other hosts."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINK_ATTRIBUTES = {
    "a": "href",
    "link": "href",
    "img": "src",
    "script": "src",
    "source": "src",
    "iframe": "src",
}

STYLE_ADDRESS = re.compile(r"""(?:@import\s*(?:url\()?|url\()\s*["']?((?:https?:)?//[^"')\s]+)""")


class _Page(HTMLParser):
    """The links of a page, and its fragment targets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.requests: list[str] = []
        self.fragments: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag's link and fragment target."""
        attributes = {key: value for key, value in attrs if value}
        self.fragments |= {attributes[key] for key in ("id", "name") if key in attributes}
        if LINK_ATTRIBUTES.get(tag) in attributes:
            self.links.append(attributes[LINK_ATTRIBUTES[tag]])
            if tag != "a" and urlsplit(self.links[-1]).netloc:
                self.requests.append(self.links[-1])


def find_broken_links(site: Path) -> list[str]:
    """List a line per link of the pages below `site` without a target file or fragment."""
    parse_page = cache(lambda path: _Page(path.read_text("utf-8")))
    return [
        f"{path.relative_to(site)}: {link} {problem}"
        for path in sorted(site.rglob("*.html"))
        for link in dict.fromkeys(parse_page(path).links)
        if (problem := _describe_problem(site, path, link, parse_page))
    ]


def find_requests(text: str) -> list[str]:
    """List the addresses on other hosts that a browser requests for a page or style sheet by itself."""
    return [*_Page(text).requests, *STYLE_ADDRESS.findall(text)]


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
