"""The shape of the code: nothing points up, nothing branches on a variant's name, files stay readable."""

import ast
import re
from pathlib import Path

import pytest

import attnlab
from attnlab.config import CONF

ROOT = Path(attnlab.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ORDER = [
    {"errors", "config", "seeds"},
    {"attention", "stats", "store"},
    {"model", "data"},
    {"measure", "testing"},
    {"training", "report"},
    {"sweep"},
    {"cli", "__main__"},
]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def rank(module: str) -> int:
    part = module.split(".")[1] if "." in module else ""
    return next((level for level, parts in enumerate(ORDER) if part in parts), len(ORDER))


@pytest.mark.parametrize("path", FILES)
def test_nothing_points_up(path):
    own = rank(f"attnlab.{path.relative_to(ROOT).parts[0].removesuffix('.py')}")
    for module in imports(path):
        if module.startswith("attnlab."):
            assert rank(module) <= own, f"{path.name} imports {module}"


@pytest.mark.parametrize("folder", ["stats", "report", "store", "sweep/plan"])
def test_reading_and_deciding_need_no_torch(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0] in ("torch", "pytorch_lightning")}, (
            path
        )


def test_no_code_branches_on_the_name_of_a_variant():
    names = {
        path.stem
        for axis in ("heads", "position", "score", "mask", "epilogue")
        for path in (CONF / axis).iterdir()
    }
    names -= {"none", "full", "gate"}  # words with other uses
    choice = "|".join(sorted(names))
    quoted = re.compile(rf"""(?:==|!=|\bin)\s*[(\[{{]?\s*["']({choice})["']""")
    for path in FILES:
        assert not quoted.search(re.sub(r"\bfor \w+ in\b", "", path.read_text())), path  # a loop is no branch


def test_files_stay_short():
    for path in FILES:
        most = 200 if "attention" in path.parts else 300
        assert len(path.read_text().splitlines()) <= most, path
