"""Code layout: no branch on variant names, documented packages, and documents that match the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import attnlab
from attnlab.config import CONF
from attnlab.testing.invariants import INVARIANTS

ROOT = Path(attnlab.__file__).parent
HOME = ROOT.parent
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py" and path.parent != ROOT)
AXES = ("heads", "position", "score", "mask", "epilogue", "kernel", "decode", "model")
AMBIGUOUS_OPTIONS = {"none", "full", "gate", "path"}  # option names with other uses
PAGES = sorted(path.relative_to(HOME).as_posix() for path in (*HOME.glob("*.md"), *HOME.glob("docs/*.md")))
EXEMPT_PAGES = {
    "CHANGELOG.md",
    *(f"docs/{name}.md" for name in ("bibliography", "families", "tasks", "texts", "writing")),
}
DOCS = [page for page in PAGES if page not in EXEMPT_PAGES]  # the others also name users' files


def find_branch_strings(tree: ast.Module) -> Iterator[str]:
    """Yield the strings on which code branches: compared, matched, or tested as prefix or suffix."""
    for node in ast.walk(tree):
        expressions: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            expressions = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            expressions = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            expressions = [*node.args] if node.func.attr in ("startswith", "endswith") else []
        for part in expressions:
            if isinstance(part, ast.Tuple | ast.List | ast.Set):
                expressions += part.elts
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


@cache
def collect_branch_strings() -> dict[Path, set[str]]:
    return {path: set(find_branch_strings(ast.parse(path.read_text()))) for path in FILES}


@pytest.mark.parametrize("axis", AXES)
def test_no_code_branches_on_the_name_of_a_variant(axis):
    names = {path.stem for path in (CONF / axis).iterdir()} - AMBIGUOUS_OPTIONS
    assert names
    for path, words in collect_branch_strings().items():
        assert not names & words, f"{path.relative_to(HOME)} chooses on {names & words}"


def test_branch_strings_are_detected_in_every_position():
    code = """
if a == "b" or "c" != a or a in ("d", "e"): ...
match a:
    case "f" | "g": ...
a.startswith(("h", "i"))
for a in ("j", "k"): ...
"""
    assert set(find_branch_strings(ast.parse(code))) == set("bcdefghi")


def test_hydra_is_used_through_its_public_interfaces():
    files = [*FILES, *(HOME / "hydra_plugins").rglob("*.py")]
    assert len(files) > 300
    assert not [path for path in files if "hydra._internal" in path.read_text("utf-8")]


def test_top_level_holds_packages_and_few_modules():
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "config.py", "errors.py", "py.typed"}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: path.relative_to(HOME).as_posix())
def test_every_package_has_a_docstring(folder):
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), "its __init__ has no docstring"


def parse_design_folders() -> set[str]:
    """Parse the folders under attnlab/ in the tree of DESIGN.md from their indentation."""
    (drawing,) = re.findall(r"## Packages\n\n```(?:text)?\n(.*?)```", (HOME / "DESIGN.md").read_text(), re.S)
    folders, parents = set(), []
    for line in drawing.splitlines():
        if name := re.match(r"( *)([\w.]+)/", line):
            parents = [*parents[: len(name[1]) // 2], name[2]]
            folders.add("/".join(parents))
    return {folder for folder in folders if folder.startswith("attnlab/")}


def test_design_tree_equals_the_packages():
    assert parse_design_folders() == {path.relative_to(HOME).as_posix() for path in PACKAGES}


@pytest.mark.parametrize("doc", DOCS)
def test_files_named_in_a_document_exist(doc):
    """File names such as `sweep/engine.py` resolve from the root, attnlab/, conf/ or docs/."""
    text = re.sub(r"https?://\S+", "", (HOME / doc).read_text())
    mentioned = set(re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:py|yaml|md|png))\b", text))
    generated_files = {
        "banded.py",
        "my_attention.py",
        "conf/experiment/mine.yaml",
        "conf/mask/banded.yaml",
        "report.md",
        "tuned.yaml",
        "conf/tuned/NAME.yaml",
    }
    for name in sorted(mentioned - generated_files):
        assert any((place / name).exists() for place in (HOME, ROOT, CONF, HOME / "docs")), name


def test_readme_has_at_most_150_lines():
    assert len((HOME / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("doc", PAGES)
def test_links_of_a_document_resolve(doc):
    page = HOME / doc
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    for link in links:
        assert "://" in link or (page.parent / link).exists(), link


def test_design_lists_every_invariant_by_number():
    section = (HOME / "DESIGN.md").read_text().partition("## Invariants")[2].partition("\n\n0 ")[2]
    numbers = {"0", *re.findall(r"[;] (\d+)\s", section)}
    assert numbers == {invariant.statement.partition(".")[0] for invariant in INVARIANTS}
