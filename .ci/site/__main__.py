"""Build the documentation site in build/docs/site: `make docs`.

The Markdown pages are copied to build/docs/source with their paths in the repository, so that relative links
work as on GitHub. `reference` and `notebook` generate further pages, and the reports of reports/reference are
rendered there. zensical renders the Markdown and fails on a broken link. Finally `links` checks every link of
every page.

`python .ci/site NAME ...` renders only these reports and substitutes blank pages for the others.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import ledger
import links
import notebook
import reference

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "docs"
SOURCE, SITE = BUILD / "source", BUILD / "site"
PAGES = (
    "*.md",
    "docs/*.md",
    "reports/LOG.md",
    "reports/reference/OUTDATED.md",
    "reports/reference/bench/README.md",
)
RENDERED_LINKS = {
    "reference/README.md)": "reference/ledger.html)",
    "reference/README.md#": "reference/ledger.html#",
    "/report.md)": "/report.html)",
    "tour.ipynb)": "tour.md)",
}  # links whose targets have a rendered page on the site


def main(names: list[str]) -> int:
    """Build the site; return 1 if a report cannot be rendered or a link is broken."""
    shutil.rmtree(BUILD, ignore_errors=True)
    write_sources()
    if not render_reports(names):
        return 1
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    if subprocess.run(command, cwd=BUILD, check=False).returncode:
        return 1
    for path in ROOT.glob("reports/reference/**/*.md"):  # downloads of the report pages
        copy_file(path, ROOT, SITE)
    broken = links.find_broken_links(SITE)
    print("\n".join(broken) or f"{SITE}: every link leads somewhere")
    return int(bool(broken))


def write_sources() -> None:
    """Write the sources of the site to build/docs/source."""
    for path in sorted({file for pattern in PAGES for file in ROOT.glob(pattern)}):
        text = path.read_text("utf-8")
        for link, rendered_link in RENDERED_LINKS.items():
            text = text.replace(link, rendered_link)
        write_source(path.relative_to(ROOT), text.encode())
    for pattern in ("docs/*.png", "conf/experiment/*.yaml", "reports/reference/*/*"):
        for path in ROOT.glob(pattern):
            if path.is_file():
                copy_file(path, ROOT, SOURCE)
    for name, text in reference.build_pages(ROOT).items():
        write_source(Path("reference") / name, text.encode())
    for name, content in notebook.render_notebook(ROOT / "docs" / "tour.ipynb").items():
        write_source(Path("docs") / name, content)
    folder = Path(__file__).parent
    shutil.copy(folder / "zensical.toml", BUILD)
    for name in ("site.css", "site.js"):
        copy_file(folder / name, folder, SOURCE)


def render_reports(names: list[str]) -> bool:
    """Render the named reports, or all, with index and ledger; return whether that succeeded."""
    folder = SOURCE / "reports" / "reference"
    skipped = [path for path in folder.iterdir() if names and path.is_dir() and path.name not in names]
    for path in skipped:
        shutil.rmtree(path)
    command = [sys.executable, "-m", "attnlab", "report", "reports/reference"]
    result = subprocess.run(command, cwd=SOURCE, stdout=subprocess.DEVNULL, check=False)
    ledger.write_ledger(folder)
    for path in skipped:
        for report_file in (ROOT / "reports" / "reference" / path.name).glob("*.*"):
            copy_file(report_file, ROOT, SOURCE)
        (path / "report.html").touch()
    markdown = [
        path for path in folder.glob("*/*.md") if path.parent.name != "bench"
    ]  # their HTML pages show the same
    for path in (folder / "README.md", folder / ".rendered.json", *markdown):
        path.unlink(missing_ok=True)
    for page in folder.rglob("*.html"):
        page.write_text(
            page.read_text("utf-8").replace("docs/bibliography.md#", "docs/bibliography/#"), "utf-8"
        )
    return result.returncode == 0


def write_source(path: Path, content: bytes) -> None:
    """Write a source file of the site."""
    (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / path).write_bytes(content)


def copy_file(path: Path, base: Path, target_root: Path) -> None:
    """Copy a file below `base` to the same relative path below `target_root`."""
    target = target_root / path.relative_to(base)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
