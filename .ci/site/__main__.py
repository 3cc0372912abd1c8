"""Builds the site into build/docs/site: `make docs`.

The pages that GitHub shows are laid out in build/docs/source as they lie in the repository, so that a link
leads where it leads there; generated pages stand beside them (`reference`, `notebook`). The reports of
reports/reference are rendered there. zensical makes pages of the Markdown and fails at a broken link. In the
end every link of every page is followed (`links`).

`python .ci/site NAME ...` renders these reports alone and puts blank pages in the place of the others.
"""

import shutil
import subprocess
import sys
from pathlib import Path

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
HERE = {
    "reference/README.md)": "reference/ledger.html)",
    "/report.md)": "/report.html)",
    "tour.ipynb)": "tour.md)",
}  # better seen on the site


def main(names: list[str]) -> int:
    """0, or 1 where a report cannot be rendered or a link is broken."""
    shutil.rmtree(BUILD, ignore_errors=True)
    lay_out()
    if not render_reports(names):
        return 1
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    if subprocess.run(command, cwd=BUILD, check=False).returncode:
        return 1
    for path in ROOT.glob("reports/reference/**/*.md"):  # which their pages offer as files
        copy(path, ROOT, SITE)
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
    for pattern in ("docs/*.png", "conf/experiment/*.yaml", "reports/reference/*/*"):
        for path in ROOT.glob(pattern):
            if path.is_file():
                copy(path, ROOT, SOURCE)
    for name, text in reference.pages(ROOT).items():
        put(Path("reference") / name, text.encode())
    for name, content in notebook.page(ROOT / "docs" / "tour.ipynb").items():
        put(Path("docs") / name, content)
    shutil.copy(Path(__file__).with_name("zensical.toml"), BUILD)


def render_reports(names: list[str]) -> bool:
    """Renders the reports of these names, or all, with their index and ledger; whether it succeeded."""
    folder = SOURCE / "reports" / "reference"
    left_out = [path for path in folder.iterdir() if names and path.is_dir() and path.name not in names]
    for path in left_out:
        shutil.rmtree(path)
    command = [sys.executable, "-m", "attnlab", "report", "reports/reference"]
    done = subprocess.run(command, cwd=SOURCE, stdout=subprocess.DEVNULL, check=False)
    for path in left_out:
        for kept in (ROOT / "reports" / "reference" / path.name).glob("*.*"):
            copy(kept, ROOT, SOURCE)
        (path / "report.html").touch()
    markdown = [path for path in folder.glob("*/*.md") if path.parent.name != "bench"]  # pages show the same
    for path in (folder / "README.md", folder / ".rendered.json", *markdown):
        path.unlink(missing_ok=True)
    return done.returncode == 0


def put(path: Path, content: bytes) -> None:
    """Writes a file of the source."""
    (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / path).write_bytes(content)


def copy(path: Path, base: Path, to: Path) -> None:
    """Copies a file below `base` to the same place below `to`."""
    target = to / path.relative_to(base)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
