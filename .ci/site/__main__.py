"""Builds the site into build/docs/site: `make docs`.

What GitHub shows is laid out in build/docs/source as it lies in the repository, so that a link leads where it
leads there; beside it stands what is generated (`reference`, `notebook`). zensical makes pages of it and
fails at a link that leads nowhere; the reports of reports/reference come as they are. In the end every link
of every page is followed (`links`).
"""

import shutil
import subprocess
import sys
from pathlib import Path

import links
import notebook
import reference

from attnlab.report.pages.files import runs_csv
from attnlab.report.schema import load

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
HERE = {
    "reference/README.md)": "reference/ledger.html)",
    "tour.ipynb)": "tour.md)",
}  # better seen on the site


def main() -> int:
    """0, or 1 where a link leads nowhere."""
    shutil.rmtree(BUILD, ignore_errors=True)
    lay_out()
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    if subprocess.run(command, cwd=BUILD, check=False).returncode:
        return 1
    for path in ROOT.glob("reports/reference/**/*.md"):  # which their pages offer as files
        copy(path, SITE)
    broken = links.broken(SITE)
    print("\n".join(broken) or f"{SITE}: every link leads somewhere")
    return int(bool(broken))


def lay_out() -> None:
    """Fills build/docs/source."""
    for path in sorted({file for pattern in PAGES for file in ROOT.glob(pattern)}):
        text = path.read_text("utf-8")
        for link, other in HERE.items():
            text = text.replace(link, other)
        put(path.relative_to(ROOT), text.encode())
    files = ("docs/*.png", "conf/experiment/*.yaml", "reports/reference/**/*")
    for path in [file for pattern in files for file in ROOT.glob(pattern)]:
        if path.is_file() and path.suffix != ".md":
            copy(path, SOURCE)
    for path in ROOT.glob("reports/reference/*/report.json"):  # whose pages offer a table that is not kept
        put(path.relative_to(ROOT).with_name("runs.csv"), runs_csv(load(path)).encode())
    for name, text in reference.pages(ROOT).items():
        put(Path("reference") / name, text.encode())
    for name, content in notebook.page(ROOT / "docs" / "tour.ipynb").items():
        put(Path("docs") / name, content)
    shutil.copy(Path(__file__).with_name("zensical.toml"), BUILD)


def put(path: Path, content: bytes) -> None:
    """Writes a file of the source."""
    (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / path).write_bytes(content)


def copy(path: Path, to: Path) -> None:
    """Copies a file of the repository to the same place below `to`."""
    target = to / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


if __name__ == "__main__":
    sys.exit(main())
