"""The shape of the code: no branch on a variant's name, short files, small folders, docs that tell it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import attnlab
from attnlab.config import CONF
from attnlab.testing.laws import LAWS

ROOT = Path(attnlab.__file__).parent
HOME = ROOT.parent
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py" and path.parent != ROOT)
AXES = ("heads", "position", "score", "mask", "epilogue", "kernel", "decode", "model")
WORDS = {"none", "full", "gate"}  # names of values that have other uses too
PAGES = sorted(path.relative_to(HOME).as_posix() for path in (*HOME.glob("*.md"), *HOME.glob("docs/*.md")))
OTHERS = {
    "CHANGELOG.md",
    *(f"docs/{name}.md" for name in ("bibliography", "families", "tasks", "texts", "writing")),
}
DOCS = [page for page in PAGES if page not in OTHERS]  # which name files of users and of others too


def choices(tree: ast.Module) -> Iterator[str]:
    """The strings on which code chooses: what is compared, matched, or looked for at an end."""
    for node in ast.walk(tree):
        held: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            held = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            held = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            held = [*node.args] if node.func.attr in ("startswith", "endswith") else []
        for part in held:
            if isinstance(part, ast.Tuple | ast.List | ast.Set):
                held += part.elts
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


@cache
def chosen() -> dict[Path, set[str]]:
    return {path: set(choices(ast.parse(path.read_text()))) for path in FILES}


@pytest.mark.parametrize("axis", AXES)
def test_no_code_branches_on_the_name_of_a_variant(axis):
    names = {path.stem for path in (CONF / axis).iterdir()} - WORDS
    assert names
    for path, words in chosen().items():
        assert not names & words, f"{path.relative_to(HOME)} chooses on {names & words}"


def test_a_choice_is_seen_wherever_it_stands():
    code = """
if a == "b" or "c" != a or a in ("d", "e"): ...
match a:
    case "f" | "g": ...
a.startswith(("h", "i"))
for a in ("j", "k"): ...
"""
    assert set(choices(ast.parse(code))) == set("bcdefghi")


def test_hydra_is_used_by_its_public_interfaces():
    files = [*FILES, *(HOME / "hydra_plugins").rglob("*.py")]
    assert len(files) > 300
    assert not [path for path in files if "hydra._internal" in path.read_text("utf-8")]


def test_the_top_holds_rooms_and_little_else():
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "config.py", "errors.py", "py.typed"}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: path.relative_to(HOME).as_posix())
def test_a_folder_says_what_it_is_for(folder):
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), "its __init__ has no docstring"


def tree() -> set[str]:
    """The folders under attnlab/ that DESIGN.md draws, by their indentation."""
    (drawn,) = re.findall(r"## Rooms\n\n```(?:text)?\n(.*?)```", (HOME / "DESIGN.md").read_text(), re.S)
    found, above = set(), []
    for line in drawn.splitlines():
        if name := re.match(r"( *)([\w.]+)/", line):
            above = [*above[: len(name[1]) // 2], name[2]]
            found.add("/".join(above))
    return {folder for folder in found if folder.startswith("attnlab/")}


def test_the_design_draws_the_folders_that_there_are():
    assert tree() == {path.relative_to(HOME).as_posix() for path in PACKAGES}


@pytest.mark.parametrize("doc", DOCS)
def test_the_files_that_a_document_names_are_there(doc):
    """As `sweep/engine.py`, conf/mask/causal.yaml or a link: under the root, attnlab/ or conf/."""
    text = re.sub(r"https?://\S+", "", (HOME / doc).read_text())
    named = set(re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:py|yaml|md|png))\b", text))
    by_users_or_runs = {
        "banded.py",
        "conf/mask/banded.yaml",
        "report.md",
        "summary.png",
        "tuned.yaml",
        "conf/tuned/NAME.yaml",
    }
    for name in sorted(named - by_users_or_runs):
        assert any((place / name).exists() for place in (HOME, ROOT, CONF, HOME / "docs")), name


def test_the_readme_is_read_in_ten_minutes():
    assert len((HOME / "README.md").read_text().splitlines()) <= 180


@pytest.mark.parametrize("doc", PAGES)
def test_the_links_of_a_document_lead_somewhere(doc):
    page = HOME / doc
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    for link in links:
        assert "://" in link or (page.parent / link).exists(), link


def test_the_laws_have_their_numbers_in_the_design():
    laws = (HOME / "DESIGN.md").read_text().partition("## Laws")[2].partition("\n\n0 ")[2]
    told = {"0", *re.findall(r"[;] (\d+)\s", laws)}
    assert told == {law.says.partition(".")[0] for law in LAWS}
